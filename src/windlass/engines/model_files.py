"""Lists the files in the folder of a model, and computes the digest by which a repeated deploy knows them."""

from __future__ import annotations

import hashlib
from io import BufferedReader
from pathlib import Path

from windlass.code.pack import leads_out
from windlass.errors import UsageError


def files_in(folder: Path) -> list[tuple[str, Path]]:
    """Returns name and path of each file of a model, by name; bytecode of Python is left out.

    Raises UsageError for a folder without files, and for a link that leads out of the folder.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and leads_out(path, folder):
            raise UsageError(f"{path} is a link that leads out of {folder}", "copy what it leads to")
        if path.is_file() and "__pycache__" not in path.parts:
            found.append((path.relative_to(folder).as_posix(), path))
    if not found:
        raise UsageError(f"{folder} has no files", "name the folder of a model, or a run")
    return found


def opened(path: Path) -> BufferedReader:
    """Opens a file of a model to read bytes. Raises UsageError if it cannot be read."""
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "change its permissions, or remove it") from error


def model_digest(folder: Path) -> str:
    """Returns the SHA-256 of a model's files, in hex. The same names and contents give the same digest.

    Raises UsageError as `files_in`, and for a file that cannot be read.
    """
    found = hashlib.sha256()
    for name, path in files_in(folder):
        with opened(path) as file:
            found.update(f"{hashlib.file_digest(file, 'sha256').hexdigest()} {name}\n".encode())
    return found.hexdigest()
