"""Cache of a node: blocks of objects on its disk, limited in size, shared by all processes that stream.

A block appears under its name only once it is complete, so a process may be killed at any moment. Sets in use by a
process are never evicted: with random access, blocks that are kept serve more reads than blocks that are constantly
replaced. Sets that are not in use are evicted in the order of their last use.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from windlass.train.stream.errors import StreamError

SHARE = 0.5
"""Part of the available space (free space and the cache itself) that the cache may use."""
FULL_SECONDS = 300.0
"""Seconds after a failed attempt to find space until the next attempt, which must count all files."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PART = ".part"


class Cache:
    """Cache folder with all sets. Raises StreamError if it cannot be created."""

    def __init__(self, folder: Path, max_bytes: int | None = None) -> None:
        """`max_bytes` is the maximum size of all sets together; default: half of the available space."""
        self.folder = folder
        self._max_bytes = max_bytes
        self._pid, self._count = 0, -1
        self._threads = threading.Lock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.stat(folder).st_uid != os.getuid():
                raise StreamError(f"{folder} belongs to another user; set cache= to a folder of your own")
        except OSError as error:
            raise StreamError(f"{folder}: {error.strerror}; set cache= to a writable folder") from error

    def __reduce__(self) -> tuple[type[Cache], tuple[Path, int | None]]:
        return Cache, (self.folder, self._max_bytes)

    def set(self, key: str) -> CachedSet:
        """Returns the set of a source, which is in use while a process holds the object. Raises StreamError."""
        return CachedSet(self, self.folder / "sets" / hashlib.sha256(key.encode()).hexdigest()[:20])

    @property
    def bound(self) -> int:
        """Maximum bytes of all sets together."""
        if self._max_bytes is None:
            self._max_bytes = int(SHARE * (shutil.disk_usage(self.folder).free + self.usage()))
        return self._max_bytes

    def usage(self) -> int:
        """Returns the counted bytes of all sets, which are at least the real ones."""
        try:
            return int(os.pread(self._opened(), 20, 0))
        except (OSError, ValueError):
            return self._counted()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the cache against all other threads and processes. Raises OSError."""
        count = self._opened()
        with self._threads:
            fcntl.flock(count, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(count, fcntl.LOCK_UN)

    def _opened(self) -> int:
        """Returns the file with the count. A forked child opens it again, because it would share the lock of its
        parent.
        """
        if self._pid != os.getpid():
            self._threads = threading.Lock()
            self._count = os.open(self.folder / "usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._pid = os.getpid()
        return self._count

    def __del__(self) -> None:
        if self._pid == os.getpid():
            os.close(self._count)

    def take(self, num_bytes: int, own: Path) -> bool:
        """Reserves bytes if there is space, and returns whether there is. May evict sets other than `own`; needs the
        lock.
        """
        if self.usage() + num_bytes > self.bound and not self._was_counted_lately():
            self._write(self._counted())
            self._evict(num_bytes, own)
            (self.folder / "counted").touch()
        if self.usage() + num_bytes > self.bound:
            return False
        self._write(self.usage() + num_bytes)
        return True

    def give_back(self, num_bytes: int) -> None:
        """Releases reserved bytes; needs the lock."""
        self._write(max(0, self.usage() - num_bytes))

    def _evict(self, num_bytes: int, own: Path) -> None:
        for one in sorted(self._sets(), key=_used_at):
            if self.usage() + num_bytes <= self.bound:
                return
            if one != own:
                with suppress(BlockingIOError, OSError), _lock(one / "lock", fcntl.LOCK_EX | fcntl.LOCK_NB):
                    size = _size(one)
                    shutil.rmtree(one / "blocks", ignore_errors=True)
                    for index in one.glob("*.index"):
                        index.unlink()
                    self.give_back(size - _size(one))

    def _sets(self) -> list[Path]:
        with suppress(FileNotFoundError):
            return [one for one in (self.folder / "sets").iterdir() if one.is_dir()]
        return []

    def _write(self, num_bytes: int) -> None:
        os.pwrite(self._opened(), b"%020d" % num_bytes, 0)

    def _was_counted_lately(self) -> bool:
        with suppress(FileNotFoundError):
            return 0 <= time.time() - (self.folder / "counted").stat().st_mtime < FULL_SECONDS
        return False

    def _counted(self) -> int:
        return sum(_size(one) for one in self._sets())


class CachedSet:
    """Cached blocks and indexes of one source. Raises StreamError if its folder cannot be created."""

    def __init__(self, cache: Cache, folder: Path) -> None:
        self.cache = cache
        self.folder = folder
        self._full_until = 0.0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with cache.locked():  # the cache lock prevents an eviction of the set before its own lock is taken
                self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._forget_blocks_of_another_boot()
                fcntl.flock(self._lock, fcntl.LOCK_SH)
                (folder / "used").touch()
        except OSError as error:
            raise StreamError(f"{folder}: {error.strerror}") from error

    def __reduce__(self) -> tuple[type[CachedSet], tuple[Cache, Path]]:
        return CachedSet, (self.cache, self.folder)

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            os.close(self._lock)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Locks out other processes while this process builds the index of the set. Raises OSError."""
        with _lock(self.folder / "build", fcntl.LOCK_EX):
            yield

    def get(self, name: str, start: int, length: int) -> bytes | None:
        """Returns `length` bytes of a block from `start` on; None if the block is not cached."""
        try:
            descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None  # a failing disk must not fail the training; the source is read instead
        try:
            data = os.pread(descriptor, length, start)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return data if len(data) == length else None

    @property
    def is_full(self) -> bool:
        """Whether the cache was found full recently."""
        return time.monotonic() < self._full_until

    def has(self, name: str) -> bool:
        """Whether a block is cached."""
        return os.path.exists(self.path(name))

    def names(self) -> list[str]:
        """Returns the names of the cached blocks, without those that are being written."""
        with suppress(OSError):
            return [name for name in os.listdir(self.path("")) if not name.endswith(_PART)]
        return []

    def put(self, name: str, data: bytes) -> bool:
        """Caches a block and returns whether it is cached. False if there is no space, or another process is writing
        it.
        """
        if self.is_full:
            return False
        path = self.path(name)
        try:
            part = _created(f"{path}{_PART}")
            try:
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_named(part, f"{path}{_PART}") or os.path.exists(path):
                    return os.path.exists(path)
                return self._write(part, path, data)
            finally:
                os.close(part)
        except BlockingIOError:
            return False
        except OSError as error:
            self._full_until = time.monotonic() + FULL_SECONDS
            print(f"windlass: {self.folder}: {error.strerror}; samples are not cached", file=sys.stderr, flush=True)
            return False

    def remove(self, names: list[str]) -> None:
        """Removes blocks of objects that are no longer part of the source."""
        with self.cache.locked():
            for name in names:
                with suppress(OSError):
                    size = os.stat(self.path(name)).st_size
                    os.unlink(self.path(name))
                    self.cache.give_back(size)

    def _write(self, part: int, path: str, data: bytes) -> bool:
        had = os.fstat(part).st_size  # a killed process may have left bytes, which are already counted
        with self.cache.locked():
            if len(data) > had and not self.cache.take(len(data) - had, self.folder):
                self._full_until = time.monotonic() + FULL_SECONDS
                os.unlink(f"{path}{_PART}")
                self.cache.give_back(had)
                return False
            os.ftruncate(part, len(data))  # a count of the cache includes these bytes from now on
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(part, memoryview(data)[written:], written)
        except OSError:
            with self.cache.locked():
                os.unlink(f"{path}{_PART}")
                self.cache.give_back(len(data))
            raise
        with self.cache.locked():  # without the lock, a concurrent count of the folder could miss both names
            os.rename(f"{path}{_PART}", path)
        return True

    def path(self, name: str) -> str:
        """Returns the path of a block, whether or not it is cached."""
        return f"{self.folder}/blocks/{name}"

    def _forget_blocks_of_another_boot(self) -> None:
        """Removes blocks written before the last boot: after a power failure they may contain zeros.

        A set in use contains only blocks written since this boot.
        """
        mark, boot = self.folder / "boot", _boot_id()
        with suppress(FileNotFoundError):
            if mark.read_text() == boot:
                return
        with suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self.folder / "blocks", ignore_errors=True)
            mark.write_text(boot)


def _created(path: str) -> int:
    """Opens a file; creates the file and its folder if they do not exist."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_named(descriptor: int, path: str) -> bool:
    """Whether an open file still has this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _size(folder: Path) -> int:
    """Returns the bytes of the blocks of a set, including those that are being written."""
    found = 0
    for below, _, names in os.walk(folder / "blocks"):
        for name in names:
            with suppress(OSError):
                found += os.stat(os.path.join(below, name)).st_size
    return found


def _used_at(folder: Path) -> float:
    try:
        return (folder / "used").stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def _lock(path: Path, how: int) -> Iterator[None]:
    lock = _created(str(path))
    try:
        fcntl.flock(lock, how)
        yield
    finally:
        os.close(lock)
