"""IDX, the format of MNIST: a header with the type and the sizes, then the values."""

from __future__ import annotations

import math
import struct
from typing import Final

from windlass.errors import StorageError

BYTES: Final = 0x08
"""Type of the values: unsigned bytes, the only one that MNIST has."""


def shape_of(name: str, data: bytes) -> tuple[int, ...]:
    """The sizes that an IDX file of unsigned bytes states. Raises StorageError where it is not one, or not whole."""
    if len(data) < 4 or data[:3] != bytes((0, 0, BYTES)) or not 1 <= data[3] <= 4:
        raise StorageError(f"{name} is no IDX file of unsigned bytes: it begins with {data[:4].hex(' ') or 'nothing'}")
    header = 4 + 4 * data[3]
    if len(data) < header:
        raise StorageError(f"{name} ends within its header")
    shape = struct.unpack(f">{data[3]}I", data[4:header])
    if len(data) - header != math.prod(shape):
        stated = " × ".join(map(str, shape))
        raise StorageError(f"{name} has {len(data) - header:,} values, and its header states {stated}")
    return shape
