"""What an error of obstore means, by its type and its words. Python 3.9."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

BUSY = (
    "503", "SlowDown", "429", "500", "502", "504", "timed out", "timeout", "connection", "body error",
    # What is repeated, since its answer was lost, may have been done: then the upload begins anew.
    "NoSuchUpload", "InvalidBlockList",
)  # fmt: skip
"""In the words of errors that pass."""
TOKEN = "token request"
NO_LOGIN = (TOKEN, "must be specified", "access key", "service account", "credential", "pem file")
"""In the words of errors about credentials, before anything is asked of the store."""
DENIED = ("401", "403", "AuthenticationFailed", "AuthorizationFailure")
NOT_KNOWN = ("AuthenticationFailed", "SignatureDoesNotMatch", "InvalidAccessKeyId", "ExpiredToken")
"""Codes of errors of credentials that are answered with 403, as rights that are missing are."""
NO_BUCKET = ("ContainerNotFound", "NoSuchBucket")
NO_ANSWER = "error sending request"
NO_CLIENT = "builder error"
CHECK = {
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or give the machine a service account",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give the machine an identity",
}
"""What to try where there are no credentials."""
CHECK_RIGHTS = "check the credentials, and what they may do"
BUCKETS = {"gs": "bucket", "az": "container"}
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"non-2xx status code: (\d{3})")


class Kind(enum.Enum):
    """What a caller does about a failure."""

    BUSY = "busy"
    """Asked again later, it may be answered."""
    NO_ANSWER = "no-answer"
    """No server answers: where it never has, its address may be wrong."""
    MISSING = "missing"
    """There is no such object."""
    MISSING_BUCKET = "missing-bucket"
    DENIED = "denied"
    """Also where no credentials were found."""
    FORBIDDEN = "forbidden"
    """This request, by credentials that are valid."""
    CHANGED = "changed"
    """A condition does not hold: the object was written meanwhile, or is there already."""
    OTHER = "other"


class Failure(NamedTuple):
    """Why a request failed."""

    kind: Kind
    words: str
    """What was found."""
    hint: str = ""
    """What to try; empty where that is not known."""


def failure_of(error: Exception, kind: str, bucket: str) -> Failure:
    """What an error of obstore means, about a bucket of this kind of store."""
    from obstore import exceptions

    if isinstance(error, (exceptions.PreconditionError, exceptions.AlreadyExistsError)):
        return Failure(Kind.CHANGED, "the object is not the one that was asked for")
    # Its words have the address of the request, too.
    words = " ".join(str(error).partition("Debug source")[0].split())
    status, code = ((found[1] if found else "") for found in (_STATUS.search(words), _CODE.search(words)))
    answer = f"{status} {code}".strip()
    if code in NO_BUCKET:
        return Failure(Kind.MISSING_BUCKET, f"there is no {BUCKETS[kind]} {bucket}", "check its name")
    if NO_CLIENT in words:
        found = "no certificates of authorities were found, by which a store is known"
        return Failure(Kind.DENIED, found, "install ca-certificates, or set SSL_CERT_FILE")
    if TOKEN in words or (not status and any(mark in words.lower() for mark in NO_LOGIN)):
        why = words.partition(": Error performing GET")[0]
        return Failure(Kind.DENIED, f"no credentials were found: {why[:400]}", CHECK[kind])
    if isinstance(error, PermissionError) or status in DENIED or code in DENIED:
        refused = Kind.FORBIDDEN if status == "403" and code not in NOT_KNOWN else Kind.DENIED
        return Failure(refused, f"the store does not allow it ({answer})", CHECK_RIGHTS)
    if not status and NO_ANSWER in words:
        return Failure(Kind.NO_ANSWER, "the store does not answer", "check its address, and the network")
    if any(mark in (answer or words) for mark in BUSY):
        return Failure(Kind.BUSY, answer or words[:400])
    is_missing = isinstance(error, FileNotFoundError)
    return Failure(Kind.MISSING if is_missing else Kind.OTHER, answer or words[:400])
