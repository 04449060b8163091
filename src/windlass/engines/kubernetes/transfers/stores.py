"""Which object stores pods reach, and by what."""

from __future__ import annotations

from typing import Final

from windlass.gs_az import KINDS

BY_OBSTORE: Final = tuple(KINDS)
"""Schemes of stores that are reached by the library obstore, which the image then has to have."""
REACHED: Final = ("s3", *BY_OBSTORE)
"""Schemes of all stores; S3 is reached by the standard library alone."""


def needs_obstore(address: str) -> bool:
    """Whether a pod needs the library to reach it."""
    return address.partition("://")[0] in BY_OBSTORE
