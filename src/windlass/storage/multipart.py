"""Uploads to S3 in parts that another process can go on with."""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from windlass.runs.clock import Clock
from windlass.storage.digest import Parts, combined, from_s3, to_s3
from windlass.storage.files import write_whole
from windlass.storage.place import Buffer, PartialFile, joined, store_errors, system_errors
from windlass.stores.errors import Busy, Missing, MissingBucket, StoreError
from windlass.stores.s3.uploads import Stored, StoredPart, Uploads

COMPLETING_PAUSES: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between requests for an object that the store may still combine: VersityGW took 10 s for 1 GB under load."""


def stored_digest(stored: Stored) -> str:
    """The digest of an object as ours; empty where S3 keeps none, or one of other parts."""
    digest, parts = from_s3(stored.checksum), len(Parts.of(stored.size))
    is_ours = digest.startswith("sha256:" if parts == 1 else f"sha256-{parts}:")
    return digest if is_ours else ""


def end_uploads(uploads_of: Callable[[str], Uploads], source: str, state: Path) -> None:
    """End the uploads that `state` has of the source with this address; one that cannot be is ended after another copy.

    `uploads_of` gives the uploads of a key.
    """
    for note in state.glob("*.upload"):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(note.read_bytes())
            if found["source"].rpartition(" ")[0] == source:
                with suppress(Missing):
                    uploads_of(found["key"]).end(found["upload"])
                note.unlink()


class S3Upload(PartialFile):
    """One multipart upload. S3 verifies the SHA-256 of each part when it comes, and lists what it has."""

    def __init__(
        self,
        uploads: Uploads,
        parts: Parts,
        source: str,
        state: Path,
        clock: Clock | None = None,
    ) -> None:
        """Go on with the upload that `state` has of this source, or begin one. Raises StorageError."""
        self._clock = clock or Clock()
        self._uploads, self._parts = uploads, parts
        bucket, key = uploads.bucket, uploads.key
        self._note = state / f"{hashlib.sha256(f'{bucket}/{key}'.encode()).hexdigest()[:40]}.upload"
        self._etags: dict[int, str] = {}
        self._head = {"bucket": bucket, "key": key, "size": parts.size, "source": source}
        self._completed = ""
        """ETag of the object, where an earlier copy has completed the upload."""
        with store_errors(key):
            self._id, self.done = self._known()
            if not self._id:
                self._id = uploads.create()
                with system_errors(key):
                    state.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._write_note()

    def write(
        self, number: int, pieces: Iterable[Buffer], moved: Callable[[int], object] = lambda _num_bytes: None
    ) -> bytes:
        """See `PartialFile`."""
        body = bytes(joined(pieces))
        digest = hashlib.sha256(body).digest()
        with store_errors(self._uploads.key):
            self._etags[number] = self._uploads.send(self._id, number + 1, body, to_s3(digest), moved)
        return digest

    async def finish(self, digests: list[bytes]) -> str:
        """See `PartialFile`."""
        if self._completed:
            return self._completed
        parts = [
            StoredPart(number + 1, self._etags[number], self._parts.span(number)[1], to_s3(digest))
            for number, digest in enumerate(digests)
        ]

        def complete() -> str:
            self._write_note(digests=[digest.hex() for digest in digests])
            with store_errors(self._uploads.key):
                try:
                    return self._uploads.complete(self._id, parts)
                except MissingBucket:
                    raise
                except Missing:
                    # It was completed, and the answer was lost.
                    if etag := self._etag_of(combined(digests)):
                        return etag
                    raise

        return await asyncio.to_thread(complete)

    def forget(self) -> None:
        """See `PartialFile`."""
        with system_errors(self._uploads.key):
            self._note.unlink(missing_ok=True)

    async def discard(self) -> None:
        """See `PartialFile`."""
        with store_errors(self._uploads.key):
            await asyncio.to_thread(self._uploads.end, self._id)
        self.forget()

    def _write_note(self, **more: object) -> None:
        with system_errors(self._uploads.key):
            write_whole(self._note, json.dumps({**self._head, "upload": self._id, **more}).encode())

    def _known(self) -> tuple[str, dict[int, bytes]]:
        """The upload that was begun of the same source, and its parts; another one of this key is ended."""
        try:
            found = json.loads(self._note.read_bytes())
            upload, digests = str(found.pop("upload", "")), [bytes.fromhex(one) for one in found.pop("digests", ())]
        except (OSError, ValueError, TypeError, AttributeError):
            return "", {}
        if found != self._head:
            with suppress(Exception):  # a rule of the bucket may end it
                self._uploads.end(upload)
            return "", {}
        try:
            return upload, dict(self._listed(upload))
        except MissingBucket:
            raise
        except Missing:
            if len(digests) == len(self._parts) and (etag := self._completed_etag(combined(digests))):
                self._completed = etag
                return upload, dict(enumerate(digests))
        return "", {}

    def _completed_etag(self, digest: str) -> str:
        """The ETag of the object; a store goes on with a completion whose client was killed, and may show neither the
        upload nor the object until it is done. Empty where it is not there after a while.
        """
        is_recent = self._clock.time() - self._note.stat().st_mtime < sum(COMPLETING_PAUSES)
        for pause in COMPLETING_PAUSES if is_recent else ():
            if etag := self._etag_of(digest):
                return etag
            self._clock.wait(pause)
        return self._etag_of(digest)

    def _etag_of(self, digest: str) -> str:
        """The ETag of the object, if S3 has its digest and it is this one; else empty."""
        try:
            found = self._uploads.stored()
        except Busy:
            raise
        except StoreError:  # without the right to list a bucket, what is not there is forbidden
            return ""
        return found.etag if found.size == self._parts.size and from_s3(found.checksum) == digest else ""

    def _listed(self, upload: str) -> Iterator[tuple[int, bytes]]:
        for part in self._uploads.parts(upload):
            number = part.number - 1
            if 0 <= number < len(self._parts) and part.size == self._parts.span(number)[1] and part.checksum:
                self._etags[number] = part.etag
                yield number, b64decode(part.checksum)
