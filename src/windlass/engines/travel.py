"""What travels with a job to machines that have nothing of ours: its folder, and parts of this package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.errors import EngineError

if TYPE_CHECKING:
    from windlass.code.pack import Packed

PARTS: Final = ("__init__.py", "worker", "train", "s3")
"""The parts of the package, under its own name. They need the standard library alone."""
MAX_BYTES: Final = 512 << 20
"""Code before it is compressed, where a store carries it."""

_last: list[Packed] = []
"""What was packed last: a command that plans a run sends what it has planned."""


def pack_code(code_dir: Path, environ: Mapping[str, str], limit: int = MAX_BYTES) -> Packed:
    """What travels with a job: its folder, of so many bytes at most, and the parts. Raises UsageError."""
    from windlass.code.pack import pack  # runs of this machine need the names of the parts alone

    package = Path(__file__).parents[1]
    packed = pack(code_dir, limit, environ, {f"travel/windlass/{name}": package / name for name in PARTS})
    _last[:] = [packed]
    return packed


def planned_code(digest: str, folder: Path) -> Packed:
    """The archive with this digest, of a folder that was planned.

    Raises EngineError where the folder has changed since then, UsageError as `pack_code`.
    """
    found = next((packed for packed in _last if packed.digest == digest), None) or pack_code(folder, os.environ)
    if found.digest != digest:
        raise EngineError(f"the code in {folder} has changed since the plan was made", "make it again")
    return found
