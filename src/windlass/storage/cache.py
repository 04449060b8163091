"""Cache of data sets: each set is fetched once, stored under its digest, and shared by all runs that read it.

A run reads a set through a link in its own folder. When this machine's cache exceeds its limit, the least recently used
sets are removed, except sets that an unfinished run links to. On a volume shared by pods of several nodes only the user
removes sets, because a pod does not know which runs are unfinished.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from windlass.errors import StorageError, UsageError
from windlass.storage import manifest as manifests
from windlass.storage.address import Address, key_of
from windlass.storage.copy import Copy
from windlass.storage.copy_note import cuts
from windlass.storage.folder import Folder
from windlass.storage.helpers import number_here
from windlass.storage.names import OWN, is_own
from windlass.storage.opening import journal_for, open_place
from windlass.storage.place import Entry, Place, Throttled, system_errors
from windlass.storage.progress import Copied, Progress
from windlass.storage.sets import FILES, CachedSet, SetFolder, link_tree, remove_others
from windlass.storage.verify import Verified, verify

SHARE: Final = 0.5
"""Default limit of the cache, as a share of the bytes that are free or used by the cache."""
NAMED: Final = 5
"""Maximum number of refused files that a message lists by name."""
PRIVATE: Final = 0o700
"""Mode of folders in this machine's cache: private, because other users may lack permission to read the source of a
set."""
SHARED: Final = 0o777
"""Mode of folders in the cache of a volume, before the umask. Pods in the same group run as different users, and must
read the sets, take the locks and resume each other's transfers."""
Readers: TypeAlias = Callable[[], Mapping[Path, Set[str]]]
"""Function that returns the unfinished runs that read each set, by the folder of the set's files."""


