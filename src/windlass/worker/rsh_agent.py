"""rsh agent of mpirun for one machine: runs mpirun's daemons in the namespaces of other nodes, in place of ssh.

mpirun calls the agent like ssh, `windlass-remote HOST COMMAND…`, and expects that a shell on HOST runs the command.
"""

from __future__ import annotations

import os
import sys

SHELL = "windlass-remote"


def main(argv: list[str]) -> int:
    """Runs the agent with `NODE_SPEC HOST COMMAND…`: enters the network of HOST, and executes a shell with the
    command.
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
    return 255  # the exit code of ssh for connection errors


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
