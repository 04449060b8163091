"""Errors of all object stores, as subclasses of OSError, so that checkpoint code handles stores and file systems alike.

Each kind of store maps its own errors to these classes in one place. Callers catch them by class.
"""

from __future__ import annotations

import errno
from typing import Any

CHECK_CREDENTIALS = "check the credentials, and what they may do"


class StoreError(OSError):
    """A request to an object store failed."""

    number = errno.EIO
    """`errno` value of all instances of this class."""
    is_final = False
    """Whether repeating the same request will fail again."""

    def __init__(self, text: str, what: str, hint: str = "") -> None:
        """`text` is the problem, `what` the address that was requested, `hint` how to fix it."""
        super().__init__(self.number, text, what)
        self.hint = hint

    def __reduce__(self) -> Any:
        return type(self), (self.strerror, self.filename, self.hint)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}{f'; {self.hint}' if self.hint else ''}"


class Busy(StoreError):
    """The store asks for fewer requests or does not answer. The request is repeated."""

    tries = 8
    """Total number of times that the request is sent."""


class NoAnswer(Busy):
    """No server has ever answered at the address of a store. The address may be wrong."""


class Altered(Busy):
    """The store received a body with another checksum: the bytes changed in transit."""

    tries = 3


class Unconfirmed(StoreError):
    """The response to a write does not show that the object was stored. A proxy or a login page may have answered."""


class NotCompleted(StoreError):
    """The store could not combine the parts of an upload."""


class TooLarge(StoreError):
    """An object has more parts than one upload may have."""

    number = errno.EFBIG


class Misconfigured(StoreError):
    """An endpoint, a proxy or a secret has an unusable value."""

    number = errno.EINVAL


class Missing(StoreError, FileNotFoundError):
    """The object, the upload or the bucket does not exist."""

    number = errno.ENOENT


class MissingBucket(Missing):
    """The bucket does not exist."""


class Denied(StoreError, PermissionError):
    """The credentials are missing or wrong, or do not permit the request."""

    number = errno.EACCES
    is_final = True


class Forbidden(Denied):
    """Access to one object is denied, for example because it is archived. Other objects may be readable."""


class NoLogin(Denied):
    """The credentials are missing, expired or unknown to the store. The user must log in again."""


class Changed(StoreError):
    """The object has another version than requested, because it was written meanwhile or already exists."""

    number = errno.ESTALE
