"""Data sets of a cache, each in a folder named by its digest.

| path | content |
|---|---|
| `sets/DIGEST/manifest.jsonl` | manifest of a set, with the versions at the source from which it was fetched |
| `sets/DIGEST/KEY.jsonl` | the same with the versions at another source, or with later versions at the same one |
| `sets/DIGEST/files` | files of the set, which do not change |
| `sources/KEY.json` | digest of the set that a source contained when it was last read |
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
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
from windlass.storage.place import Entry, is_same_version, system_errors

MANIFEST: Final = "manifest.jsonl"
FILES: Final = "files"
USED: Final = "used"
"""File whose modification time is the time of the last use of a set."""


@dataclass(frozen=True, slots=True)
class CachedSet:
    """Data set in the cache."""

    digest: str
    """Digest of the set; empty if the set is incomplete."""
    folder: Path
    """Folder of the set's files."""
    num_files: int
    num_bytes: int
    used_at: float = 0.0
    """Time of the last use in Unix seconds."""
    sources: tuple[str, ...] = ()
    """Addresses that contained this set when they were last read."""
    versions: Path | None = None
    """Manifest with the versions at the source by which the set was found; None for the manifest of the set."""


class SetFolder:
    """Data sets below one folder. Methods that change sets require the lock of the cache."""

    def __init__(self, root: Path, mode: int) -> None:
        """`mode` is the mode of new folders."""
        self._root, self._mode = root, mode

    def all(self) -> list[CachedSet]:
        """Returns all sets, the least recently used first."""
        sources = self._sources()
        found = [_set(one, sources) for one in self._folders() if not one.name.startswith(".")]
        return sorted((one for one in found if one is not None), key=lambda one: one.used_at)

    def of(self, source: Address) -> CachedSet | None:
        """Returns the set that a source contained when it was last read, if it still exists. Its files may have been
        changed.
        """
        try:
            found = json.loads(self._note(str(source)).read_bytes())
            one, versions = _set(self._folder(found["digest"]), {}), self._versions(found["digest"], source)
            return replace(one, versions=versions) if one is not None and versions.exists() else one
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def sound(self, files: Path) -> CachedSet | None:
        """Returns the set in this folder or behind this link, if no file has changed since it was written."""
        found = _set(files.resolve().parent, {})
        return found if found is not None and len(list(_unchanged(found))) == found.num_files else None

    def names(self, one: CachedSet | None) -> Iterable[str]:
        """Returns the sorted names of the files of a set."""
        found = None if one is None else _manifest(one.folder.parent)
        return () if found is None else found.files

    def has_just(self, one: CachedSet, entries: Iterable[Entry]) -> bool:
        """Whether a set is unchanged and equal to the listing of its source."""
        known, listed = _sources_of(one), {entry.name: entry for entry in entries}
        return known.keys() == listed.keys() and all(_is_in(known, entry) for entry in listed.values())

    def lacking_bytes(self, one: CachedSet | None, entries: Iterable[Entry]) -> int:
        """Returns the bytes of the listed files that a set lacks or has in another version."""
        known = {} if one is None else _sources_of(one)
        return sum(entry.size for entry in entries if not _is_in(known, entry))

    def manifest(self, one: CachedSet) -> Manifest:
        """Reads the manifest of a set. Raises StorageError."""
        if (found := _manifest(one.folder.parent)) is None:
            raise StorageError(f"{one.folder.parent / MANIFEST} cannot be read", "windlass data rm removes the set")
        return found

    def note_damage(self, one: CachedSet, damaged: Iterable[File]) -> None:
        """Marks files as damaged, so that they are fetched again for the next run that reads the set. Raises
        StorageError.
        """
        with system_errors(str(one.folder)):
            write_whole(one.folder.parent / MANIFEST, self.manifest(one).with_damage(damaged).to_bytes())

    def put(self, source: Address, folder: Path, digest: str) -> CachedSet:
        """Moves a folder with `files` and their manifest into the cache. Raises StorageError.

        An existing set of this digest has the same files unless it is damaged; only the versions at `source` are new.
        """
        final = self._folder(digest)
        with system_errors(str(final)):
            final.parent.mkdir(mode=self._mode, parents=True, exist_ok=True)
            if (found := self.sound(final / FILES)) is not None:
                (folder / FILES / manifests.IN_FOLDER).replace(self._versions(digest, source))
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
        """Records that a source contains a set, and links to the set. Raises StorageError."""
        note = self._note(str(source))
        with system_errors(str(one.folder)):
            # A script that reads the folder would treat the manifest as a sample.
            (one.folder / manifests.IN_FOLDER).unlink(missing_ok=True)
            (one.folder.parent / USED).touch()
            note.parent.mkdir(mode=self._mode, parents=True, exist_ok=True)
            write_whole(note, json.dumps({"source": str(source), "digest": one.digest}).encode())
            if link is not None:
                link.parent.mkdir(mode=self._mode, parents=True, exist_ok=True)
                new = link.with_name(f".{link.name}.new")
                new.unlink(missing_ok=True)
                # The link is relative because a volume may be mounted elsewhere, and uses real paths because `..` is
                # resolved on them.
                new.symlink_to(os.path.relpath(one.folder.resolve(), link.parent.resolve()))
                new.replace(link)

    def remove(self, folder: Path) -> None:
        """Removes the folder of a set. Renames it first, so that no partial set is visible. Raises StorageError."""
        with system_errors(str(folder)):
            gone = folder.with_name(f".{folder.name}.removed")
            shutil.rmtree(gone, ignore_errors=True)
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def finish_removals(self) -> None:
        """Completes removals whose process was killed."""
        for folder in self._folders():
            if folder.name.startswith("."):
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, digest: str) -> Path:
        kind, _, number = digest.partition(":")
        if kind != "set" or not number.isalnum():
            raise StorageError(f"{digest} is no digest of a set")
        return self._root / "sets" / number

    def _versions(self, digest: str, source: Address) -> Path:
        return self._folder(digest) / f"{key_of(str(source))}.jsonl"

    def _folders(self) -> list[Path]:
        try:
            return list((self._root / "sets").iterdir())
        except FileNotFoundError:
            return []

    def _note(self, source: str) -> Path:
        return self._root / "sources" / f"{key_of(source)}.json"

    def _sources(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for note in (self._root / "sources").glob("*.json"):
            try:
                read = json.loads(note.read_bytes())
                found.setdefault(str(read["digest"]), []).append(str(read["source"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return found


def link_tree(one: CachedSet, to: Path) -> None:
    """Creates hard links to the unchanged files of a set, with its manifest, which takes no space. A file that is
    fetched again replaces its link.
    """
    with system_errors(str(to)):
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        files = list(_unchanged(one))
        for file in files:
            path = to / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(one.folder / file.name, path)
        write_whole(to / manifests.IN_FOLDER, Manifest.of(files).to_bytes())


def remove_others(files: Path, wanted: Container[str]) -> None:
    """Removes files that are not `wanted`, except Windlass's own, and folders that become empty."""
    with system_errors(str(files)):
        for below, _, names in os.walk(files, topdown=False):
            for name in names:
                path = Path(below, name)
                known = path.relative_to(files).as_posix()
                if known not in wanted and not is_own(known):
                    path.unlink()
            if Path(below) != files:
                with suppress(OSError):
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
    """Returns size and version at the source of each unchanged file of a set, by name."""
    return {file.name: (file.size, file.source) for file in _unchanged(one)}


def _is_in(known: Mapping[str, tuple[int, str]], entry: Entry) -> bool:
    """Whether a listed file is among the files that `_sources_of` returned, in this version."""
    size, version = known.get(entry.name, (-1, ""))
    return size == entry.size and is_same_version(version, entry.version)


def _unchanged(one: CachedSet) -> Iterator[File]:
    """Yields the files of a set that are unchanged since they were written, with their versions at its source."""
    found, place = _manifest(one.folder.parent), Folder(Address("folder", "", str(one.folder)))
    at_source = None if one.versions is None else _manifest_at(one.versions)
    for file in () if found is None else found.files.values():
        if not file.is_damaged and place.version_of(file.name) == file.version:
            yield file if at_source is None else replace(file, source=at_source.files[file.name].source)


def _manifest(folder: Path) -> Manifest | None:
    return _manifest_at(folder / MANIFEST)


def _manifest_at(path: Path) -> Manifest | None:
    try:
        return _read(path, version(path.stat()))
    except (OSError, BadManifest):
        return None


@lru_cache(maxsize=2)
def _read(path: Path, _version: str) -> Manifest:
    """Reads a manifest, cached because staging needs it several times. Raises OSError, BadManifest."""
    return Manifest.from_bytes(path.read_bytes())
