"""`python windlass/engines/kubernetes HOME RUN_ID LOCK_FD`: the detached supervisor of a run on a cluster."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).absolute().parents[3]))

from windlass.engines.kubernetes.running.backend import KubernetesBackend
from windlass.supervise.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], KubernetesBackend))
