"""Multipart uploads to S3 that another process can resume."""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from windlass.compat import override
from windlass.runs.clock import Clock
from windlass.storage.digest import Parts, combined, from_s3, to_s3
from windlass.storage.files import write_whole
from windlass.storage.place import Buffer, PartialFile, joined, store_errors, system_errors
from windlass.stores.errors import Busy, Missing, MissingBucket, StoreError
from windlass.stores.s3.uploads import Stored, StoredPart, Uploads

COMPLETING_PAUSES: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Pauses in seconds between requests for an object that the store may still be combining. VersityGW took 10 s for 1 GB
under load."""


def stored_digest(stored: Stored) -> str:
    """Returns the digest of a stored object; empty if S3 has no checksum, or a checksum over parts of other sizes."""
    digest, parts = from_s3(stored.checksum), len(Parts.of(stored.size))
    is_ours = digest.startswith("sha256:" if parts == 1 else f"sha256-{parts}:")
    return digest if is_ours else ""


def end_uploads(uploads_of: Callable[[str], Uploads], source: str, state: Path) -> None:
    """Aborts the uploads of this source that are recorded in `state`. Uploads that fail to abort are left to a later
    copy.

    `uploads_of` returns the uploads of a key.
    """
    for note in state.glob("*.upload"):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(note.read_bytes())
            if found["source"].rpartition(" ")[0] == source:
                with suppress(Missing):
                    uploads_of(found["key"]).end(found["upload"])
                note.unlink()


class S3Upload(PartialFile):
    """One multipart upload. S3 verifies the SHA-256 of each part on arrival and lists the stored parts."""

    def __init__(
        self,
        uploads: Uploads,
        parts: Parts,
        source: str,
        state: Path,
        clock: Clock | None = None,
    ) -> None:
        """Resumes the upload of this source that is recorded in `state`, or creates one. Raises StorageError."""
        self._clock = clock or Clock()
        self._uploads, self._parts = uploads, parts
        bucket, key = uploads.bucket, uploads.key
        self._note = state / f"{hashlib.sha256(f'{bucket}/{key}'.encode()).hexdigest()[:40]}.upload"
        self._etags: dict[int, str] = {}
        self._head = {"bucket": bucket, "key": key, "size": parts.size, "source": source}
        self._completed = ""
        """ETag of the object if an earlier copy has completed the upload; otherwise empty."""
        with store_errors(key):
            self._id, self.done = self._known()
            if not self._id:
                self._id = uploads.create()
                with system_errors(key):
                    state.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._write_note()

    @override
    def write(
        self, number: int, pieces: Iterable[Buffer], moved: Callable[[int], object] = lambda _num_bytes: None
    ) -> bytes:
        body = bytes(joined(pieces))
        digest = hashlib.sha256(body).digest()
        with store_errors(self._uploads.key):
            self._etags[number] = self._uploads.send(self._id, number + 1, body, to_s3(digest), moved)
        return digest

    @override
    async def finish(self, digests: list[bytes]) -> str:
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
                    # The upload was completed by an earlier request whose response was lost.
                    if etag := self._etag_of(combined(digests)):
                        return etag
                    raise

        return await asyncio.to_thread(complete)

    @override
    def forget(self) -> None:
        with system_errors(self._uploads.key):
            self._note.unlink(missing_ok=True)

    @override
    async def discard(self) -> None:
        with store_errors(self._uploads.key):
            await asyncio.to_thread(self._uploads.end, self._id)
        self.forget()

    def _write_note(self, **more: object) -> None:
        with system_errors(self._uploads.key):
            write_whole(self._note, json.dumps({**self._head, "upload": self._id, **more}).encode())

    def _known(self) -> tuple[str, dict[int, bytes]]:
        """Returns the recorded upload of the same source and its parts. Aborts an upload of another source to
        this key.
        """
        try:
            found = json.loads(self._note.read_bytes())
            upload, digests = str(found.pop("upload", "")), [bytes.fromhex(one) for one in found.pop("digests", ())]
        except (OSError, ValueError, TypeError, AttributeError):
            return "", {}
        if found != self._head:
            with suppress(Exception):  # an upload that is not aborted here is aborted by the bucket's lifecycle rule
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
        """Waits for the object and returns its ETag; empty if it does not appear.

        A store continues a completion whose client was killed, and may list neither the upload nor the object
        meanwhile.
        """
        is_recent = self._clock.time() - self._note.stat().st_mtime < sum(COMPLETING_PAUSES)
        for pause in COMPLETING_PAUSES if is_recent else ():
            if etag := self._etag_of(digest):
                return etag
            self._clock.wait(pause)
        return self._etag_of(digest)

    def _etag_of(self, digest: str) -> str:
        """Returns the ETag of the object if S3 has this digest for it; otherwise empty."""
        try:
            found = self._uploads.stored()
        except Busy:
            raise
        except StoreError:  # S3 reports a missing object as forbidden to clients that may not list the bucket
            return ""
        return found.etag if found.size == self._parts.size and from_s3(found.checksum) == digest else ""

    def _listed(self, upload: str) -> Iterator[tuple[int, bytes]]:
        for part in self._uploads.parts(upload):
            number = part.number - 1
            if 0 <= number < len(self._parts) and part.size == self._parts.span(number)[1] and part.checksum:
                self._etags[number] = part.etag
                yield number, b64decode(part.checksum)
