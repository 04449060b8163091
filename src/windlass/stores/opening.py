"""Opens stores by the addresses of what is in them. Standard library only, Python 3.9."""

from __future__ import annotations

from windlass.stores.gs_az import KINDS
from windlass.stores.store import Store

SCHEMES = ("s3", *KINDS)


def open_store(address: str) -> tuple[Store, str] | None:
    """The store of `s3://bucket/prefix`, and the prefix, without slashes at its ends; None for what is no such address.

    Raises StoreError for an endpoint that is none.
    """
    scheme, _, rest = address.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in SCHEMES or not bucket:
        return None
    if scheme == "s3":
        from windlass.stores.s3.store import S3Store  # other stores need no client of it

        return S3Store(bucket), prefix.strip("/")
    from windlass.stores.gs_az.process import ProcessStore

    return ProcessStore(KINDS[scheme], bucket), prefix.strip("/")
