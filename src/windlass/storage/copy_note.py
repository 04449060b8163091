"""CopyNote of a copy that left nothing to do: by it the next one compares two listings, and reads no manifest.

It has a digest of what each place listed. If both are as they were, and the manifest too, each file is where it was.
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
"""At most, into which a listing is cut."""
LEAST: Final = 4000
"""Names in a range: each may cost one page more than it has."""


@dataclass(frozen=True)
class CopyNote:
    """What two places had when nothing was left to do."""

    source: str
    """Digest of its listing."""
    destination: str
    manifest: str
    """SHA-256 of the manifest of the destination, as it is stored."""
    digest: str
    """Of the set."""
    num_files: int
    num_bytes: int
    cuts: tuple[str, ...] = ()
    """See `cuts`."""


class CopyNoteFile:
    """The note of a copy between two places, in a file of this user; without one nothing is noted."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def read(self, stored: bytes | None) -> CopyNote | None:
        """The note, if the destination has stored the manifest of that copy."""
        if self._path is None or stored is None:
            return None
        try:
            found = json.loads(self._path.read_bytes())
            note = CopyNote(**{**found, "cuts": tuple(map(str, found["cuts"]))})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return note if note.manifest == hashlib.sha256(stored).hexdigest() else None

    def write(self, source: Iterable[Entry], destination: Callable[[], str], manifest: Manifest, stored: bytes) -> None:
        """Note what both places have, the destination by its digest.

        Without a note the next copy takes longer, so an error is no failure.
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
    """Names by which a listing of about these, which are in order, is cut into ranges that are asked for at once."""
    number = min(RANGES, len(names) // LEAST)
    return tuple(names[len(names) * at // number] for at in range(1, number))
