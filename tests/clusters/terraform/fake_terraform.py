"""Stand-in for the terraform program, for tests that need moments that the real program passes in milliseconds.

An apply writes the file `started`, and continues until the file `finish` exists in the folder or SIGTERM arrives. It
then prints recorded output of the real program. The disposition of SIGINT stays as inherited.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path


def say(type: str, **rest: object) -> None:
    """Prints one message of the JSON stream."""
    print(json.dumps({"@message": type, "type": type, **rest}), flush=True)


def apply() -> int:
    """Works on one resource until asked to stop."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    hook = {"resource": {"addr": "aws_eks_cluster.main", "resource_type": "aws_eks_cluster"}, "action": "create"}
    say("apply_start", hook=hook)
    say("apply_progress", hook={**hook, "elapsed_seconds": 10})
    # stands for a provider process, which inherits descriptors
    provider = subprocess.Popen(["sleep", "1000"], close_fds=False)
    Path("started").touch()
    while not Path("finish").exists():
        time.sleep(0.02)
    provider.terminate()
    provider.wait()
    if stopped:
        say("log", **{"@message": "Stopping operation..."})
        say("diagnostic", diagnostic={"severity": "error", "summary": "execution halted", "detail": ""})
        return 1
    say("apply_complete", hook={**hook, "elapsed_seconds": 12, "id_key": "id", "id_value": "dev"})
    say("change_summary", changes={"operation": "apply", "add": 1, "change": 0, "remove": 0, "import": 0})
    return 0


def main(words: list[str]) -> int:
    """Implements the subset of the command line that the tests use."""
    match words:
        case ["version", "-json"]:
            print(json.dumps({"terraform_version": (Path(__file__).parent / "VERSION").read_text().strip()}))
        case ["plan", *flags]:
            (path,) = [flag.partition("=")[2] for flag in flags if flag.startswith("-out=")]
            Path(path).write_text("a plan")
        case ["show", "-json", _]:
            print(json.dumps({"resource_changes": []}))
        case ["apply", *_]:
            return apply()
        case ["state", "pull"]:
            pass
        case ["force-unlock", *_]:
            print("\033[31mFailed to unlock state: LocalState not locked\033[0m\n", file=sys.stderr)
            return 1
        case _:
            print(f"Error: unknown {words}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main([word for word in sys.argv[1:] if word != "-input=false"]))
