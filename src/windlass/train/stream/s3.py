"""Objects below a prefix of an S3 bucket as the source of a stream."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from windlass.s3 import objects
from windlass.s3.bucket import Bucket
from windlass.s3.errors import Busy as StoreBusy
from windlass.s3.errors import Changed, Denied, Missing, StoreError
from windlass.train.stream.errors import Busy, StreamError
from windlass.train.stream.source import OWN, Object, Source, changed, removed


class S3Source(Source):
    """Objects below a prefix; safe for threads, forks and pickling. Credentials and endpoint are of the environment."""

    def __init__(self, bucket: str, prefix: str, environ: Mapping[str, str] = os.environ) -> None:
        """Raises StreamError for an endpoint that is none."""
        self.address = f"s3://{bucket}/{prefix}/" if prefix else f"s3://{bucket}/"
        self._prefix = f"{prefix}/" if prefix else ""
        try:
            self._bucket = Bucket(bucket, environ)
        except StoreError as error:
            raise StreamError(str(error)) from error

    def __reduce__(self) -> Any:
        return S3Source, (self._bucket.name, self._prefix.rstrip("/"))

    def objects(self) -> list[Object]:
        """See `Source`."""
        try:
            found = [one for one in objects.listed(self._bucket, self._prefix) if isinstance(one, objects.Object)]
        except StoreError as error:
            raise StreamError(str(error)) from error
        names = (Object(one.key[len(self._prefix) :], one.size, one.etag) for one in found if _is_file(one))
        return sorted((one for one in names if not one.name.startswith(f"{OWN}/")), key=lambda one: one.name)

    def read(self, one: Object, start: int, length: int) -> bytes:
        """See `Source`."""
        what = f"{self.address}{one.name}"
        headers = {"range": f"bytes={start}-{start + length - 1}"} if length < one.size else {}
        if one.version.startswith('"'):
            headers["if-match"] = one.version
        try:
            answer = self._bucket.send_once("GET", self._prefix + one.name, headers=headers)
        except StoreBusy as error:
            raise Busy(str(error)) from error
        except Missing as error:
            raise removed(what) from error
        except Changed as error:
            raise changed(what) from error
        except StoreError as error:
            raise StreamError(str(error)) from error
        if one.version.startswith('"') and answer.headers.get("etag") != one.version:
            raise changed(what)
        if len(answer.body) != length:
            if answer.status == 200:
                raise changed(what)
            raise Busy(f"{what}: {length} bytes were asked for, {len(answer.body)} came")
        return answer.body

    def read_own(self, name: str) -> bytes | None:
        """See `Source`."""
        try:
            return self._bucket.send("GET", f"{self._prefix}{OWN}/{name}").body
        except (Missing, Denied):
            # Without the right to list a bucket, S3 denies a key that is not there. The listing reports what is wrong.
            return None
        except StoreError as error:
            raise StreamError(str(error)) from error


def _is_file(one: objects.Object) -> bool:
    """An empty object whose key ends with a slash stands for a folder, in the consoles of stores."""
    return not (one.key.endswith("/") and not one.size)
