"""Reports whether the code of a run was kept in the folder of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FILE: Final = "code.tar.gz"
NOT_KEPT: Final = "code.not-kept"
"""File in the folder of a run with the reason why its code was not kept."""


def why_not_kept(run_dir: Path) -> str:
    """Returns why the code of a run was not kept; empty if the code was kept, or if that is unknown."""
    try:
        return (run_dir / NOT_KEPT).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
