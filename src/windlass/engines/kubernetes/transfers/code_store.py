"""Stores code that objects of a cluster cannot carry, once for all runs that have the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from windlass.errors import EngineError
from windlass.s3.bucket import Bucket
from windlass.s3.errors import Denied, Missing, StoreError
from windlass.s3.objects import PART_BYTES, write

HINT: Final = "the store is storage: of the target; this machine writes to it, and the pods read it"


def send(address: str, size: int, data: Callable[[], bytes]) -> None:
    """Write an archive to `s3://bucket/key`, whose key names its digest, unless it is there. Raises EngineError."""
    name, _, key = address.partition("://")[2].partition("/")
    try:
        bucket = Bucket(name)
        if not _is_there(bucket, key, size):
            found = memoryview(data())
            write(bucket, key, (found[at : at + PART_BYTES] for at in range(0, len(found), PART_BYTES)))
    except StoreError as error:
        raise EngineError(f"the code could not be stored: {error}", HINT) from error


def _is_there(bucket: Bucket, key: str, size: int) -> bool:
    try:
        return int(bucket.send("HEAD", key).headers.get("content-length") or -1) == size
    except (Missing, Denied):  # S3 denies it where objects may not be listed
        return False
