"""Cache of data sets on this machine: each is fetched once, kept under its digest, and shared by runs that read it.

A run reads a set by a link in its own folder. A set is removed, the least recently used first, once the cache is larger
than its bound and no unfinished run has a link to it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from windlass.errors import StorageError, UsageError
from windlass.runs.store import Store
from windlass.storage import manifest as manifests
from windlass.storage.address import Address
from windlass.storage.copy import Copy
from windlass.storage.folder import Folder
from windlass.storage.opening import journal_for, open_place
from windlass.storage.place import Entry, Place
from windlass.storage.progress import Copied, Progress
from windlass.storage.sets import FILES, CachedSet, SetFolder, key_of, link_tree, remove_others, said

SHARE: Final = 0.5
"""Of the space that is free or taken by the cache, what the cache may take."""
NAMED: Final = 5
"""Refused files that a message names."""


class DataCache:
    """The cache below the folder of this user's records."""

    def __init__(self, home: Path, bound: Callable[[Path], int] | None = None) -> None:
        """`bound` gives the most bytes that the cache may take, for its folder."""
        self._home = home
        self._root = home / "data"
        self._sets = SetFolder(self._root)
        self._bound = bound or self._share

    async def stage(
        self, source: Address, link: Path | None = None, progress: Progress | None = None
    ) -> tuple[CachedSet, int]:
        """Fetch what the cache lacks of a set, and link to it; gives the set, and how many bytes were fetched for it.

        Another process that stages the same source is waited for. A link that is there is followed: a run reads the
        same set in all its attempts. Raises StorageError, UsageError, MissingPart.
        """
        if link is not None and (found := self._sets.sound(link)) is not None:
            return found, 0
        with _locked(staging_lock(self._home, source)):
            place = open_place(source, self._home)
            entries = [entry async for batch in place.entries() for entry in batch]
            if not entries:
                raise StorageError(f"{source} has no files", f"see: windlass data ls {source}")
            while True:
                known, done = self._sets.of(source), None
                if known is None or not self._sets.has_just(known, entries):
                    done = await self._fetch(source, place, entries, known, progress or Progress())
                with _locked(self._root / "lock"):
                    if done is not None:
                        known = self._sets.put(self._staging(source), done.manifest.digest)
                    if known is not None and known.folder.exists():  # else it was removed meanwhile
                        self._sets.use(source, known, link)
                        return known, 0 if done is None else done.num_bytes

    def sets(self) -> list[CachedSet]:
        """All sets, the least recently used first."""
        return self._sets.all()

    def remove(self, which: str) -> CachedSet:
        """Remove the set of a source, or of a digest that begins so. Raises UsageError, StorageError."""
        with _locked(self._root / "lock"):
            digest = which if which.startswith("set:") else f"set:{which}"
            found = [one for one in self.sets() if which in one.sources or one.digest.startswith(digest)]
            if len(found) != 1:
                what = f"{len(found)} sets are" if found else "no set is"
                raise UsageError(f"{what} in the cache of {which}", "see: windlass data ls")
            [one] = found
            if runs := self._readers().get(one.folder):
                raise UsageError(
                    f"{one.digest} is read by {', '.join(sorted(runs))}", "it can be removed after their end"
                )
            self._sets.remove(one.folder.parent)
            return one

    async def _fetch(
        self, source: Address, place: Place, entries: Iterable[Entry], known: CachedSet | None, progress: Progress
    ) -> Copied:  # fmt: skip
        """Fetch what is not in the set that the source had before, into the folder of its staging."""
        self._make_room(sum(one.size for one in entries))
        files = self._staging(source) / FILES
        if known is not None and not (files / manifests.IN_FOLDER).exists():
            link_tree(known.folder, files)
        target = Address("folder", "", str(files))
        with journal_for(source, target, self._home) as journal:
            done = await Copy(place, Folder(target), journal, progress).run()
        if done.refused:
            named = "; ".join(f"{one.name}: {one.why}" for one in done.refused[:NAMED])
            more = f"; and {len(done.refused) - NAMED} more" if len(done.refused) > NAMED else ""
            raise StorageError(f"{len(done.refused)} of the files of {source} cannot be staged: {named}{more}")
        remove_others(files, done.manifest)
        return done

    def _staging(self, source: Address) -> Path:
        return staging_lock(self._home, source).with_suffix("")

    # -- the bound ----------------------------------------------------------------------------------------------------

    def _make_room(self, num_bytes: int) -> None:
        """Remove sets that no unfinished run reads until so many bytes more are within the bound."""
        with _locked(self._root / "lock"):
            self._sets.finish_removals()
            sets, read = self.sets(), self._readers()
            total, bound = sum(one.num_bytes for one in sets) + num_bytes, self._bound(self._root)
            for one in sets:
                if total <= bound:
                    break
                if one.folder not in read:
                    self._sets.remove(one.folder.parent)
                    total -= one.num_bytes

    def _readers(self) -> dict[Path, set[str]]:
        """The unfinished runs that have links to a set, by its folder."""
        found: dict[Path, set[str]] = {}
        with Store(self._home) as store:
            for status in store.statuses(unfinished=True):
                folder = store.run_dir(status.id) / "data"
                for link in folder.iterdir() if folder.is_dir() else ():
                    if link.is_symlink():
                        found.setdefault(link.readlink(), set()).add(status.id)
        return found

    def _share(self, root: Path) -> int:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return int(SHARE * (shutil.disk_usage(root).free + sum(one.num_bytes for one in self.sets())))


def staging_lock(home: Path, source: Address) -> Path:
    """The file that a process locks while it stages a source."""
    return home / "data" / "staging" / f"{key_of(str(source))}.lock"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with said(str(path)):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
