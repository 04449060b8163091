"""Executes a command in the environment and working folder of a rank: `exec_command.py SPEC RANK PID COMMAND…`.

SPEC is the path of the node's spec. RANK `-` selects the environment that all ranks of the node share; if one worker
runs the ranks of all nodes, `-1` selects the environment of node 1. The command joins the network namespace of process
PID unless PID is 0. Uses only the standard library of Python 3.9 and the modules next to it.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":  # runs as `python -I -S …/worker/exec_command.py` in a copied folder
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

NOT_STARTED, CANNOT_RUN, NOT_FOUND = 125, 126, 127
"""Exit codes with the same meaning as in `docker exec` and shells."""


def main(argv: list[str]) -> int:
    """Executes the command. Returns an exit code only on failure."""
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
    # Python ignores these signals, and an executed program would inherit the ignored state.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(words[0], words, env)
    except FileNotFoundError:
        return _complain(f"{words[0]} does not exist", NOT_FOUND)
    except OSError as error:
        return _complain(f"{words[0]}: {error.strerror}", CANNOT_RUN)


def _complain(text: str, code: int) -> int:
    print(f"windlass exec: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
