"""Sets of a cache, each in a folder that has the name of its digest.

ROOT/sets/DIGEST        a set: its `manifest.jsonl`, and its files in `files`, which do not change
ROOT/sources/KEY.json   which set a source had when it was last read
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from windlass.errors import StorageError
from windlass.storage import manifest as manifests
from windlass.storage.address import Address, key_of
from windlass.storage.files import version, write_whole
from windlass.storage.folder import Folder
from windlass.storage.manifest import BadManifest, File, Manifest
from windlass.storage.names import is_own
from windlass.storage.place import Entry, system_errors

MANIFEST: Final = "manifest.jsonl"
FILES: Final = "files"
USED: Final = "used"
"""File whose time is that of the last use of a set."""


@dataclass(frozen=True, slots=True)
class CachedSet:
    """A set that is in the cache."""

    digest: str
    """Empty for one that is not whole."""
    folder: Path
    """That of its files."""
    num_files: int
    num_bytes: int
    used_at: float = 0.0
    """Unix seconds."""
    sources: tuple[str, ...] = ()
    """Addresses that had it when they were last read."""


class SetFolder:
    """The sets below one folder. What changes them is called under the lock of the cache."""

    def __init__(self, root: Path, mode: int) -> None:
        """`mode` is that of folders that are made."""
        self._root, self._mode = root, mode

    def all(self) -> list[CachedSet]:
        """All sets, the least recently used first."""
        sources = self._sources()
        found = [_set(one, sources) for one in self._folders() if not one.name.startswith(".")]
        return sorted((one for one in found if one is not None), key=lambda one: one.used_at)

    def of(self, source: Address) -> CachedSet | None:
        """The set that a source had when it was last read, if it is still there; scripts may have changed files."""
        try:
            found = json.loads(self._note(str(source)).read_bytes())
            return _set(self._folder(found["digest"]), {})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def sound(self, files: Path) -> CachedSet | None:
        """The set of these files, or of a link to them, if each is the one that was written."""
        found = _set(files.resolve().parent, {})
        return found if found is not None and len(list(_unchanged(found))) == found.num_files else None

    def names(self, one: CachedSet | None) -> Iterable[str]:
        """The names of the files of a set, in order."""
        found = None if one is None else _manifest(one.folder.parent)
        return () if found is None else found.files

    def has_just(self, one: CachedSet, entries: Iterable[Entry]) -> bool:
        """Whether a set is just what its source lists, and as it was written."""
        return _sources_of(one) == {entry.name: (entry.size, entry.version) for entry in entries}

    def lacking_bytes(self, one: CachedSet | None, entries: Iterable[Entry]) -> int:
        """Bytes of the files that a source lists and that a set has not, or has another version of."""
        known = {} if one is None else _sources_of(one)
        return sum(entry.size for entry in entries if known.get(entry.name) != (entry.size, entry.version))

    def manifest(self, one: CachedSet) -> Manifest:
        """The manifest of a set. Raises StorageError where it cannot be read."""
        if (found := _manifest(one.folder.parent)) is None:
            raise StorageError(f"{one.folder.parent / MANIFEST} cannot be read", "windlass data rm removes the set")
        return found

    def note_damage(self, one: CachedSet, damaged: Iterable[File]) -> None:
        """These files are fetched anew for the next run that reads the set. Raises StorageError."""
        with system_errors(str(one.folder)):
            write_whole(one.folder.parent / MANIFEST, self.manifest(one).with_damage(damaged).to_bytes())

    def put(self, folder: Path, digest: str) -> CachedSet:
        """Take over a folder with `files` and their manifest. A set of this digest that is there has the same files,
        unless it was damaged. Raises StorageError.
        """
        final = self._folder(digest)
        with system_errors(str(final)):
            final.parent.mkdir(mode=self._mode, parents=True, exist_ok=True)
            if (found := self.sound(final / FILES)) is not None:
                shutil.rmtree(folder)
                return found
            if final.exists():
                self.remove(final)
            write_whole(folder / MANIFEST, (folder / FILES / manifests.IN_FOLDER).read_bytes())
            folder.rename(final)
        found = _set(final, {})
        assert found is not None
        return found

    def use(self, source: Address, one: CachedSet, link: Path | None) -> None:
        """Note that a source has a set, and link to it. Raises StorageError."""
        note = self._note(str(source))
        with system_errors(str(one.folder)):
            (one.folder / manifests.IN_FOLDER).unlink(missing_ok=True)  # a script would take it for a part of the set
            (one.folder.parent / USED).touch()
            note.parent.mkdir(mode=self._mode, parents=True, exist_ok=True)
            write_whole(note, json.dumps({"source": str(source), "digest": one.digest}).encode())
            if link is not None:
                link.parent.mkdir(mode=self._mode, parents=True, exist_ok=True)
                new = link.with_name(f".{link.name}.new")
                new.unlink(missing_ok=True)
                # Relative, as a volume may be mounted elsewhere; the real paths, as `..` is taken of these.
                new.symlink_to(os.path.relpath(one.folder.resolve(), link.parent.resolve()))
                new.replace(link)

    def remove(self, folder: Path) -> None:
        """Remove the folder of a set: first its name, so that none is there in part. Raises StorageError."""
        with system_errors(str(folder)):
            gone = folder.with_name(f".{folder.name}.removed")
            shutil.rmtree(gone, ignore_errors=True)
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def finish_removals(self) -> None:
        """Remove what is left of removals that were killed."""
        for folder in self._folders():
            if folder.name.startswith("."):
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, digest: str) -> Path:
        kind, _, number = digest.partition(":")
        if kind != "set" or not number.isalnum():
            raise StorageError(f"{digest} is no digest of a set")
        return self._root / "sets" / number

    def _folders(self) -> list[Path]:
        try:
            return list((self._root / "sets").iterdir())
        except FileNotFoundError:
            return []

    def _note(self, source: str) -> Path:
        return self._root / "sources" / f"{key_of(source)}.json"

    def _sources(self) -> dict[str, list[str]]:
        """The sources of each digest."""
        found: dict[str, list[str]] = {}
        for note in (self._root / "sources").glob("*.json"):
            try:
                read = json.loads(note.read_bytes())
                found.setdefault(str(read["digest"]), []).append(str(read["source"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return found


def link_tree(one: CachedSet, to: Path) -> None:
    """A copy of what is unchanged of a set that takes no space, with its manifest: a file that is fetched anew
    replaces its link.
    """
    with system_errors(str(to)):
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        for file in _unchanged(one):
            path = to / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(one.folder / file.name, path)
        write_whole(to / manifests.IN_FOLDER, (one.folder.parent / MANIFEST).read_bytes())


def remove_others(files: Path, wanted: Container[str]) -> None:
    """Remove what is not in a set, but not files of ours, and folders that are empty then."""
    with system_errors(str(files)):
        for below, _, names in os.walk(files, topdown=False):
            for name in names:
                path = Path(below, name)
                known = path.relative_to(files).as_posix()
                if known not in wanted and not is_own(known):
                    path.unlink()
            if Path(below) != files:
                with suppress(OSError):  # it has files
                    Path(below).rmdir()


def _set(folder: Path, sources: dict[str, list[str]]) -> CachedSet | None:
    found = _manifest(folder)
    if found is None:
        return None
    try:
        used_at = (folder / USED).stat().st_mtime
    except OSError:
        used_at = 0.0
    of = tuple(sorted(sources.get(found.digest, ())))
    return CachedSet(found.digest, folder / FILES, len(found.files), found.num_bytes, used_at, of)


def _sources_of(one: CachedSet) -> dict[str, tuple[int, str]]:
    """Size and version at the source of each unchanged file of a set, by name."""
    return {file.name: (file.size, file.source) for file in _unchanged(one)}


def _unchanged(one: CachedSet) -> Iterator[File]:
    """The files of a set that are as they were written."""
    found, place = _manifest(one.folder.parent), Folder(Address("folder", "", str(one.folder)))
    if found is not None:
        files = (file for file in found.files.values() if not file.is_damaged)
        yield from (file for file in files if place.version_of(file.name) == file.version)


def _manifest(folder: Path) -> Manifest | None:
    path = folder / MANIFEST
    try:
        return _read(path, version(path.stat()))
    except (OSError, BadManifest):
        return None


@lru_cache(maxsize=1)
def _read(path: Path, _version: str) -> Manifest:
    """A manifest is asked for several times while a set is staged. Raises OSError, BadManifest."""
    return Manifest.from_bytes(path.read_bytes())
