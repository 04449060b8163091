"""Opens the source at an address."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from windlass.stores.errors import StoreError
from windlass.stores.opening import SCHEMES, open_store
from windlass.train.stream.errors import StreamError
from windlass.train.stream.source import FolderSource, Source, StoreSource


def open_source(address: str) -> Source:
    """Opens the source at `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///path` or a path. Raises StreamError."""
    scheme, is_url, _ = address.partition("://")
    if not is_url:
        return FolderSource(Path(os.path.expanduser(address)).absolute())
    if scheme == "file":
        return FolderSource(Path(unquote(urlsplit(address).path)).absolute())
    try:
        found = open_store(address)
    except StoreError as error:
        raise StreamError(str(error)) from error
    if found is not None:
        return StoreSource(*found)
    if scheme in SCHEMES:
        raise StreamError(f"{address}: the bucket is missing: write {scheme}://BUCKET/PREFIX")
    raise StreamError(f"{address}: streams are read from s3://, gs:// and az://, and from folders")
