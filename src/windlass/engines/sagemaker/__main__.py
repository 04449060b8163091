"""`python windlass/engines/sagemaker HOME RUN_ID LOCK_FD`: the detached supervisor of a run on SageMaker."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).absolute().parents[3]))

from windlass.engines.sagemaker.backend import SageMakerBackend
from windlass.supervise.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], SageMakerBackend.of_supervisor))
