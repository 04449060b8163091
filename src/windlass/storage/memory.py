"""Bounds the memory of this process while it copies parts of some megabytes."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

M_MMAP_THRESHOLD: Final = -3
"""Of malloc.h of glibc."""
THRESHOLD_BYTES: Final = 1 << 20


@cache
def return_freed_blocks() -> None:
    """Have each large block given back to the system when it is freed; does nothing where the C library is not glibc.

    By default glibc keeps those of each thread, and a copy of large files grows to twice what it holds.
    """
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, THRESHOLD_BYTES)
    except (OSError, AttributeError):
        return
