"""Limits the memory of this process while it copies parts of several megabytes."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

M_MMAP_THRESHOLD: Final = -3
"""Number of the mallopt parameter M_MMAP_THRESHOLD in glibc's malloc.h."""
THRESHOLD_BYTES: Final = 1 << 20


@cache
def return_freed_blocks() -> None:
    """Makes glibc return large blocks to the system when they are freed.

    By default glibc keeps freed blocks per thread, and a copy of large files uses twice the memory it needs.
    """
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, THRESHOLD_BYTES)
    except (OSError, AttributeError):
        return
