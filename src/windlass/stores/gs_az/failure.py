"""Maps errors of obstore to errors of a store, by exception type and message. Python 3.9."""

from __future__ import annotations

import re

from windlass.stores.errors import (
    CHECK_CREDENTIALS,
    Busy,
    Changed,
    Denied,
    Forbidden,
    Missing,
    MissingBucket,
    NoAnswer,
    StoreError,
)

BUSY = (
    "503", "SlowDown", "429", "500", "502", "504", "timed out", "timeout", "connection", "body error",
    # These errors mean that the upload no longer exists, perhaps because it was completed. The upload is then repeated.
    "NoSuchUpload", "InvalidBlockList",
)  # fmt: skip
"""Parts of messages of temporary errors."""
TOKEN = "token request"
NO_LOGIN = (TOKEN, "must be specified", "access key", "service account", "credential", "pem file")
"""Parts of messages of credential errors that occur before any request is sent."""
DENIED = ("401", "403", "AuthenticationFailed", "AuthorizationFailure")
NOT_KNOWN = ("AuthenticationFailed", "SignatureDoesNotMatch", "InvalidAccessKeyId", "ExpiredToken")
"""Error codes of invalid credentials. Their status is 403, as for missing permissions."""
NO_BUCKET = ("ContainerNotFound", "NoSuchBucket")
NO_ANSWER = "error sending request"
NO_CLIENT = "builder error"
CHECK = {
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or give the machine a service account",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give the machine an identity",
}
"""Advice for missing credentials, by kind of store."""
BUCKETS = {"gs": "bucket", "az": "container"}
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"non-2xx status code: (\d{3})")


def store_error(error: Exception, kind: str, bucket: str, key: str = "") -> StoreError:
    """Returns the error of a failed request to a bucket of this kind. An empty `key` means the whole bucket."""
    from obstore import exceptions

    what = f"{kind}://{bucket}/{key}"
    if isinstance(error, (exceptions.PreconditionError, exceptions.AlreadyExistsError)):
        return Changed("the object is not the one that was asked for", what)
    # The debug part of the message contains the address of the request.
    words = " ".join(str(error).partition("Debug source")[0].split())
    status, code = ((found[1] if found else "") for found in (_STATUS.search(words), _CODE.search(words)))
    answer = f"{status} {code}".strip()
    if code in NO_BUCKET:
        return MissingBucket(f"there is no {BUCKETS[kind]} {bucket}", what, "check its name")
    if NO_CLIENT in words:
        found = "no certificates of authorities were found, by which a store is known"
        return Denied(found, what, "install ca-certificates, or set SSL_CERT_FILE")
    if TOKEN in words or (not status and any(mark in words.lower() for mark in NO_LOGIN)):
        why = words.partition(": Error performing GET")[0]
        return Denied(f"no credentials were found: {why[:400]}", what, CHECK[kind])
    if isinstance(error, PermissionError) or status in DENIED or code in DENIED:
        is_one = bool(key) and status == "403" and code not in NOT_KNOWN
        return (Forbidden if is_one else Denied)(f"the store does not allow it ({answer})", what, CHECK_CREDENTIALS)
    if not status and NO_ANSWER in words:
        return NoAnswer("the store does not answer", what, "check its address, and the network")
    if any(mark in (answer or words) for mark in BUSY):
        return Busy(answer or words[:400], what)
    return (Missing if isinstance(error, FileNotFoundError) else StoreError)(answer or words[:400], what)
