"""Verifies a set of files: reads every file and compares it with the manifest of its place."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from windlass.errors import StorageError
from windlass.storage import manifest as manifests
from windlass.storage.digest import Parts, combined
from windlass.storage.manifest import BadManifest, File, Manifest
from windlass.storage.place import Entry, Place
from windlass.storage.progress import Progress, Refusal
from windlass.storage.retry import repeated
from windlass.storage.sequential import Stream
from windlass.storage.window import MAX_REQUESTS, Window

DIFFERENT: Final = "its content is not that of the manifest"


@dataclass(frozen=True)
class Verified:
    """Result of verifying a set."""

    digest: str
    """Digest of the set in its manifest."""
    num_files: int
    num_bytes: int
    problems: tuple[Refusal, ...]
    """Files that are missing, damaged or cannot be read, by name."""
    extra: tuple[str, ...]
    """Existing files that are not in the manifest."""
    damaged: tuple[File, ...] = ()
    """Files whose content differs although their size is right."""


async def read_manifest(place: Place) -> Manifest:
    """Reads the manifest of a place. Raises StorageError if it is missing or unreadable."""
    try:
        data = await repeated(lambda: place.read_own(manifests.NAME))
        if data is None:
            raise StorageError(f"{place.address} has no manifest", "windlass data copy writes one with what it copies")
        return Manifest.from_bytes(data)
    except BadManifest as error:
        raise StorageError(f"{place.address}: the manifest is damaged: {error}", "copy the data again") from error


async def verify(place: Place, progress: Progress, manifest: Manifest | None = None) -> Verified:
    """Reads every byte of a set and compares it with a manifest, by default its own. Raises StorageError
    without one.
    """
    manifest = manifest or await read_manifest(place)
    entries = {one.name: one for one in await place.listed()}
    there = [(one, entries[one.name]) for one in manifest.files.values() if one.name in entries]
    damaged: list[File] = []
    problems = [Refusal(name, "it is missing") for name in manifest.files if name not in entries]
    progress.num_files, progress.num_bytes = len(there), sum(one.size for one, _ in there)
    progress.is_listing = False
    window, waiting = Window(), iter(there)
    async with asyncio.TaskGroup() as group:
        for _ in range(MAX_REQUESTS):
            group.create_task(_work(place, window, waiting, progress, problems, damaged))
    extra = tuple(sorted(name for name in entries if name not in manifest.files))
    found = tuple(sorted(problems, key=lambda one: one.name))
    return Verified(manifest.digest, len(manifest.files), manifest.num_bytes, found, extra, tuple(damaged))


async def note_damage(place: Place, damaged: Iterable[File]) -> None:
    """Marks files as damaged in the manifest of a place, so that the next copy fetches them. Raises StorageError.

    No other process may write the manifest meanwhile.
    """
    manifest = await read_manifest(place)
    await repeated(lambda: place.write_own(manifests.NAME, manifest.with_damage(damaged).to_bytes()))


async def _work(
    place: Place,
    window: Window,
    waiting: Iterator[tuple[File, Entry]],
    progress: Progress,
    problems: list[Refusal],
    damaged: list[File],
) -> None:
    for one, entry in waiting:
        try:
            if why := await _difference(place, window, one, entry, progress):
                problems.append(Refusal(one.name, why))
                damaged += [one] if why is DIFFERENT else []
        except StorageError as error:
            problems.append(Refusal(one.name, error.message))
        progress.files_done += 1


async def _difference(place: Place, window: Window, one: File, entry: Entry, progress: Progress) -> str:
    """Returns how a file differs from its manifest entry; empty if it is equal."""
    if entry.problem:
        return entry.problem
    if entry.size != one.size:
        return f"it has {entry.size:,} bytes, not {one.size:,}"
    return "" if await digest_of(place, window, entry, progress) == one.digest else DIFFERENT


async def digest_of(place: Place, window: Window, entry: Entry, progress: Progress) -> str:
    """Reads a file and returns its digest. Raises StorageError."""
    parts, digests, stream = Parts.of(entry.size), [], Stream(place, entry)
    for number in range(len(parts)):
        start, length = parts.span(number)
        work = partial(_sha256, stream, start, length)
        digests.append(await repeated(partial(window.run, length, work), window))
        progress.bytes_done += length
        progress.bytes_moved += length
    return combined(digests)


def _sha256(stream: Stream, start: int, length: int) -> bytes:
    found = hashlib.sha256()
    for piece in stream.read(start, length) if length else ():
        found.update(piece)
    return found.digest()
