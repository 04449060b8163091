"""Reports whether the code of a run was kept in the folder of the run, and its digest."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Final

FILE: Final = "code.tar.gz"
NOT_KEPT: Final = "code.not-kept"
"""File in the folder of a run with the reason why its code was not kept."""
PROGRAM_TEXT: Final = (".py", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini")
"""Extensions of program and settings files, which count as code even if they resemble results of the run."""


def why_not_kept(run_dir: Path) -> str:
    """Returns why the code of a run was not kept; empty if the code was kept, or if that is unknown."""
    try:
        return (run_dir / NOT_KEPT).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def kept_digest(run_dir: Path) -> str | None:
    """Returns the SHA-256 of the code archive in the folder of a run; None if no code was kept on this machine."""
    with contextlib.suppress(OSError), (run_dir / FILE).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return None
