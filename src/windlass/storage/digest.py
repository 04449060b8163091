"""Digest of a file: the SHA-256 of its content or of the SHA-256 of its parts, so that each part can be verified alone.

A file of one part has `sha256:HEX`. A file of N parts has `sha256-N:HEX`, the SHA-256 of the concatenated digests of
its parts. S3's composite checksum of a multipart upload with equal parts has the same value, so that a store can
confirm an upload without a download.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from windlass.stores.part_sizes import COPY_PART_BYTES, MAX_PARTS


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a file: all of one size, except that the last may be shorter."""

    size: int
    part_bytes: int

    @classmethod
    def of(cls, size: int) -> Parts:
        """Returns the parts of a file of this size: 8 MiB each, doubled until there are at most 10,000."""
        part_bytes = COPY_PART_BYTES
        while size > MAX_PARTS * part_bytes:
            part_bytes *= 2
        return cls(size, part_bytes)

    def __len__(self) -> int:
        return max(1, -(-self.size // self.part_bytes))

    def span(self, number: int) -> tuple[int, int]:
        """Returns the offset and the length of a part in bytes."""
        start = number * self.part_bytes
        return start, min(self.part_bytes, self.size - start)


class StreamDigest:
    """Digest of a file that is read as a stream."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._done: list[bytes] = []
        self._part = hashlib.sha256()
        self._left = part_bytes

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Adds the next bytes."""
        rest = memoryview(data)
        while rest:
            piece, rest = rest[: self._left], rest[self._left :]
            self._part.update(piece)
            self._left -= len(piece)
            if not self._left:
                self._done.append(self._part.digest())
                self._part, self._left = hashlib.sha256(), self._part_bytes

    def digest(self) -> str:
        """Returns the digest of all bytes so far."""
        is_whole = self._left == self._part_bytes and self._done
        return combined(self._done if is_whole else [*self._done, self._part.digest()])


def combined(digests: Sequence[bytes]) -> str:
    """Returns the digest of a file whose parts have these SHA-256 digests."""
    if len(digests) == 1:
        return f"sha256:{digests[0].hex()}"
    return f"sha256-{len(digests)}:{hashlib.sha256(b''.join(digests)).hexdigest()}"


def from_s3(checksum: str) -> str:
    """Converts a `ChecksumSHA256` of S3 to a digest; empty if there is none. Its part sizes may differ from `Parts`."""
    value, _, number = checksum.partition("-")
    try:
        found = b64decode(value, validate=True)
    except ValueError:
        return ""
    if len(found) != 32 or (number and not number.isdecimal()):
        return ""
    return f"sha256{'-' + number if number else ''}:{found.hex()}"


def to_s3(digest: bytes) -> str:
    """Converts a SHA-256 to the base64 form of S3."""
    return b64encode(digest).decode()
