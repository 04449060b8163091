"""`python windlass/worker NODE_SPEC.json [WAKE_FD]`: makes the travelling folder importable and runs the node.

It writes a byte to descriptor WAKE_FD at each event.
"""

import os
import sys

# The folder may lie anywhere and its interpreter may know nothing of Windlass.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from windlass.worker.node import run_node
from windlass.worker.rank_start import ColdStart

if __name__ == "__main__":
    sys.exit(run_node(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None, ColdStart()))
