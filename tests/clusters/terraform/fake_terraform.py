"""Stands in for the terraform program where a test needs moments that the real one passes in milliseconds.

An apply writes `started`, and goes on until the file `finish` exists in the folder or SIGTERM arrives; it then prints
what the real program prints, as recorded. SIGINT is left as it was inherited.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path


def say(type: str, **rest: object) -> None:
    """Print one message of the stream."""
    print(json.dumps({"@message": type, "type": type, **rest}), flush=True)


def apply() -> int:
    """Work on one resource until told to end."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    hook = {"resource": {"addr": "aws_eks_cluster.main", "resource_type": "aws_eks_cluster"}, "action": "create"}
    say("apply_start", hook=hook)
    say("apply_progress", hook={**hook, "elapsed_seconds": 10})
    provider = subprocess.Popen(["sleep", "1000"], close_fds=False)  # a provider, with what is inherited
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
    """The part of the command line that the tests use."""
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
