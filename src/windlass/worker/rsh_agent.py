"""The rsh agent of mpirun on one machine: runs its daemons in the namespaces of other nodes, in place of ssh.

mpirun calls it as it would call ssh, `windlass-remote HOST COMMAND…`, and expects a shell to run the command there.
"""

from __future__ import annotations

import os
import sys

SHELL = "windlass-remote"


def main(argv: list[str]) -> int:
    """`NODE_SPEC HOST COMMAND…`: enter the network of HOST, which the spec has, and become a shell with the command."""
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
    return 255  # as ssh


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
