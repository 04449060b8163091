"""Copies new and changed files of the code folder that `outputs.collect` names to the run's output; lists the others.

A script that was written without Windlass leaves its results in its own folder. On this machine the next run overwrites
them there; in a container they are deleted with it. A file is new or changed if the kernel has changed it (`ctime`)
since the run began: a copy that keeps the time of its original counts too. Another program, or another run in the same
folder, may have written it as well.

A link that leads out of the code folder is not followed. Standard library of Python 3.9 only.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from windlass.worker.protocol import OF_ANOTHER_NODE, CodeFiles, CollectSpec, FileSize, SavedState
from windlass.worker.saved_states import is_saved_state, newest_saved, walk

MOST = 10
"""So many files are listed, the largest; all are counted."""
SCAN_SECONDS = 2.0
"""How long files are listed; what `collect` names is looked for and copied without a limit."""
PIECE_BYTES = 4 << 20
CACHES = re.compile(r"\..*|__pycache__|venv|node_modules|.*\.egg-info|torchinductor_.*|(models|datasets|spaces)--.*")
"""Names of folders that hold no results: hidden ones such as `.git` and `.cache`, caches and environments; the last are
those of Hugging Face's hub."""
MARKS = ("CACHEDIR.TAG", "pyvenv.cfg")
"""Files by which a cache and a virtual environment are known whatever they are called."""
CACHE_VARIABLES = (
    "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME", "KERAS_HOME", "XDG_CACHE_HOME",
    "PIP_CACHE_DIR", "UV_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR", "MPLCONFIGDIR",
)  # fmt: skip
KERNEL = ("/proc", "/sys", "/dev")
"""No files on a disk: some of these are always new, some never end."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors of the whole output: the next file fails as well."""


class File(NamedTuple):
    """A new or changed file."""

    path: str
    """Below the code folder."""
    status: os.stat_result


class Stopped(Exception):
    """A stop without a grace period was requested."""


