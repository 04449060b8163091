"""Errors of a store, as errors of a file system: what reads checkpoints handles both alike."""

from __future__ import annotations

import errno

CHECK_CREDENTIALS = "check the credentials, and what they may do"


class StoreError(OSError):
    """A request to a store has failed."""

    is_final = False
    """Whether the same request will fail again."""

    def __init__(self, number: int, text: str, what: str) -> None:
        super().__init__(number, text, what)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class Busy(StoreError):
    """A store asks for fewer requests, or does not answer: the request is repeated."""

    tries = 8
    """How often the request is sent in all."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__(errno.EIO, text, what)


class NoAnswer(Busy):
    """Nothing listens or answers at the address of a store, or its name has none, and it has never answered: it may be
    wrong."""


class Altered(Busy):
    """The store received other bytes than were sent: they were changed on their way."""

    tries = 3


class Unconfirmed(StoreError):
    """The answer to a write is not that of a store which has the object: a login page or a proxy may have answered."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__(errno.EIO, text, what)


class Missing(StoreError, FileNotFoundError):
    """There is no such object, or no such bucket."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__(errno.ENOENT, text, what)


class MissingBucket(Missing):
    """There is no such bucket."""


class Denied(StoreError, PermissionError):
    """The keys are missing, wrong, or do not allow it."""

    is_final = True

    def __init__(self, text: str, what: str) -> None:
        super().__init__(errno.EACCES, text, what)


class Forbidden(Denied):
    """This one object is denied, for example an archived one; others may not be."""


class NoLogin(Denied):
    """There are no keys, they have expired, or the store does not know them: another login is needed."""


class Changed(StoreError):
    """An object is not the one that was asked for: it was written meanwhile, or is there already."""

    def __init__(self, text: str, what: str) -> None:
        super().__init__(errno.ESTALE, text, what)
