"""Becomes a command in the environment and working folder of a rank: `exec_command.py SPEC RANK PID COMMAND…`.

SPEC is what the rank's node was asked for. RANK `-` stands for what all ranks of the node have alike, and `-1` for
those of node 1, where one worker has the ranks of all nodes. The command joins the network of process PID, if that is
not 0. Runs where the rank runs: the standard library of Python 3.9, and nothing of ours but what stands beside it.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":  # as `python -I -S …/worker/exec_command.py`, from the folder that has travelled
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

NOT_STARTED, CANNOT_RUN, NOT_FOUND = 125, 126, 127
"""Exit codes as `docker exec` and shells have them."""


def main(argv: list[str]) -> int:
    """Become the command; gives an exit code only where it cannot."""
    from windlass.worker.protocol import read_spec

    path, rank, beside, *words = argv
    try:
        spec = read_spec(path)
    except (OSError, ValueError):
        return _complain("its node has not started yet", NOT_STARTED)
    env = {**os.environ, **spec.node_env(rank[1:] if rank.startswith("-") else "")}
    for one in spec.ranks:
        if str(one.rank) == rank:
            env.update(one.env)
    try:
        if int(beside):
            from windlass.worker import netns

            netns.join(int(beside))
        os.chdir(spec.cwd)
    except OSError as error:
        return _complain(f"{spec.cwd}: {error.strerror}", CANNOT_RUN)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by an interpreter, and by all that it becomes
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(words[0], words, env)
    except FileNotFoundError:
        return _complain(f"{words[0]} is not there", NOT_FOUND)
    except OSError as error:
        return _complain(f"{words[0]}: {error.strerror}", CANNOT_RUN)


def _complain(text: str, code: int) -> int:
    print(f"windlass exec: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
