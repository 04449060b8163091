"""`python windlass/worker NODE_SPEC.json [WAKE_FD]`: makes the travelling folder importable and starts the node."""

import os
import sys

# The folder may lie anywhere and its interpreter may know nothing of Windlass.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from windlass.worker.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
