"""What travels with a job to machines that have nothing of ours: its folder, and parts of this package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.errors import EngineError, UsageError

if TYPE_CHECKING:
    from windlass.code.pack import Packed
    from windlass.spec.job import Job

PARTS: Final = ("__init__.py", "worker", "train", "s3", "gs_az")
"""The parts of the package, under its own name. They need the standard library alone, but for stores that obstore
reaches."""
MAX_BYTES: Final = 512 << 20
"""Code before it is compressed, where a store carries it."""


def import_folder(home: str, package_root: str) -> str:
    """The folder in a home from which ranks of this machine import the parts, where their interpreter lacks them.

    One for each installation: those of another version may use the same home.
    """
    from hashlib import sha256

    return f"{home}/travel/{sha256(os.fsencode(package_root)).hexdigest()[:12]}"


_last: list[Packed] = []
"""What was packed last: a command that plans a run sends what it has planned."""


def pack_code(code_dir: Path, environ: Mapping[str, str], limit: int = MAX_BYTES) -> Packed:
    """What travels with a job: its folder, of so many bytes at most, and the parts. Raises UsageError."""
    from windlass.code.pack import pack  # runs of this machine need the names of the parts alone

    package = Path(__file__).parents[1]
    packed = pack(code_dir, limit, environ, {f"travel/windlass/{name}": package / name for name in PARTS})
    _last[:] = [packed]
    return packed


def try_to_pack(
    code_dir: Path, environ: Mapping[str, str], limit: int = MAX_BYTES
) -> tuple[Packed | None, tuple[str, str] | None]:
    """What travels with a job; or why it cannot be packed, and what to do."""
    try:
        return pack_code(code_dir, environ, limit), None
    except UsageError as error:
        return None, (error.message, error.hint)


def has_script(job: Job, code_dir: Path) -> bool:
    """Whether a job's script is in its folder; an absolute path is one in the image, which is taken to be there, and so
    is what `setup` may bring."""
    script = job.script_argv[0]
    return bool(job.setup) or job.script_kind != "script" or script.startswith("/") or (code_dir / script).is_file()


def leaves_out_script(job: Job, code_dir: Path, code: Packed | None) -> bool:
    """Whether an ignore file keeps the script from travelling with the job."""
    script = job.script_argv[0]
    if code is None or job.setup or job.script_kind != "script" or not (code_dir / script).is_file():
        return False
    found, folder = (code_dir / script).resolve(), code_dir.resolve()
    return found.is_relative_to(folder) and found.relative_to(folder).as_posix() not in dict(code.files)


def planned_code(digest: str, folder: Path) -> Packed:
    """The archive with this digest, of a folder that was planned.

    Raises EngineError where the folder has changed since then, UsageError as `pack_code`.
    """
    found = next((packed for packed in _last if packed.digest == digest), None) or pack_code(folder, os.environ)
    if found.digest != digest:
        raise EngineError(f"the code in {folder} has changed since the plan was made", "make it again")
    return found
