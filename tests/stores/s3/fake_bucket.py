"""A bucket that returns scripted responses in order."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.stores.errors import StoreError
from windlass.stores.response import Sent
from windlass.stores.s3.bucket import Bucket, BucketResponse
from windlass.stores.store import Body

KEYS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}
Given = bytes | StoreError


class FakeBucket(Bucket):
    """Bucket that returns scripted responses in order."""

    def __init__(self, *answers: Given) -> None:
        super().__init__("bucket", KEYS)
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str]]] = []

    def send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body = b"",
        sent: Sent | None = None,
    ) -> BucketResponse:
        self.asked.append((method, dict(query or {})))
        answer = self.answers.pop(0)
        if isinstance(answer, StoreError):
            raise answer
        return BucketResponse(200, {"etag": '"e"'}, answer)
