"""Entry point of a job's manager: `python -m windlass.engines.sagemaker.twin FOLDER LOCK`."""

from __future__ import annotations

import sys

from windlass.engines.sagemaker.twin.manager import main

sys.exit(main(*sys.argv[1:]))
