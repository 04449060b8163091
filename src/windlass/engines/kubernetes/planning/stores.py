"""Which object stores pods reach: S3 by the standard library alone, others by obstore, which the image has to have."""

from __future__ import annotations

from typing import Final

from windlass.stores.gs_az import KINDS

REACHED: Final = ("s3", *KINDS)
"""The schemes of their addresses."""


def needs_obstore(address: str) -> bool:
    """Whether a pod reaches this address by obstore."""
    return address.partition("://")[0] in KINDS
