"""Errors of all object stores, as errors of a file system: what reads checkpoints handles both alike.

Each kind of store maps its own errors to these, once. Callers catch them by class.
"""

from __future__ import annotations

import errno
from typing import Any

CHECK_CREDENTIALS = "check the credentials, and what they may do"


class StoreError(OSError):
    """A request to a store has failed."""

    number = errno.EIO
    """The `errno` of these errors."""
    is_final = False
    """Whether the same request will fail again."""

    def __init__(self, text: str, what: str, hint: str = "") -> None:
        """`text` is what was found, `what` the address that was asked for, `hint` what to try."""
        super().__init__(self.number, text, what)
        self.hint = hint

    def __reduce__(self) -> Any:
        return type(self), (self.strerror, self.filename, self.hint)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}{f'; {self.hint}' if self.hint else ''}"


class Busy(StoreError):
    """A store asks for fewer requests, or does not answer: the request is repeated."""

    tries = 8
    """How often the request is sent in all."""


class NoAnswer(Busy):
    """No server answers at the address of a store, and none has before: the address may be wrong."""


class Altered(Busy):
    """The store received other bytes than were sent: they were changed on their way."""

    tries = 3


class Unconfirmed(StoreError):
    """The answer to a write is not that of a store which has the object: a login page or a proxy may have answered."""


class NotCompleted(StoreError):
    """The store could not combine the parts of an upload."""


class TooLarge(StoreError):
    """An object has more parts than one upload may have."""

    number = errno.EFBIG


class Misconfigured(StoreError):
    """An endpoint, a proxy or a secret has a value that cannot be used."""

    number = errno.EINVAL


class Missing(StoreError, FileNotFoundError):
    """There is no such object, no such upload, or no such bucket."""

    number = errno.ENOENT


class MissingBucket(Missing):
    """There is no such bucket."""


class Denied(StoreError, PermissionError):
    """The keys are missing, wrong, or do not allow it."""

    number = errno.EACCES
    is_final = True


class Forbidden(Denied):
    """This one object is denied, for example an archived one; others may not be."""


class NoLogin(Denied):
    """There are no keys, they have expired, or the store does not know them: another login is needed."""


class Changed(StoreError):
    """An object is not the one that was asked for: it was written meanwhile, or is there already."""

    number = errno.ESTALE
