"""A bucket of S3 as a store. Standard library only, Python 3.9."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from windlass.stores.s3 import objects
from windlass.stores.s3.answer import Body
from windlass.stores.s3.bucket import Bucket
from windlass.stores.s3.objects import Object
from windlass.stores.store import Store


class S3Store(Store):
    """By requests of `windlass.stores.s3`; credentials and endpoint are of the environment."""

    def __init__(self, bucket: str, environ: Mapping[str, str] = os.environ) -> None:
        """Raises StoreError for an endpoint that is none."""
        self.address = f"s3://{bucket}"
        self._bucket = Bucket(bucket, environ)

    def __reduce__(self) -> Any:
        return S3Store, (self._bucket.name,)

    def listed(self, prefix: str, delimiter: str = "") -> Iterator[Object | str]:
        """See `Store`."""
        return objects.listed(self._bucket, prefix, delimiter)

    def head(self, key: str) -> Object:
        """See `Store`."""
        return objects.head(self._bucket, key)

    def read_once(self, one: Object, start: int, length: int) -> bytes:
        """See `Store`."""
        return objects.read_once(self._bucket, one, start, length)

    def get(self, key: str) -> bytes:
        """See `Store`."""
        return self._bucket.send("GET", key).body

    def put(self, key: str, body: Body) -> None:
        """See `Store`."""
        objects.put(self._bucket, key, body)

    def write(self, key: str, pieces: Iterable[Body]) -> None:
        """See `Store`."""
        objects.write(self._bucket, key, pieces)

    def remove(self, key: str) -> None:
        """See `Store`."""
        self._bucket.send("DELETE", key)
