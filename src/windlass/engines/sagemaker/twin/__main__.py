"""`python -m windlass.engines.sagemaker.twin FOLDER LOCK`: the manager of a job."""

from __future__ import annotations

import sys

from windlass.engines.sagemaker.twin.manager import main

sys.exit(main(*sys.argv[1:]))
