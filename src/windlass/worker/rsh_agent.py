"""rsh agent of mpirun for nodes that share a machine: runs mpirun's daemons in the nodes' namespaces, in place of ssh.

mpirun calls the agent like ssh, as `windlass-remote HOST COMMAND…`, to run the command in a shell on HOST.
"""

from __future__ import annotations

import os
import sys

SHELL = "windlass-remote"


def main(argv: list[str]) -> int:
    """Runs the agent with `NODE_SPEC HOST COMMAND…`: enters the network namespace of HOST, and executes the command in
    a shell.
    """
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from windlass.worker import netns
    from windlass.worker.protocol import read_spec

    path, host, *command = argv
    spec = read_spec(path)
    try:
        assert spec.launch is not None
        netns.enter(spec.launch.networks[host], spec.folder)
        os.execv("/bin/sh", ["sh", "-c", " ".join(command)])
    except (KeyError, OSError) as error:
        print(f"cannot reach {host}: {error}", file=sys.stderr)
    return 255  # ssh uses this exit code for connection errors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
