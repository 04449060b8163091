"""Checks files of numpy arrays (.npz) without numpy: whole, and without Python objects, which would be unpickled."""

from __future__ import annotations

import ast
import struct
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Final

from windlass.errors import StorageError
from windlass.recipes.archive import Archive

MAGIC: Final = b"\x93NUMPY"
MAX_HEADER_BYTES: Final = 1 << 16


def check(path: Path, limit_bytes: int) -> int:
    """Read all arrays of a file; returns how many it has. Raises StorageError."""
    with Archive(path, limit_bytes) as archive:
        for member, pieces in archive.files([one.name for one in archive.members]):
            try:
                with closing(pieces):
                    _check_array(pieces)
            except (ValueError, SyntaxError, struct.error) as error:
                raise StorageError(f"{path.name} is refused for its array {member.name!r}: {error}") from error
        if not archive.members:
            raise StorageError(f"{path.name} has no array")
        return len(archive.members)


def _check_array(pieces: Generator[bytes, None, None]) -> None:
    head = next(pieces, b"")
    if head[:6] != MAGIC or len(head) < 12:
        raise ValueError("it is no numpy array")
    begin = 10 if head[6] == 1 else 12
    [length] = struct.unpack("<H" if begin == 10 else "<I", head[8:begin])
    if length > min(MAX_HEADER_BYTES, len(head) - begin):
        raise ValueError(f"its header states {length:,} bytes")
    header = ast.literal_eval(head[begin : begin + length].decode("latin-1").strip())
    if not isinstance(header, dict) or not isinstance(header.get("descr"), str):
        raise ValueError("its values are not of one plain type")
    if "O" in header["descr"]:
        raise ValueError("it has Python objects, which would be unpickled")
    for _ in pieces:  # to the end, where the checksum of the archive is compared
        pass
