"""Fetches one object of S3 into a file: the code of a job, before anything else of it is in the pod."""

from __future__ import annotations

import shutil

from windlass.stores.s3.bucket import Bucket
from windlass.stores.s3.objects import BLOCK_BYTES, opened


def fetch(address: str, path: str) -> None:
    """Write the object at `s3://bucket/key` to a file. Raises OSError."""
    bucket, _, key = address.partition("://")[2].partition("/")
    with opened(Bucket(bucket), key) as source, open(path, "wb") as file:
        shutil.copyfileobj(source, file, BLOCK_BYTES)
