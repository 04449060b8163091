"""Packs the folder of a model as `model.tar.gz`, the archive that SageMaker unpacks at /opt/ml/model."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from pathlib import Path
from typing import IO, Any, Final

from windlass.code.pack import leads_out
from windlass.errors import UsageError

BLOCK_BYTES: Final = 1 << 20


def archive_digest(folder: Path) -> str:
    """Returns the SHA-256 of a model's files, in hex. The same names and contents give the same digest.

    Raises UsageError for an empty folder, a file that cannot be read, and a link that leads out of the folder.
    """
    found = hashlib.sha256()
    for name, path in _files(folder):
        found.update(f"{name}\0{path.stat().st_size}\0".encode())
        with _opened(path) as file:
            while block := file.read(BLOCK_BYTES):
                found.update(block)
    return found.hexdigest()


def write_archive(folder: Path, archive: Path) -> None:
    """Writes a folder to a gzipped tar without owners and times. Raises as `archive_digest`, OSError."""
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, path in _files(folder):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, 0o644
            with _opened(path) as content:
                tar.addfile(entry, content)


def _files(folder: Path) -> list[tuple[str, Path]]:
    """Returns name and path of each file of a model, by name; bytecode of Python is left out."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and leads_out(path, folder):
            raise UsageError(f"{path} is a link that leads out of {folder}", "copy what it leads to")
        if path.is_file() and "__pycache__" not in path.parts:
            found.append((path.relative_to(folder).as_posix(), path))
    if not found:
        raise UsageError(f"{folder} has no files", "name the folder of a model")
    return found


def _opened(path: Path) -> IO[Any]:
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "change its permissions, or remove it") from error
