"""S3 checksums: ministack verifies the SHA-256 of a request body but does not return it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from ministack.services import s3

HEADER: Final = "x-amz-checksum-sha256"


def extend() -> None:
    """Returns the checksum of an object or part that was stored with one, like S3."""
    s3._put_object = _confirming(s3._put_object)
    s3._upload_part = _confirming(s3._upload_part)


def _confirming(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def confirmed(*arguments: Any) -> Any:
        status, answered, body = write(*arguments)
        sent = arguments[-1].get(HEADER)
        if status == 200 and sent:
            answered = {**answered, HEADER: sent}
        return status, answered, body

    return confirmed