class Collection:
    """The new and changed files of one code folder, at the end of one node."""

    def __init__(self, request: CollectSpec, code: str, output: str, env: Mapping[str, str]) -> None:
        """`env` is that of the ranks: it names caches, which are passed over wherever they are."""
        self.request = request
        self.code = os.path.realpath(code)
        self.output = output
        named = [env[name] for name in CACHE_VARIABLES if env.get(name)]
        folders = (output, env.get("WINDLASS_CHECKPOINT_DIR", ""), *request.skip, *named)
        self._own = [one for one in folders[:2] if one and "://" not in one]
        """The folders of the run, where a script may save too."""
        self._skipped = {os.path.realpath(os.path.join(code, one)) for one in folders if one and "://" not in one}
        self._skipped |= {one for one in KERNEL if not _is_below(self.code, one)}
        self._problems: list[str] = []
        self._is_cut = False
        self.has_none = False
        """Whether the patterns name no file."""
        self.copied: list[File] = []

    # -- copies -------------------------------------------------------------------------------------------------------

    def wanted(self, is_to_stop: Callable[[], bool] = lambda: False) -> list[File]:
        """The files that the patterns name, each once; none where the run is to end at once."""
        found: dict[str, File] = {}  # of which several patterns may match
        try:
            for pattern in self.request.patterns:
                for one in self._matching(pattern, is_to_stop):
                    found.setdefault(one.path, one)
        except Stopped:
            self._problems.append("the run was stopped meanwhile")
            return []
        self.has_none = not found and bool(self.request.patterns)
        return list(found.values())

    def _matching(self, pattern: str, is_to_stop: Callable[[], bool]) -> Iterator[File]:
        """Files that match one pattern; a folder that matches counts with all files in it."""
        plain = re.match(r"(?:[^*?\[/]+/)*", pattern)
        start = plain[0].rstrip("/") if plain else ""
        if not self._is_inside(start):
            self._problems.append(f"{start} leads out of the code folder, and is not followed")
            return
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        found = self._changed(start, is_to_stop=is_to_stop)
        yield from (one for one in found if matches(one.path.split("/"), parts))

    def partial(self, node: int) -> str:
        """Where a file is until it is complete; by number, since nodes in pods have the same process ids."""
        return os.path.join(self.output, f".windlass-partial-{node}")

    def copy(
        self, wanted: list[File], *, node: int, began: float = 0.0, is_first: bool, is_to_stop: Callable[[], bool]
    ) -> None:
        """Copy them; what cannot be copied is a problem. Each is at its place once it is complete, with its time.

        One that is there with the same size and time is not copied again. `began` is when the attempt did, in Unix
        seconds, 0 for the first one: nodes that each have a code folder of their own may have one output, and of
        different files of the same path that they copy in one attempt, that of the first node is kept.
        """
        partial = self.partial(node)
        others_since = None if self.request.is_shared else began
        for one in wanted:
            try:
                self._copy_one(one, partial, others_since, is_first=is_first, is_to_stop=is_to_stop)
            except Stopped:
                self._problems.append("the run was stopped meanwhile")
                break
            except OSError as error:
                self._problems.append(f"{one.path}: {error.strerror or error}")
                if error.errno in FULL:
                    break
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(partial)

    def _copy_one(
        self, one: File, partial: str, others_since: float | None, *, is_first: bool, is_to_stop: Callable[[], bool]
    ) -> None:
        """Raises OSError, Stopped."""
        target = os.path.join(self.output, one.path)
        there = _status(target)
        if there is not None and _mark(there) == _mark(one.status):
            self.copied.append(one)
            return
        is_of_other = there is not None and others_since is not None and there.st_ctime >= others_since
        if is_of_other and filecmp.cmp(os.path.join(self.code, one.path), target, shallow=False):
            self.copied.append(one)
            return
        if is_of_other and not is_first:
            self._problems.append(f"{one.path} {OF_ANOTHER_NODE}")
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        found = self._copied(one, partial, is_to_stop)
        if is_first or there is not None or others_since is None:
            os.replace(partial, target)
        elif not _is_linked(partial, target):
            self._problems.append(f"{one.path} {OF_ANOTHER_NODE}")
            return
        if is_of_other:
            self._problems.append(f"{one.path} was there already, of another node or the script, and was replaced")
        self.copied.append(File(one.path, found))

    def _copied(self, one: File, partial: str, is_to_stop: Callable[[], bool]) -> os.stat_result:
        """Copy it as it is now to `partial`; its size and time then. Raises OSError, Stopped."""
        source = os.open(os.path.join(self.code, one.path), os.O_RDONLY | os.O_NONBLOCK)  # a pipe by now would block
        with open(source, "rb") as read, open(partial, "wb") as write:
            found = os.fstat(source)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no longer a regular file")
            _require_space(self.output, found.st_size)
            left = found.st_size  # one that a process goes on to write would have no end
            while left and (piece := read.read(min(left, PIECE_BYTES))):
                if is_to_stop():
                    raise Stopped
                left -= write.write(piece)
        os.chmod(partial, stat.S_IMODE(found.st_mode))
        os.utime(partial, ns=(found.st_atime_ns, found.st_mtime_ns))
        return found

    # -- the list -----------------------------------------------------------------------------------------------------

    def report(self, now: float, *, is_success: bool = True, seconds: float = SCAN_SECONDS) -> CodeFiles:
        """Reports what was copied, and which other files are new or changed; these are listed for so many seconds.

        Ranks that have failed may well have made no result.
        """
        found, copied = list(self._changed("", time.monotonic() + seconds)), {one.path for one in self.copied}
        left = [one for one in found if one.path not in copied]
        left.sort(key=lambda one: (-one.status.st_size, -one.status.st_mtime, one.path))
        return CodeFiles(
            now,
            self.code,
            copied=len(self.copied),
            copied_bytes=sum(one.status.st_size for one in self.copied),
            left=len(left),
            left_bytes=sum(one.status.st_size for one in left),
            largest=tuple(FileSize(one.path, one.status.st_size) for one in left[:MOST]),
            is_cut=self._is_cut,
            problems=tuple(self._problems[:MOST]),
            save=self._newest_save([*found, *self.copied]),
            has_none=self.has_none and is_success,
        )

    def _newest_save(self, found: Sequence[File]) -> SavedState | None:
        """The newest of these files, and of those in the folders of the run, that is a state by its name."""
        saves = [
            SavedState(one.path, one.status.st_size, one.status.st_mtime) for one in found if is_saved_state(one.path)
        ]
        own = newest_saved(self._own, self.request.since)
        return max([*saves, *([own] if own else [])], key=lambda one: one.at, default=None)  # of a copy, the original

    # -- the folder ---------------------------------------------------------------------------------------------------

    def _changed(
        self, start: str, give_up: float = math.inf, is_to_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[File]:
        """Regular files below `start`, and links to such in the code folder, as far as time allows. Raises Stopped."""
        real = self._real(start)
        if any(_is_below(real, one) for one in self._skipped):
            return
        for entry in walk(real, self._is_left_out):
            if is_to_stop():
                raise Stopped
            if time.monotonic() > give_up:
                self._is_cut = True
                return
            path = os.path.join(start, entry.path[len(os.path.join(real, "")) :])
            with contextlib.suppress(OSError):  # a link to nowhere, or removed meanwhile
                if (one := self._file(entry, path)) is not None:
                    yield one

    def _is_left_out(self, folder: os.DirEntry[str]) -> bool:
        """Whether a folder is a cache, an environment, or one of Windlass."""
        marks = (os.path.join(folder.path, name) for name in MARKS)
        return bool(CACHES.fullmatch(folder.name)) or folder.path in self._skipped or any(map(os.path.exists, marks))

    def _file(self, entry: os.DirEntry[str], path: str) -> File | None:
        if entry.stat(follow_symlinks=False).st_ctime <= self.request.since:
            return None
        if entry.is_symlink() and not self._is_inside(path):
            return None
        status = entry.stat()
        return File(path, status) if stat.S_ISREG(status.st_mode) else None

    def _real(self, path: str) -> str:
        return os.path.realpath(os.path.join(self.code, path))

    def _is_inside(self, path: str) -> bool:
        return _is_below(self._real(path), self.code)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _mark(status: os.stat_result) -> tuple[int, int]:
    """By which a file is taken for unchanged."""
    return status.st_size, status.st_mtime_ns


def _require_space(folder: str, num_bytes: int) -> None:
    """Raises OSError before a disk is filled in vain. A file system that does not know its size has 0 blocks."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if found.f_blocks and num_bytes > free:
        raise OSError(f"it takes {num_bytes:,} bytes, and {free:,} are free")


def _is_linked(partial: str, target: str) -> bool:
    """Put a file at a place unless another one is there; returns whether it was put there. Raises OSError."""
    try:
        os.link(partial, target)
    except FileExistsError:
        return False
    except OSError:  # of a file system without hard links
        if os.path.lexists(target):
            return False
        os.replace(partial, target)
    return True


def matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path match those of a pattern, or lie in a folder that does; `**` is any number of
    folders."""
    places = {0}  # in the pattern, for the parts of the path so far
    for part in path:
        for at in range(len(pattern)):
            if at in places and pattern[at] == "**":
                places.add(at + 1)
        if len(pattern) in places:
            return True
        stays = {at for at in places if pattern[at] == "**"}
        places = stays | {at + 1 for at in places - stays if fnmatchcase(part, pattern[at])}
    return len(pattern) in places
