"""KMS key states: ministack reads and writes S3 objects with a key that is disabled or pending deletion."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from ministack.services import kms, s3

HEADER: Final = "x-amz-server-side-encryption-aws-kms-key-id"


def extend() -> None:
    """Rejects S3 requests for objects whose key cannot be used."""
    s3._get_object = _reading(s3._get_object)
    s3._put_object = _writing(s3._put_object)


def _reading(read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def checked(bucket: str, *arguments: Any) -> Any:
        answer = read(bucket, *arguments)
        return _refusal(answer[1].get(HEADER, "")) or answer

    return checked


def _writing(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def checked(bucket: str, *arguments: Any) -> Any:
        return _refusal(s3._bucket_default_sse_headers(bucket).get(HEADER, "")) or write(bucket, *arguments)

    return checked


def _refusal(name: str) -> Any:
    """Returns the error for a key that cannot be used; None for a usable key or no key."""
    key = kms._resolve_key(name)
    if key is None or key["KeyState"] == "Enabled":
        return None
    is_pending = key["KeyState"] == "PendingDeletion"
    code = "KMS.KMSInvalidStateException" if is_pending else "KMS.DisabledException"
    return s3._error(code, f"{key['Arn']} is {'pending deletion' if is_pending else 'disabled'}.", 400)
