"""Opens the source of an address."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from windlass.train.stream.errors import StreamError
from windlass.train.stream.source import FolderSource, Source


def open_source(address: str) -> Source:
    """The source of `s3://bucket/prefix`, `file:///path` or a path. Raises StreamError."""
    scheme, is_url, rest = address.partition("://")
    if not is_url:
        return FolderSource(Path(address).expanduser().absolute())
    if scheme == "file":
        return FolderSource(Path(unquote(urlsplit(address).path)).absolute())
    if scheme != "s3":
        raise StreamError(f"{address}: streams are read from s3:// and from folders; stage other stores by `via: copy`")
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise StreamError(f"{address}: the bucket is missing: write s3://BUCKET/PREFIX")
    from windlass.train.stream.s3 import S3Source  # folders need no client of a store

    return S3Source(bucket, prefix.strip("/"))