class DataCache:
    """Cache in a folder. Several processes, also on several machines, may use it concurrently."""

    def __init__(self, root: Path, readers: Readers | None, bound: Callable[[Path], int] | None = None) -> None:
        """`readers` is None for a volume that pods share. `bound` returns the maximum size of the cache in bytes for
        its folder; by default a share of the space there.
        """
        self._root = root
        self._mode = SHARED if readers is None else PRIVATE
        self._sets = SetFolder(root, self._mode)
        self._readers = readers
        self._num_helpers = None if readers is None else number_here
        """Function for the number of helper processes; None on volumes, because a pod's memory is too small for
        helpers."""
        self._bound = bound or self._share

    async def stage(
        self, source: Address, link: Path | None = None, progress: Progress | None = None
    ) -> tuple[CachedSet, int]:
        """Fetches the missing files of a set and links to the set. Returns the set and the number of bytes fetched.

        Waits while another process stages the same source. An existing link is followed, so that a run reads the same
        set in all its attempts. Raises StorageError, UsageError, MissingExtra.
        """
        if link is not None and (found := self._sets.sound(link)) is not None:
            return found, 0
        self._make_root()
        place = open_place(source, self._root)
        while True:
            known = self._sets.of(source)
            # The source is listed without holding the lock: a process that cannot reach the store must not block others
            # from using a complete set.
            entries = await place.listed(cuts(list(self._sets.names(known))))
            if not entries:
                raise StorageError(f"{source} has no files", f"see: windlass data ls {source}")
            if known is not None and self._sets.has_just(known, entries):
                if self._use(source, known, link):
                    return known, 0
                continue  # another process has removed the set; the loop starts again
            with self._staging_locked(source, progress := progress or Progress()):
                if (newest := self._sets.of(source)) is not None and (known is None or newest.digest != known.digest):
                    continue  # another process has staged a newer set; the loop starts again
                done = await self._fetch(source, place, entries, known, progress)
                with self._locked(self._root / "lock"):
                    known = self._sets.put(source, self._staging(source), done.digest)
                    self._sets.use(source, known, link)
                return known, done.num_bytes

    def _use(self, source: Address, known: CachedSet, link: Path | None) -> bool:
        """Links to a set. Returns whether the set still exists."""
        with self._locked(self._root / "lock"):
            if known.folder.exists():
                self._sets.use(source, known, link)
                return True
        return False

    def sets(self) -> list[CachedSet]:
        """Returns all sets, the least recently used first. Incomplete sets have no digest."""
        return sorted([*self._sets.all(), *self._begun()], key=lambda one: one.used_at)

    async def verify(self, which: str, progress: Progress) -> tuple[CachedSet, Verified] | None:
        """Reads every byte of a set; returns None if no set matches. Raises StorageError.

        `which` is `set:` and a prefix of its digest, or the folder of its files. Damaged files are fetched again for
        the next run.
        """
        is_digest, folder = which.startswith("set:"), Path(which).resolve()
        fits = [
            one
            for one in self._sets.all()
            if (one.digest.startswith(which) if is_digest else one.folder.resolve() == folder)
        ]
        if len(fits) != 1:
            return None
        [one] = fits
        done = await verify(Folder(Address("folder", "", str(one.folder))), progress, self._sets.manifest(one))
        if done.damaged:
            with self._locked(self._root / "lock"):
                self._sets.note_damage(one, done.damaged)
        return one, done

    def remove(self, which: str, readers: Readers | None = None) -> CachedSet:
        """Removes the set of a source or of a digest prefix, including an incomplete one, unless one of the `readers`
        reads it.

        For a volume `readers` is required. Raises UsageError, StorageError.
        """
        readers = readers or self._readers
        assert readers is not None
        with self._locked(self._root / "lock"):
            digest = which if which.startswith("set:") else f"set:{which}"
            is_named = digest != "set:"  # an empty prefix is ignored because it would match every digest
            found = [one for one in self.sets() if which in one.sources or (is_named and one.digest.startswith(digest))]
            whole, begun = [one for one in found if one.digest], [one for one in found if not one.digest]
            if not found or len(whole) > 1:
                what = f"{len(found)} sets are" if found else "no set is"
                raise UsageError(f"{what} in the cache of {which}", "see: windlass data ls")
            for one in whole:
                if runs := readers().get(one.folder.resolve()):
                    after = "their end" if self._readers else "`windlass rm` of them"
                    raise UsageError(
                        f"{one.digest} is read by {', '.join(sorted(runs))}", f"it can be removed after {after}"
                    )
            for one in begun:
                if not self._discard(one) and not whole:
                    raise UsageError(f"{which} is being fetched", "stop the run or the command that fetches it")
            for one in whole:
                self._sets.remove(one.folder.parent)
            return (whole or begun)[0]

    async def _fetch(
        self, source: Address, place: Place, entries: Sequence[Entry], known: CachedSet | None, progress: Progress
    ) -> Copied:
        """Fetches the files that the source's previous set lacks, into the staging folder of the source."""
        files = self._staging(source) / FILES
        with self._locked(self._root / "lock"):  # the lock prevents another process from removing the set
            if known is not None and known.folder.exists() and not (files / manifests.IN_FOLDER).exists():
                link_tree(known, files)
        remove_others(files, {one.name for one in entries})  # an old file must not be in the way of a new folder
        lacking = self._sets.lacking_bytes(known, entries) - _fetched(files).num_bytes
        # The staging folder links to the old set's files, so removing the old set does not free the shared bytes.
        shared = sum(one.size for one in entries) - self._sets.lacking_bytes(known, entries)
        self._refuse_lack_of_space(source, lacking, self._removable_bytes(files, known, shared))
        self._evict(sum(one.size for one in entries), files)
        self._refuse_lack_of_space(source, lacking)
        target = Address("folder", "", str(files))
        with journal_for(source, target, self._root) as journal:
            done = await Copy(place, Folder(target), journal, progress, num_helpers=self._num_helpers).run()
        if done.refused:
            named = "; ".join(f"{one.name}: {one.why}" for one in done.refused[:NAMED])
            more = f"; and {len(done.refused) - NAMED} more" if len(done.refused) > NAMED else ""
            kind = Throttled if all(one.passes for one in done.refused) else StorageError
            raise kind(f"{len(done.refused)} of the files of {source} cannot be staged: {named}{more}")
        remove_others(files, done.files)
        # the copy is complete, so its state is no longer needed to resume it
        shutil.rmtree(files / OWN, ignore_errors=True)
        (files / f"{manifests.IN_FOLDER}.part").unlink(missing_ok=True)
        return done

    def _make_root(self) -> None:
        """Creates the cache folder. Raises StorageError if another user owns it, who could read and replace the fetched
        files.
        """
        with system_errors(str(self._root)):
            self._root.mkdir(mode=self._mode, parents=True, exist_ok=True)
            owner = self._root.stat().st_uid
        if self._mode == PRIVATE and owner not in (os.geteuid(), 0):
            raise StorageError(f"{self._root} belongs to another user", "set WINDLASS_HOME to a folder of your own")

    def _staging(self, source: Address) -> Path:
        return staging_lock(self._root, source).with_suffix("")

    def _begun(self) -> Iterator[CachedSet]:
        """Yields the sets whose fetch has started but is not complete."""
        for lock in (self._root / "staging").glob("*.lock"):
            files = lock.with_suffix("") / FILES
            if files.exists():
                with system_errors(str(lock)):
                    yield _fetched(files, lock.read_text(encoding="utf-8").partition("\n")[0])

    def _discard(self, begun: CachedSet) -> bool:
        """Removes an incomplete set unless a process is fetching it. Returns whether it was removed."""
        folder = begun.folder.parent
        path = folder.with_suffix(".lock")
        with system_errors(str(path)), path.open("r+b") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            shutil.rmtree(folder)
        return True

    # -- disk space ---------------------------------------------------------------------------------------------------

    def _evict(self, num_bytes: int, files: Path) -> None:
        """Removes sets that no unfinished run reads and no process fetches, until `num_bytes` for `files` fit within
        the limit.
        """
        with self._locked(self._root / "lock"):
            self._sets.finish_removals()
            if self._readers is None:
                return
            sets, read = [one for one in self.sets() if one.folder != files], self._readers()
            total, bound = sum(one.num_bytes for one in sets) + num_bytes, self._bound(self._root)
            for one in sets:
                if total <= bound:
                    break
                if not one.digest:
                    total -= one.num_bytes if self._discard(one) else 0
                elif one.folder.resolve() not in read:
                    self._sets.remove(one.folder.parent)
                    total -= one.num_bytes

    def _removable_bytes(self, files: Path, known: CachedSet | None, shared: int) -> int:
        """Returns the maximum number of bytes that eviction could free: sets that no unfinished run reads, without the
        bytes that the set `known` shares with `files`.
        """
        if self._readers is None:
            return 0
        read = self._readers()
        sets = [one for one in self.sets() if one.folder != files and one.folder.resolve() not in read]
        is_known = known is not None and any(one.folder == known.folder for one in sets)
        return sum(one.num_bytes for one in sets) - (shared if is_known else 0)

    def _share(self, root: Path) -> int:
        root.mkdir(mode=self._mode, parents=True, exist_ok=True)
        return int(SHARE * (shutil.disk_usage(root).free + sum(one.num_bytes for one in self.sets())))

    def _refuse_lack_of_space(self, source: Address, num_bytes: int, removable_bytes: int = 0) -> None:
        """Raises StorageError at once if a set cannot fit on the disk, before files are fetched or other sets are
        removed.
        """
        with system_errors(str(self._root)):
            space = shutil.disk_usage(self._root)
        # Some network file systems report a total size of 0.
        if num_bytes > space.free + removable_bytes and space.total:
            needs = f"{source} needs {num_bytes:,} bytes more below {self._root}, and {space.free:,} are free"
            raise StorageError(needs, "free some space there, or make it larger")

    @contextmanager
    def _staging_locked(self, source: Address, progress: Progress) -> Iterator[None]:
        """Holds the lock of a source while it is staged. The lock file names the holder, and waiting for it is
        reported.
        """
        path = staging_lock(self._root, source)

        def wait() -> None:
            with suppress(OSError):
                progress.waits_for = path.read_text(encoding="utf-8").partition("\n")[2] or "another process"

        with self._locked(path, wait):
            progress.waits_for = ""
            with system_errors(str(path)):
                path.write_text(f"{source}\nprocess {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
            yield

    @contextmanager
    def _locked(self, path: Path, wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Holds the lock file `path`. Calls `wait` if another process holds the lock."""
        with system_errors(str(path)):
            path.parent.mkdir(mode=self._mode, parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._mode & 0o666)
        try:
            with system_errors(str(path)):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    wait()
                    fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def staging_lock(root: Path, source: Address) -> Path:
    """Returns the lock file of a source that is being staged in the cache in `root`."""
    return root / "staging" / f"{key_of(str(source))}.lock"


def _fetched(files: Path, source: str = "") -> CachedSet:
    """Returns the state of an incomplete set: the bytes that an earlier process has fetched or reserved. Files with a
    second link belong to another set and are not counted.
    """
    num_files = num_bytes = 0
    used_at = 0.0
    for below, _, names in os.walk(files):
        for name in names:
            with suppress(FileNotFoundError):  # a file that another process renames meanwhile is not counted
                about = os.lstat(Path(below, name))
                if about.st_nlink == 1:
                    num_files += not is_own(os.path.relpath(Path(below, name), files))
                    num_bytes, used_at = num_bytes + about.st_blocks * 512, max(used_at, about.st_mtime)
    return CachedSet("", files, num_files, num_bytes, used_at, (source,) if source else ())
