"""Manifest of a set of files: name, size and digest of each file, and one digest of the whole set.

The format is JSON lines: a header with the digest and the number of files, then one line per file, sorted by name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from json.encoder import encode_basestring_ascii
from typing import Final

from windlass.storage.names import OWN, own_file, problem

NAME: Final = f"{OWN}/manifest.jsonl"
"""Name of the manifest in a store."""
IN_FOLDER: Final = own_file(NAME)
VERSION: Final = 1
_DIGEST: Final = re.compile(r"sha256(-\d{1,5})?:[0-9a-f]{64}")


class BadManifest(ValueError):
    """The manifest is damaged or has another version."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a set."""

    name: str
    size: int
    digest: str
    """Digest of the content, in the format of `digest.py`."""
    source: str = ""
    """Version of the source file from which this file was copied, in the format of its place."""
    version: str = ""
    """Version of the file itself."""
    is_damaged: bool = False
    """Whether `verify` found other content under this version; the next copy fetches the file again."""


@dataclass(frozen=True)
class Manifest:
    """All files of a set."""

    files: Mapping[str, File] = field(repr=False)

    @classmethod
    def of(cls, files: Iterable[File]) -> Manifest:
        """Returns the manifest of these files."""
        return cls({one.name: one for one in sorted(files, key=lambda one: one.name)})

    @cached_property
    def digest(self) -> str:
        """Digest of the set. The digest covers only names, sizes and digests, so that equal sets have equal digests
        everywhere.
        """
        whole = hashlib.sha256()
        for one in self.files.values():
            # Same bytes as json.dumps([name, size, digest]), ten times as fast.
            whole.update(f'[{encode_basestring_ascii(one.name)}, {one.size}, "{one.digest}"]\n'.encode())
        return f"set:{whole.hexdigest()}"

    def with_damage(self, damaged: Iterable[File]) -> Manifest:
        """Returns a copy that marks these files as damaged, unless they were written since."""
        known = set(damaged)
        return Manifest.of(replace(one, is_damaged=True) if one in known else one for one in self.files.values())

    @property
    def num_bytes(self) -> int:
        """Total size of the set in bytes."""
        return sum(one.size for one in self.files.values())

    def to_bytes(self) -> bytes:
        """Returns the stored form of the manifest."""
        header = {"windlass": "manifest", "version": VERSION, "digest": self.digest, "files": len(self.files)}
        lines = [header, *map(line, self.files.values())]
        return b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in lines)

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Parses the output of `to_bytes`. Raises BadManifest."""
        try:
            header, *lines = json.loads(b"[" + b",".join(data.splitlines()) + b"]")
            if header.get("windlass") != "manifest" or header.get("version") != VERSION:
                raise BadManifest(f"its header is {str(header)[:80]}")
            found = cls.of(map(from_line, lines))
        except (ValueError, AttributeError) as error:
            raise error if isinstance(error, BadManifest) else BadManifest(f"it cannot be read: {error}") from error
        if found.digest != header.get("digest") or len(found.files) != len(lines):
            raise BadManifest("its digest does not match its lines")
        return found


def line(one: File) -> dict[str, object]:
    """Converts a file to a JSON object."""
    kept = {"name": one.name, "size": one.size, "digest": one.digest, "source": one.source, "version": one.version}
    return {name: value for name, value in kept.items() if value != ""} | ({"damaged": True} if one.is_damaged else {})


def from_line(found: object) -> File:
    """Parses the output of `line`. Raises BadManifest."""
    if not isinstance(found, dict):
        raise BadManifest("a line is no object")
    name, size, digest = found.get("name"), found.get("size"), found.get("digest")
    if not isinstance(name, str) or problem(name):
        raise BadManifest(f"it has the name {str(name)[:80]!r}")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise BadManifest(f"{name} has the size {size!r}")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise BadManifest(f"{name} has the digest {str(digest)[:80]!r}")
    is_damaged = found.get("damaged") is True
    return File(name, size, digest, str(found.get("source", "")), str(found.get("version", "")), is_damaged)
