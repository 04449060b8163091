"""Writes the files of a layout to a folder of work, with their digests, and moves them to where scripts read them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from windlass.errors import StorageError
from windlass.recipes.recipe import NewFile
from windlass.storage.digest import MAX_PARTS, PART_BYTES, Parts, StreamDigest
from windlass.storage.files import sync, version
from windlass.storage.manifest import File, Manifest
from windlass.storage.names import problem
from windlass.storage.place import system_errors


def write_files(
    folder: Path, files: Iterable[NewFile], entries: Iterable[str], written: Callable[[int], None]
) -> Manifest:
    """Write all files below an empty folder, and have them on the disk; `written` is called with numbers of bytes.

    Raises StorageError, also for a name that is not in one of the `entries` of the layout.
    """
    with system_errors(str(folder)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        known = tuple(entries)
        found: dict[str, File] = {}
        for one in files:
            if why := problem(one.name):
                raise StorageError(f"{one.name[:200]!r} is refused: {why}")
            if one.name in found or not any(one.name == entry or one.name.startswith(f"{entry}/") for entry in known):
                raise StorageError(f"{one.name} is refused: it is there twice, or is no part of the layout")
            found[one.name] = _write(folder / one.name, one, written)
        sync(folder)
        return Manifest.of(found.values())


def move_entries(folder: Path, entries: Iterable[str], to: Path) -> None:
    """Move entries to where they are read; goes on where an earlier call was ended. Raises StorageError."""
    with system_errors(str(to)):
        for entry in entries:
            if (folder / entry).exists():
                (to / entry).parent.mkdir(parents=True, exist_ok=True)
                (folder / entry).rename(to / entry)
        sync(to)


def _write(path: Path, one: NewFile, written: Callable[[int], None]) -> File:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = StreamDigest(PART_BYTES)
    with open(path, "xb") as file:
        for piece in one.pieces:
            file.write(piece)
            digest.update(piece)
            written(len(piece))
    found = path.stat()
    if found.st_size > MAX_PARTS * PART_BYTES:  # a larger file has larger parts
        raise StorageError("a file of a layout has more than 78 GiB")
    return File(one.name, found.st_size, digest.digest(), version=version(found))


def digest_of(path: Path) -> str:
    """The digest of a file that is there. Raises StorageError."""
    with system_errors(str(path)), open(path, "rb") as file:
        digest = StreamDigest(Parts.of(path.stat().st_size).part_bytes)
        while piece := file.read(PART_BYTES):
            digest.update(piece)
    return digest.digest()
