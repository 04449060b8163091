"""`python windlass/worker NODE_SPEC.json [WAKE_FD]`: makes the copied `windlass` folder importable and runs the node.

The node writes a byte to the descriptor WAKE_FD at each event.
"""

import os
import sys

# The copied folder may be anywhere, and Windlass may not be installed in this interpreter.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from windlass.worker.node import run_node
from windlass.worker.rank_start import ColdStart

if __name__ == "__main__":
    sys.exit(run_node(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None, ColdStart()))
