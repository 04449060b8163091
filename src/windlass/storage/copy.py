"""Copies a set of files between two places: in parallel, verified, and resuming an interrupted copy."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from windlass.errors import StorageError
from windlass.storage import manifest as manifests
from windlass.storage.copy_note import CopyNote, CopyNoteFile, cuts
from windlass.storage.digest import Parts, StreamDigest, combined
from windlass.storage.folder import Folder
from windlass.storage.helpers import Helpers, check, move, num_cores, permanently_damaged
from windlass.storage.journal import Journal
from windlass.storage.manifest import BadManifest, File, Manifest
from windlass.storage.names import clashes, problem
from windlass.storage.place import (
    Buffer,
    Damaged,
    Entry,
    Fatal,
    Forbidden,
    PartialFile,
    Place,
    SourceChanged,
    Throttled,
    is_same_version,
)
from windlass.storage.progress import Copied, Counter, Preview, Progress, Refusal
from windlass.storage.retry import repeated
from windlass.storage.sequential import Sequential, Stream
from windlass.storage.verify import digest_of as content_digest
from windlass.storage.walk import digest_of
from windlass.storage.window import MAX_REQUESTS, Window
from windlass.stores.part_sizes import COPY_PART_BYTES

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

NOTHING: Final = CopyNoteFile()
SETTLE_SECONDS: Final = 2.0
SLICE_SECONDS: Final = 0.05
"""Seconds for which a thread copies small files before it checks the concurrency limit again."""
FORBIDDEN_MOST: Final = 1000
"""The copy stops after this many refused files if none could be copied: the permissions are probably wrong, not the
files."""
STREAM_PARTS: Final = 5
"""Parts of a large streamed file that are in memory at once."""


@dataclass
class _Large:
    entry: Entry
    parts: Parts
    partial: PartialFile | None = None
    digests: dict[int, bytes] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_over: bool = False
    """Whether the copy of this file has failed."""
    damages: list[Damaged] = field(default_factory=list)
    """Errors of the attempts that received other bytes than expected."""


class Copy:
    """One copy between two places. `run` may be called once."""

    def __init__(
        self,
        source: Place,
        destination: Place,
        journal: Journal,
        progress: Progress | None = None,
        window: Window | None = None,
        noted: CopyNoteFile = NOTHING,
        has_manifest: bool = True,
        num_helpers: Callable[[int], int] | None = None,
        by_content: bool = False,
        keeps_others: bool = False,
    ) -> None:
        """`noted` is the file that records that both places are equal, for the next copy between them.

        `has_manifest`: whether the destination has a manifest; without one, its existing files are copied again.
        `by_content`: files with equal sizes and versions are read at both places and copied if they differ.
        `keeps_others`: if the source is a part of a set, the manifest of the destination keeps its other files.
        `num_helpers` returns the number of additional processes for a number of small files; default: none.
        """
        self.progress = progress or Progress()
        self._source, self._destination = source, destination
        self._journal = journal
        self._window = window or Window(most=source.max_requests)
        self._files: dict[str, File] = {}
        """Files known to be verified at the destination."""
        self._refused: list[Refusal] = []
        self._num_forbidden = 0
        self._lock = threading.Lock()
        self._before: dict[str, File] = {}
        """Entries of the destination's files from before this copy."""
        self._expected: dict[str, File] = {}
        """Files in the manifest of the source."""
        self._noted = noted
        self._num_helpers = num_helpers
        self._helpers: Helpers | None = None
        self._has_manifest = has_manifest
        self._by_content = by_content
        self._keeps_others = keeps_others
        self._there: list[Entry] | None = None
        """Listing of a destination in a store, if it was listed."""
        self._there_digest = ""
        """Digest of the destination's listing, if it was listed."""

    async def run(self) -> Copied:
        """Copies the files that differ. Raises StorageError if no further file can be copied."""
        began = time.monotonic()
        stored = await _stored(self._destination) if self._has_manifest else None
        note = None if self._journal.files or self._by_content else self._noted.read(stored)
        before = None if note is not None else _manifest(stored)
        found = await self._listed(note, before)
        if note is not None:
            if (note.source, note.destination) == (digest_of(found), self._there_digest):
                await self._discard_partial()
                return self._unchanged(note, began)
            before = _manifest(stored)
        entries = self._accepted(await self._with_manifest(found))
        todo = await self._to_do(entries, before, self._journal.files)
        self.progress.num_files, self.progress.num_bytes = len(todo), sum(one.size for one in todo)
        self.progress.is_listing = False
        settling = asyncio.create_task(self._settle_now_and_then())
        try:
            self._start_helpers(todo)
            await self._all(self._units(todo))
        except asyncio.CancelledError:
            self._window.abandon()
            raise
        finally:
            settling.cancel()
            self._window.close()
            if self._helpers is not None:
                self._helpers.close()
            with suppress(asyncio.CancelledError):
                await settling
            await self._settle()
        is_added = self._keeps_others and self._source.is_part
        others = before.files if is_added and before is not None else {}
        manifest = Manifest.of({**others, **self._files}.values())
        # Without any copied file, no manifest is written.
        is_left = not manifest.files and before is None and bool(self._refused)
        if self._has_manifest and not is_left and (before is None or stored is None or manifest != before):
            data = stored = manifest.to_bytes()
            await repeated(lambda: self._destination.write_own(manifests.NAME, data))
        self._journal.clear()
        if not self._refused:
            await self._discard_partial()
        if stored is not None and not self._refused:
            # The listing of the destination is outdated once files have been written.
            there = self._there_digest if self.progress.files_done == 0 else ""
            self._noted.write(found, lambda: there or digest_of(manifest.files.values()), manifest, stored)
        progress = self.progress
        return Copied(
            manifest.digest,
            len(manifest.files),
            manifest.num_bytes,
            manifest.files,
            progress.files_done,
            progress.bytes_moved,
            progress.num_unchanged,
            tuple(sorted(self._refused, key=lambda one: one.name)),
            time.monotonic() - began,
        )

    async def _with_manifest(self, found: list[Entry]) -> list[Entry]:
        """Returns the listing `found`, after reading the manifest of the source. Raises StorageError if the source has
        no files.
        """
        of_source = None
        try:
            of_source = _manifest(await _stored(self._source))
        except Forbidden as error:
            self._refused.append(Refusal(manifests.NAME, error.message))
        if of_source is not None:
            self._expected = dict(of_source.files)
        is_empty_set = of_source is not None and not of_source.files
        if not found and not is_empty_set and not isinstance(self._source, Folder):
            hint = "name a bucket, and the prefix that all keys of the set begin with"
            raise StorageError(f"{self._source.address}: there is no object below it", hint)
        return found

    async def _discard_partial(self) -> None:
        """Removes partial files that no copy will resume.

        Does nothing for a part of the source: other partial files may belong to the other parts.
        """
        if not self._source.is_part:
            await self._destination.discard_partial(str(self._source.address))

    async def preview(self, written: Mapping[str, File]) -> Preview:
        """Returns what `run` would copy. `written`: files that an interrupted copy has written. Raises StorageError."""
        try:
            before = _manifest(await _stored(self._destination))
            found = await self._listed(None, before)
            todo = await self._to_do(self._accepted(await self._with_manifest(found)), before, written)
        finally:
            self._window.close()
        return Preview(tuple(todo), len(self._files), tuple(sorted(self._refused, key=lambda one: one.name)))

    # -- whether anything changed -------------------------------------------------------------------------------------

    async def _listed(self, note: CopyNote | None, before: Manifest | None) -> list[Entry]:
        names = cuts([] if before is None else list(before.files)) if note is None else note.cuts
        if note is None and (before is None or isinstance(self._destination, Folder)):
            return await self._source.listed(names)
        found, _ = await asyncio.gather(self._source.listed(names), self._look(note, names))
        return found

    async def _look(self, note: CopyNote | None, names: Sequence[str]) -> None:
        if isinstance(self._destination, Folder):
            self._there_digest = await self._destination.digest(note.num_files if note is not None else 0)
        else:
            self._there = await self._destination.listed(names)
            self._there_digest = digest_of(self._there)

    def _unchanged(self, note: CopyNote, began: float) -> Copied:
        self.progress.num_unchanged, self.progress.is_listing = note.num_files, False
        self._journal.clear()
        seconds = time.monotonic() - began
        return Copied(note.digest, note.num_files, note.num_bytes, {}, 0, 0, note.num_files, (), seconds)

    # -- which files differ -------------------------------------------------------------------------------------------

    def _accepted(self, entries: Iterable[Entry]) -> list[Entry]:
        """Returns the entries whose names are valid at the destination, and records the others as refused."""
        good = []
        for entry in sorted(entries, key=lambda one: one.name):
            if why := entry.problem or problem(entry.name) or self._destination.problem_of(entry.name):
                self._refused.append(Refusal(entry.name, why))
            else:
                good.append(entry)
        if not isinstance(self._destination, Folder):
            return good
        clashing = dict(clashes(one.name for one in good))
        self._refused += [Refusal(name, why) for name, why in clashing.items()]
        return [one for one in good if one.name not in clashing]

    async def _to_do(
        self, entries: Iterable[Entry], before: Manifest | None, written: Mapping[str, File]
    ) -> list[Entry]:
        """Returns the files to copy, the largest first. `written`: files that an interrupted copy has written."""
        known = {**(before.files if before is not None else {}), **written}
        there = await self._versions() if known else {}
        todo = []
        for entry in entries:
            one = known.get(entry.name)
            is_known = one is not None and self._is_there(one, there)
            if one is not None and is_known and not one.is_damaged and _is_of(one, entry):
                self._files[entry.name] = one
                self.progress.num_unchanged += 1
            else:
                todo.append(entry)
                if one is not None and is_known:
                    self._before[entry.name] = one
        if self._by_content:
            todo += await self._differing([one for one in entries if one.name in self._files])
        return sorted(todo, key=lambda one: -one.size)

    async def _differing(self, entries: Sequence[Entry]) -> list[Entry]:
        """Returns the files with other content at the destination, and removes them from the files known there."""
        found: list[Entry] = []
        self.progress.num_bytes, self.progress.is_listing = 2 * sum(one.size for one in entries), False
        waiting = iter(entries)

        async def work() -> None:
            for entry in waiting:
                there = Entry(entry.name, entry.size, self._files[entry.name].version)
                places = ((self._source, entry), (self._destination, there))
                try:
                    digests = [await content_digest(place, self._window, one, self.progress) for place, one in places]
                except StorageError:  # the copy itself will report the error
                    digests = ["", entry.name]
                if len(set(digests)) > 1:
                    found.append(entry)

        async with asyncio.TaskGroup() as group:
            for _ in range(MAX_REQUESTS):
                group.create_task(work())
        for entry in found:
            self._before[entry.name] = self._files.pop(entry.name)
        self.progress.num_unchanged -= len(found)
        self.progress.bytes_done = self.progress.bytes_moved = 0
        return found

    async def _versions(self) -> dict[str, str]:
        """Returns the versions of all files of a store; a folder looks up each file separately."""
        if isinstance(self._destination, Folder):
            return {}
        there = await self._destination.listed() if self._there is None else self._there
        return {one.name: one.version for one in there}

    def _is_there(self, one: File, there: dict[str, str]) -> bool:
        if isinstance(self._destination, Folder):
            return self._destination.version_of(one.name) == one.version
        return there.get(one.name) == one.version

    # -- copying ------------------------------------------------------------------------------------------------------

    def _units(self, todo: Iterable[Entry]) -> Iterator[Callable[[], Awaitable[None]]]:
        """Yields units of work: parts of large files, each followed by some small files while any are left."""
        small: deque[Entry] = deque()
        for entry in todo:
            if entry.size <= COPY_PART_BYTES:
                small.append(entry)
                continue
            if not self._destination.takes_parts:
                yield lambda entry=entry: self._whole(entry)  # type: ignore[misc]
                continue
            if self._source.is_sequential or self._source.sha256(entry):
                yield lambda entry=entry: self._in_order(entry)  # type: ignore[misc]
                continue
            large = _Large(entry, Parts.of(entry.size))
            for number in range(len(large.parts)):
                yield lambda large=large, number=number: self._part(large, number)  # type: ignore[misc]
        while (first := _first(small)) is not None:
            yield lambda size=first.size: self._some(small, size)  # type: ignore[misc]

    async def _all(self, units: Iterator[Callable[[], Awaitable[None]]]) -> None:
        async def work() -> None:
            for unit in units:
                await unit()

        async with asyncio.TaskGroup() as group:
            for _ in range(MAX_REQUESTS):
                group.create_task(work())

    def _start_helpers(self, todo: Sequence[Entry]) -> None:
        if self._num_helpers is None or not (self._source.is_sent and self._destination.is_sent):
            return
        if number := self._num_helpers(sum(one.size <= COPY_PART_BYTES for one in todo)):
            # If no more processes or files are allowed, this process copies alone.
            with suppress(OSError, RuntimeError):
                self._helpers = Helpers(self._source, self._destination, self._journal.descriptor, number, MAX_REQUESTS)
                self._window.processes = min(1 + number, num_cores())

    async def _some(self, small: deque[Entry], size: int) -> None:
        """Copies small files one after the other in one thread, because passing a file to a thread takes as long as
        copying it.
        """
        mine: deque[Entry] = deque()

        async def again(entry: Entry) -> None:
            self._window.throttled()
            with self._refusing(entry):
                await repeated(lambda: self._window.run(entry.size, lambda: self._move(entry)), self._window)

        while True:
            busy = await self._window.run(size, lambda: self._move_some(small, mine))
            if busy is not None:
                await again(busy)
            if not mine:
                return

    def _move_some(self, small: deque[Entry], mine: deque[Entry]) -> Entry | None:
        """Copies the rest of `mine` and further small files for `SLICE_SECONDS`. Returns the file whose request was
        throttled.
        """
        until, busy = time.monotonic() + SLICE_SECONDS, None
        while busy is None and time.monotonic() < until:
            helpers = self._helpers
            with suppress(IndexError):  # another thread may take the last small file first
                while len(mine) < (helpers.batch_size(len(small)) if helpers is not None else 1):
                    mine.append(small.popleft())
            if not mine:
                break
            if helpers is not None and (thread := helpers.idle()) is not None:
                busy = self._move_by(helpers, thread, mine)
            else:
                busy = self._move_here(mine.popleft())
        return busy

    def _move_by(self, helpers: Helpers, thread: Connection, mine: deque[Entry]) -> Entry | None:
        result = helpers.ask(thread, [(entry, self._expectation(entry)) for entry in mine])
        if result is None:
            return None
        self._window.spent(result.cpu_seconds)
        for outcome in result.outcomes:
            entry = mine.popleft()
            if isinstance(outcome, Throttled):
                return entry
            with self._refusing(entry):
                if isinstance(outcome, StorageError):
                    raise outcome
                self._moved(outcome.size)
                self._written(outcome, is_in_journal=True)
                self._window.answered()
        return None

    def _move_here(self, entry: Entry) -> Entry | None:
        with self._refusing(entry):
            try:
                self._move(entry)
            except Throttled:
                return entry
            self._window.answered()
        return None

    def _move(self, entry: Entry) -> None:
        one = move(self._source, self._destination, entry, self._expectation(entry))
        self._moved(one.size)
        self._written(one)

    async def _whole(self, entry: Entry) -> None:
        parts = Parts.of(entry.size)

        async def once() -> None:
            expected = await self._source.expected(entry)
            await self._window.run(STREAM_PARTS * parts.part_bytes, lambda: self._stream(entry, parts, expected))

        with self._refusing(entry):
            await repeated(once, self._window)

    def _stream(self, entry: Entry, parts: Parts, expected: str) -> None:
        digest, came, stated = StreamDigest(parts.part_bytes), 0, self._source.sha256(entry)

        def pieces() -> Iterator[Buffer]:
            nonlocal came
            stream, whole = Stream(self._source, entry), hashlib.sha256() if stated else None
            for number in range(len(parts)):  # a folder returns each requested range in memory, so ranges are small
                for piece in stream.read(*parts.span(number)):
                    digest.update(piece)
                    if whole is not None:
                        whole.update(piece)
                    self._moved(len(piece))
                    came += len(piece)
                    yield piece
            # The digest is compared before the file gets its final name.
            check(entry, digest.digest(), self._expectation(entry, expected))
            if whole is not None:
                check(entry, f"sha256:{whole.hexdigest()}", f"sha256:{stated}")

        try:
            version = self._destination.put_stream(entry.name, pieces(), parts.part_bytes, digest.digest)
        except BaseException:
            with self._lock:
                self.progress.bytes_done -= came
            raise
        self._written(_file(entry, digest.digest(), version))

    async def _in_order(self, entry: Entry) -> None:
        counter = Counter(self.progress, self._lock)
        with self._refusing(entry):
            try:
                done = await Sequential(self._source, self._destination, self._window).copy(entry, counter)
            except BaseException:
                counter.set(0)
                raise
            self._written(_file(done.entry, done.digest, done.version))
            done.partial.forget()

    async def _part(self, large: _Large, number: int) -> None:
        if large.is_over:
            return
        entry = large.entry
        start, length = large.parts.span(number)
        counter = Counter(self.progress, self._lock)

        async def once() -> bytes:
            partial = await self._partial(large)
            if number in partial.done:
                return partial.done[number]
            begun = partial.begun(number)

            def move() -> bytes:
                rest = self._source.pieces(entry, start + begun, length - begun) if begun < length else ()
                return partial.write(number, rest, counter.moved)

            counter.set(begun)
            try:
                return await self._window.run(length, move)
            except BaseException:
                counter.set(partial.begun(number))
                raise

        with self._refusing(entry, large):
            large.digests[number] = await repeated(once, self._window)
            # The event loop runs no other part before `is_last` is known.
            is_last = len(large.digests) == len(large.parts)
            if number in (await self._partial(large)).done:
                counter.set(length)
            if is_last:
                await self._finish(large)

    async def _partial(self, large: _Large) -> PartialFile:
        async with large.lock:
            if large.partial is None:
                source = f"{self._source.address} {self._source.identity(large.entry)}"
                large.partial = await self._destination.begin(large.entry, large.parts, source)
            return large.partial

    async def _finish(self, large: _Large) -> None:
        partial, entry = await self._partial(large), large.entry
        digests = [large.digests[number] for number in range(len(large.parts))]
        expected = await repeated(lambda: self._source.expected(entry), self._window)
        try:
            check(entry, combined(digests), self._expectation(entry, expected))
        except Damaged as error:
            await partial.discard()
            large.damages.append(error)
            if len(large.damages) >= Damaged.tries:
                raise permanently_damaged(entry, large.damages) from error
            large.partial, large.digests = None, {}
            with self._lock:
                self.progress.bytes_done -= entry.size
            async with asyncio.TaskGroup() as group:
                for number in range(len(large.parts)):  # the last of these parts calls `_finish` again
                    group.create_task(self._part(large, number))
            return
        version = await repeated(lambda: partial.finish(digests), self._window)
        self._written(_file(entry, combined(digests), version))
        partial.forget()

    def _expectation(self, entry: Entry, expected: str = "") -> str:
        """Returns the digest of a file in the source's manifest, or else `expected`."""
        known = self._expected.get(entry.name)
        is_known = known is not None and (known.size, known.version) == (entry.size, entry.version)
        if known is not None and is_known:
            return known.digest
        stated = self._source.sha256(entry) if entry.size <= COPY_PART_BYTES else ""
        return f"sha256:{stated}" if stated else expected

    def _moved(self, num_bytes: int) -> None:
        with self._lock:
            self.progress.bytes_done += num_bytes
            self.progress.bytes_moved += num_bytes

    def _written(self, one: File, *, is_in_journal: bool = False) -> None:
        with self._lock:
            self._files[one.name] = one
            if is_in_journal:
                self._journal.added()
            else:
                self._journal.add(one)
            self.progress.files_done += 1

    # -- failures -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _refusing(self, entry: Entry, large: _Large | None = None) -> Iterator[None]:
        """Records a failing file as refused and lets the others be copied. Raises if no other file could be copied
        either.
        """
        try:
            yield
        except Fatal:
            raise
        except StorageError as error:
            self._num_forbidden += isinstance(error, Forbidden)
            if self._num_forbidden >= FORBIDDEN_MOST and not self.progress.files_done:
                raise Fatal(error.message, error.hint) from error
            if isinstance(error, SourceChanged) and entry.name in self._before:
                self._files[entry.name] = self._before[entry.name]  # the destination still has the old file
            if large is None or not large.is_over:
                why, is_changed = error.message.removeprefix(f"{entry.name}: "), isinstance(error, SourceChanged)
                self._refused.append(Refusal(entry.name, why, not is_changed, isinstance(error, Throttled)))
            if large is not None:
                large.is_over = True

    # -- disk ---------------------------------------------------------------------------------------------------------

    async def _settle_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            await self._settle()

    async def _settle(self) -> None:
        with self._journal.settling():
            await self._destination.settle()


def _is_of(one: File, entry: Entry) -> bool:
    """Whether a file was copied from this version of its source."""
    return one.size == entry.size and is_same_version(one.source, entry.version)


def _file(entry: Entry, digest: str, version: str) -> File:
    return File(entry.name, entry.size, digest, entry.version, version)


def _first(small: deque[Entry]) -> Entry | None:
    """Removes and returns the largest remaining file, or None; several threads call this concurrently."""
    try:
        return small[0]
    except IndexError:
        return None


async def _stored(place: Place) -> bytes | None:
    return await repeated(lambda: place.read_own(manifests.NAME))


def _manifest(data: bytes | None) -> Manifest | None:
    """Parses a manifest; None if it is missing or unreadable, so that all files are copied and verified again."""
    try:
        return None if data is None else Manifest.from_bytes(data)
    except BadManifest:
        return None
