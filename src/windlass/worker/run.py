"""`python windlass/worker/run.py NODE_SPEC.json [WAKE_FD]`: runs the ranks of one node.

The process writes a byte to descriptor WAKE_FD at each node event.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Windlass need not be installed in this interpreter: its code may be a copy in any folder.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from windlass.worker.protocol import read_spec
from windlass.worker.rank_start import ColdStart, Start


def run_node(path: str, wake: int | None, start: Start) -> int:
    """Runs the node of the spec file at `path`, with or without an external launcher. Returns 0 if all its ranks
    succeeded.
    """
    spec = read_spec(path)
    if spec.launch is not None:
        from windlass.worker.external_launcher import LaunchedNode  # imported here because most nodes have no launcher

        return LaunchedNode(spec, wake, start).run()
    from windlass.worker.node import Node

    return Node(spec, wake, start).run()


if __name__ == "__main__":
    sys.exit(run_node(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None, ColdStart()))
