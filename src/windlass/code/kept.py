"""Whether the code that a run began with was kept in the folder of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FILE: Final = "code.tar.gz"
NOT_KEPT: Final = "code.not-kept"
"""In the folder of a run: why its code was not kept."""


def why_not_kept(run_dir: Path) -> str:
    """Why the code of a run was not kept; empty where it was, and where that is not known."""
    try:
        return (run_dir / NOT_KEPT).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
