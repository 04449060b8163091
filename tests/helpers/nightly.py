"""What a night does otherwise than CI: it runs all tests (`make nightly`), those too that take long, and draws anew."""

from __future__ import annotations

import os

IS_NIGHTLY = os.environ.get("NIGHTLY") == "1"
DRAWS_ALIKE = "CI" in os.environ and not IS_NIGHTLY
"""Whether what is drawn at random is the same each time: a change is not refused for what another one has brought."""
