"""Downloads one file: verified by its checksums, resumed inside the file, under its name only once it is complete."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from windlass.errors import StorageError
from windlass.recipes.recipe import Download
from windlass.recipes.source import Answer, Interrupted, Source
from windlass.storage.files import version, write_whole
from windlass.storage.journal import boot_id
from windlass.storage.place import system_errors
from windlass.storage.progress import Progress
from windlass.storage.retry import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, TRIES

SYNC_BYTES: Final = 256 << 20
"""What was not synced may be lost with the power."""
MAX_ASKED_PAUSE_SECONDS: Final = 60.0
READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A file that is complete."""

    name: str
    url: str
    """Where it was read; of this machine, if from a folder."""
    num_bytes: int
    sha256: str
    verified_by: str
    """Who published the checksums that it matches; empty where none is known."""


class Downloading:
    """The download of one file to a folder."""

    def __init__(
        self,
        what: Download,
        source: Source,
        folder: Path,
        progress: Progress,
        pause: Callable[[float], None] = time.sleep,
        boot: str | None = None,
        sync_bytes: int = SYNC_BYTES,
    ) -> None:
        """`boot` identifies the time since the machine was started; the file is synced after each `sync_bytes`."""
        self._what, self._source, self._progress, self._pause = what, source, progress, pause
        self._boot = boot_id() if boot is None else boot
        self._sync_bytes = sync_bytes
        self._path = folder / what.name
        self._part = folder / f"{what.name}.partial"
        self._state = folder / f"{what.name}.state"
        self._best = 0
        """Bytes that were ever there: only beyond them a try counts as progress."""
        self._hashes: dict[str, Any] = {}
        self._num_hashed = -1
        """Bytes from the beginning of the file that are in the hashes: one process need not read it again."""
        self._is_counted = False
        """Whether the size that the host has stated is in the progress."""

    def run(self) -> Downloaded:
        """Fetch what is missing. Raises StorageError; what was fetched is kept, unless it is damaged."""
        with system_errors(str(self._path)):
            if (done := self._done()) is not None:
                self._progress.bytes_done += done.num_bytes
                return done
            self._fetch()
            done = self._verified()
            with open(self._part, "rb") as file:
                os.fsync(file.fileno())
                kept = {**dataclasses.asdict(done), "file": version(os.fstat(file.fileno()))}
            write_whole(self._state, json.dumps(kept).encode())
            self._part.replace(self._path)
            return done

    def _done(self) -> Downloaded | None:
        """What an earlier download has completed and verified."""
        found = self._read_state()
        if not self._path.exists() or found.pop("file", "") != version(self._path.stat()):
            return None
        try:
            return Downloaded(**found)
        except TypeError:  # of another version
            return None

    def _fetch(self) -> None:
        failed = 0
        self._drop_unsynced()
        self._best = self._have()
        self._progress.bytes_done += self._best
        while True:
            try:
                self._continue()
                return
            except Interrupted as error:
                failed = 1 if self._have() > self._best else failed + 1
                self._best = max(self._best, self._have())
                if failed == TRIES:
                    raise
                asked = min(MAX_ASKED_PAUSE_SECONDS, error.pause_seconds)
                own = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (failed - 1)) * (0.5 + random.random())
                self._pause(max(asked, own))

    def _continue(self) -> None:
        have, state = self._have(), self._read_state()
        known = str(state.get("version", "")) if state.get("url") == self._source.url else ""
        if not known and not self._what.checksums:
            have = 0  # nothing would show that the rest is of another version
        if have and have == state.get("size") == (self._what.num_bytes or have):
            return
        answer = self._source.open(have, known)
        self._refuse_other_size(answer)
        if self._what.num_bytes is None and not self._is_counted:
            self._progress.num_bytes += answer.num_bytes
            self._is_counted = True
        have = self._have()
        self._progress.bytes_done -= have - answer.start
        with open(self._part, "ab") as file:
            file.truncate(answer.start)
            self._refuse_lack_of_space(answer)
            os.fsync(file.fileno())
            self._write_state(answer, synced=answer.start)
            self._hash_up_to(answer.start)
            self._write(answer, file)

    def _write(self, answer: Answer, file: IO[bytes]) -> None:
        have = synced = answer.start
        with closing(answer.pieces):
            for piece in answer.pieces:
                file.write(piece)
                have += len(piece)
                self._hash(piece)
                self._progress.bytes_done += len(piece)
                self._progress.bytes_moved += len(piece)
                if have - synced >= self._sync_bytes:
                    file.flush()
                    os.fsync(file.fileno())
                    synced = have
                    self._write_state(answer, synced)

    def _verified(self) -> Downloaded:
        """Compare with the checksums; what does not match is removed. Raises StorageError."""
        self._hash_up_to(self._have())
        found = self._hashes
        for checksum in self._what.checksums:
            name, _, expected = checksum.partition(":")
            if found[name].hexdigest() != expected:
                self._discard()
                raise StorageError(
                    f"{self._source.url} is damaged, or not the file of the recipe: its {name} is "
                    f"{found[name].hexdigest()}, and {self._what.checksum_by} publishes {expected}",
                    "it was removed: fetch again, or name another mirror: --from URL",
                )
        by = self._what.checksum_by if self._what.checksums else ""
        return Downloaded(self._what.name, self._source.url, self._have(), found["sha256"].hexdigest(), by)

    def _hash_up_to(self, num_bytes: int) -> None:
        """Have so many bytes of the partial file in the hashes."""
        if self._num_hashed == num_bytes:
            return
        names = {"sha256", *(one.partition(":")[0] for one in self._what.checksums)}
        self._hashes, self._num_hashed = {name: hashlib.new(name) for name in names}, 0
        with open(self._part, "rb") as file:
            while piece := file.read(min(READ_BYTES, num_bytes - self._num_hashed)):
                self._hash(piece)

    def _hash(self, piece: bytes) -> None:
        for one in self._hashes.values():
            one.update(piece)
        self._num_hashed += len(piece)

    def _refuse_other_size(self, answer: Answer) -> None:
        expected = self._what.num_bytes
        if expected is not None and answer.num_bytes != expected:
            answer.pieces.close()
            raise StorageError(
                f"{self._source.url} has {answer.num_bytes:,} bytes, and the file of the recipe {expected:,}",
                "the host has another version: name a mirror: --from URL",
            )

    def _refuse_lack_of_space(self, answer: Answer) -> None:
        missing, free = answer.num_bytes - answer.start, shutil.disk_usage(self._part.parent).free
        if missing > free:
            answer.pieces.close()
            raise StorageError(
                f"{self._source.url} needs {missing:,} bytes more, and {self._part.parent} has {free:,} free",
                "free some space, or name a folder on another disk: what is there is kept",
            )

    def _discard(self) -> None:
        for path in (self._path, self._part, self._state):
            path.unlink(missing_ok=True)

    def _have(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _drop_unsynced(self) -> None:
        """After a restart of the machine, the end of the file may be what was never written."""
        state = self._read_state()
        if self._part.exists() and state.get("boot") != self._boot:
            synced = state.get("synced", 0)
            os.truncate(self._part, min(self._have(), synced if isinstance(synced, int) and synced >= 0 else 0))

    def _read_state(self) -> dict[str, Any]:
        try:
            found = json.loads(self._state.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write_state(self, answer: Answer, synced: int) -> None:
        found = {
            "url": self._source.url,
            "version": answer.version,
            "size": answer.num_bytes,
            "synced": synced,
            "boot": self._boot,
        }
        write_whole(self._state, json.dumps(found).encode())
