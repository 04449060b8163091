"""Stands in for ssh where mpirun starts its daemons: runs a command on another node of this machine.

mpirun calls it as it would call ssh, `windlass-remote HOST WORDS…`, and expects a shell to read the words there.
"""

from __future__ import annotations

import json
import os
import sys

SHELL = "windlass-remote"


def main(argv: list[str]) -> int:
    """`NODE_SPEC HOST WORDS…`: enter the network of HOST, which the spec knows, and become a shell with the words."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from windlass.worker import netns

    path, host, *words = argv
    with open(path) as file:
        spec = json.load(file)
    try:
        netns.enter(spec["launch"]["networks"][host], spec["folder"])
        os.execv("/bin/sh", ["sh", "-c", " ".join(words)])
    except (KeyError, OSError) as error:
        print(f"cannot reach {host}: {error}", file=sys.stderr)
    return 255  # as ssh


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
