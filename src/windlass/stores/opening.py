"""Opens the store that an address names. Standard library only, Python 3.9."""

from __future__ import annotations

from windlass.stores.gs_az import KINDS
from windlass.stores.store import Store

SCHEMES = ("s3", *KINDS)


def open_store(address: str) -> tuple[Store, str] | None:
    """Returns the store of `s3://bucket/prefix` and the prefix without outer slashes; None for other addresses.

    Raises StoreError if the configured endpoint is invalid.
    """
    scheme, _, rest = address.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in SCHEMES or not bucket:
        return None
    if scheme == "s3":
        from windlass.stores.s3.store import S3Store

        return S3Store(bucket), prefix.strip("/")
    from windlass.stores.gs_az.process import ProcessStore

    return ProcessStore(KINDS[scheme], bucket), prefix.strip("/")
