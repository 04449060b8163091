"""Whether all tests are run (`make nightly`), those too that CI leaves out for their time."""

from __future__ import annotations

import os

IS_NIGHTLY = os.environ.get("NIGHTLY") == "1"
