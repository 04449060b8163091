"""Note of a copy that found both places equal: the next copy only compares listings and reads no manifest.

The note contains a digest of each place's listing. If both listings and the manifest are unchanged, nothing is copied.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from windlass.storage.files import write_whole
from windlass.storage.manifest import Manifest
from windlass.storage.place import Entry
from windlass.storage.walk import digest_of

RANGES: Final = 16
"""Maximum number of ranges into which a listing is split."""
MIN_NAMES: Final = 4000
"""Minimum number of names in a range: each additional range may cost one more page request."""


@dataclass(frozen=True)
class CopyNote:
    """State of the source and the destination when a copy found no differences."""

    source: str
    """Digest of the source's listing."""
    destination: str
    manifest: str
    """SHA-256 of the stored manifest of the destination."""
    digest: str
    """Digest of the set."""
    num_files: int
    num_bytes: int
    cuts: tuple[str, ...] = ()
    """Names that split the next listing into ranges."""


class CopyNoteFile:
    """File with the note of a copy between two places. Without a path it stores nothing."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def read(self, stored: bytes | None) -> CopyNote | None:
        """Returns the note of the last copy; None if it is unreadable or the destination's manifest changed since."""
        if self._path is None or stored is None:
            return None
        try:
            found = json.loads(self._path.read_bytes())
            note = CopyNote(**{**found, "cuts": tuple(map(str, found["cuts"]))})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return note if note.manifest == hashlib.sha256(stored).hexdigest() else None

    def write(self, source: Iterable[Entry], destination: Callable[[], str], manifest: Manifest, stored: bytes) -> None:
        """Writes the state of both places; the destination is given as its digest.

        Errors are ignored, because without a note the next copy only takes longer.
        """
        if self._path is None:
            return
        note = CopyNote(
            digest_of(source),
            destination(),
            hashlib.sha256(stored).hexdigest(),
            manifest.digest,
            len(manifest.files),
            manifest.num_bytes,
            cuts(list(manifest.files)),
        )
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(asdict(note)).encode())


def cuts(names: Sequence[str]) -> tuple[str, ...]:
    """Returns names that split a listing of about these sorted names into ranges to list concurrently."""
    number = min(RANGES, len(names) // MIN_NAMES)
    return tuple(names[len(names) * at // number] for at in range(1, number))
