"""Copies new and changed files that match `outputs.collect` from the code folder to the outputs, and lists other new
files.

A script that was not written for Windlass saves its results in its own folder. On this machine the next run overwrites
them; in a container they are deleted with the container. A file counts as new or changed if its `ctime` is later than
the start of the run, which includes copies that preserve the modification time. The file may also be from another
program, or another run in the same folder.

Links that lead out of the code folder are not followed. Standard library of Python 3.9 only.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import itertools
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

MAX_LISTED = 10
"""Maximum number of files that are listed, the largest first. All files are counted."""
SCAN_SECONDS = 2.0
"""Seconds after which listing files stops. Finding and copying files that match `collect` has no time limit."""
PIECE_BYTES = 4 << 20
CACHES = re.compile(r"\..*|__pycache__|venv|node_modules|.*\.egg-info|torchinductor_.*|(models|datasets|spaces)--.*")
"""Names of folders without results: hidden folders such as `.git` and `.cache`, other caches, virtual environments, and
the snapshot folders of the Hugging Face hub."""
MARKS = ("CACHEDIR.TAG", "pyvenv.cfg")
"""Files that identify a cache or a virtual environment, whatever the name of its folder."""
CACHE_VARIABLES = (
    "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME", "KERAS_HOME", "XDG_CACHE_HOME",
    "PIP_CACHE_DIR", "UV_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR", "MPLCONFIGDIR",
)  # fmt: skip
MIN_STEP_SECONDS = 1.0
"""Smallest change of the clock that counts as setting it back; smaller ones are corrections of its rate."""
KERNEL = ("/proc", "/sys", "/dev")
"""Kernel file systems, which are skipped: some of their files always look new, some never end."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors of the whole output file system, after which copying further files would fail too."""


class File(NamedTuple):
    """A new or changed file."""

    path: str
    """Path relative to the code folder."""
    status: os.stat_result


class Stopped(Exception):
    """Raised when a stop without a grace period was requested."""


class Collection:
    """New and changed files of one code folder when a node ends."""

    def __init__(
        self, request: CollectSpec, code: str, output: str, env: Mapping[str, str], clock_step: float = 0.0
    ) -> None:
        """`env` is the environment of the ranks. Cache folders that its variables name are skipped, wherever
        they are. `clock_step` is the result of `step_of_clock` at the end of the node.
        """
        self.request = request.replace(since=request.since + clock_step)
        self.code = os.path.realpath(code)
        self.output = output
        named = [env[name] for name in CACHE_VARIABLES if env.get(name)]
        folders = (output, env.get("WINDLASS_CHECKPOINT_DIR", ""), *request.skip, *named)
        self._own = [one for one in folders[:2] if one and "://" not in one]
        """Output and checkpoint folders of the run, in which a script may also save."""
        self._skipped = {os.path.realpath(os.path.join(code, one)) for one in folders if one and "://" not in one}
        self._skipped |= {one for one in KERNEL if not _is_below(self.code, one)}
        self._problems: list[str] = []
        if clock_step:
            self._problems.append(
                f"the clock was set back by {-clock_step:,.0f} s during the run, so files that changed up to "
                f"{-clock_step:,.0f} s before it count as new"
            )
        self._is_cut = False
        self.has_none = False
        """Whether no file matches the patterns."""
        self.copied: list[File] = []

    # -- copies -------------------------------------------------------------------------------------------------------

    def wanted(self, is_stop_requested: Callable[[], bool] = lambda: False) -> list[File]:
        """Returns the files that match the patterns, each once; empty if an immediate stop was requested."""
        found: dict[str, File] = {}  # a file may match several patterns
        try:
            for pattern in self.request.patterns:
                for one in self._matching(pattern, is_stop_requested):
                    found.setdefault(one.path, one)
        except Stopped:
            self._problems.append("the run was stopped meanwhile")
            return []
        self.has_none = not found and bool(self.request.patterns)
        return list(found.values())

    def _matching(self, pattern: str, is_stop_requested: Callable[[], bool]) -> Iterator[File]:
        """Yields the files that match one pattern. If a folder matches, yields all files in the folder."""
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        plain = list(itertools.takewhile(lambda part: not re.search(r"[*?\[]", part), parts))
        if len(plain) == len(parts) and not os.path.isdir(self._real("/".join(plain))):
            plain = plain[:-1]
        start = "/".join(plain)
        if not self._is_inside(start):
            self._problems.append(f"{start} leads out of the code folder and was skipped")
            return
        found = self._changed(start, is_stop_requested=is_stop_requested)
        yield from (one for one in found if matches(one.path.split("/"), parts))

    def partial(self, node: int) -> str:
        """Returns the path of the partial copy of a file. It contains the node's number, because pods may use the same
        process ids.
        """
        return os.path.join(self.output, f".windlass-partial-{node}")

    def copy(
        self,
        wanted: list[File],
        *,
        node: int,
        began: float = 0.0,
        is_first: bool,
        is_stop_requested: Callable[[], bool],
    ) -> None:
        """Copies files, and records a problem for each failure. A copy gets its final name and mtime when it is
        complete.

        A file that already exists with the same size and mtime is not copied again. `began` is the start of the attempt
        in Unix seconds, 0 for the first attempt. Nodes with separate code folders may share one output folder: if they
        copy different files of the same path in one attempt, the file of the first node is kept.
        """
        partial = self.partial(node)
        others_since = None if self.request.is_shared else began
        for one in wanted:
            try:
                self._copy_one(one, partial, others_since, is_first=is_first, is_stop_requested=is_stop_requested)
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
        self,
        one: File,
        partial: str,
        others_since: float | None,
        *,
        is_first: bool,
        is_stop_requested: Callable[[], bool],
    ) -> None:
        """Copies one file, unless the outputs already contain the same file. Raises OSError, Stopped."""
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
        found = self._copied(one, partial, is_stop_requested)
        if is_first or there is not None or others_since is None:
            os.replace(partial, target)
        elif not _is_linked(partial, target):
            self._problems.append(f"{one.path} {OF_ANOTHER_NODE}")
            return
        if is_of_other:
            self._problems.append(f"{one.path} existed already, from another node or the script, and was replaced")
        self.copied.append(File(one.path, found))

    def _copied(self, one: File, partial: str, is_stop_requested: Callable[[], bool]) -> os.stat_result:
        """Copies the current content of a file to `partial` and returns the status of the source. Raises OSError,
        Stopped.
        """
        # O_NONBLOCK, because a pipe may have replaced the file meanwhile
        source = os.open(os.path.join(self.code, one.path), os.O_RDONLY | os.O_NONBLOCK)
        with open(source, "rb") as read, open(partial, "wb") as write:
            found = os.fstat(source)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no longer a regular file")
            _require_space(self.output, found.st_size)
            left = found.st_size  # copies only the present size, because the file may still be growing
            while left and (piece := read.read(min(left, PIECE_BYTES))):
                if is_stop_requested():
                    raise Stopped
                left -= write.write(piece)
        os.chmod(partial, stat.S_IMODE(found.st_mode))
        os.utime(partial, ns=(found.st_atime_ns, found.st_mtime_ns))
        return found

    # -- the list -----------------------------------------------------------------------------------------------------

    def report(self, now: float, *, is_success: bool = True, seconds: float = SCAN_SECONDS) -> CodeFiles:
        """Reports the copied files, and lists other new or changed files for at most `seconds`.

        If the ranks failed, patterns without a match are not reported, because failed ranks may have no results.
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
            largest=tuple(FileSize(one.path, one.status.st_size) for one in left[:MAX_LISTED]),
            is_cut=self._is_cut,
            problems=tuple(self._problems[:MAX_LISTED]),
            save=self._newest_save([*found, *self.copied]),
            has_none=self.has_none and is_success,
        )

    def _newest_save(self, found: Sequence[File]) -> SavedState | None:
        """Returns the newest file in `found` and in the folders of the run whose name looks like a saved training
        state.
        """
        saves = [
            SavedState(one.path, one.status.st_size, one.status.st_mtime) for one in found if is_saved_state(one.path)
        ]
        own = newest_saved(self._own, self.request.since)
        # a copy has the time of its original, and `max` returns the original
        return max([*saves, *([own] if own else [])], key=lambda one: one.at, default=None)

    # -- the folder ---------------------------------------------------------------------------------------------------

    def _changed(
        self, start: str, give_up: float = math.inf, is_stop_requested: Callable[[], bool] = lambda: False
    ) -> Iterator[File]:
        """Yields the changed files below `start`, and changed links to files of the code folder. Yields no more after
        `give_up` (monotonic seconds). Raises Stopped if a stop is requested.
        """
        real = self._real(start)
        if any(_is_below(real, one) for one in self._skipped):
            return
        for entry in walk(real, self._is_skipped):
            if is_stop_requested():
                raise Stopped
            if time.monotonic() > give_up:
                self._is_cut = True
                return
            path = os.path.join(start, entry.path[len(os.path.join(real, "")) :])
            with contextlib.suppress(OSError):  # dangling links and removed files are skipped
                if (one := self._file(entry, path)) is not None:
                    yield one

    def _is_skipped(self, folder: os.DirEntry[str]) -> bool:
        """Whether a folder is a cache, a virtual environment, or a folder of Windlass."""
        marks = (os.path.join(folder.path, name) for name in MARKS)
        return bool(CACHES.fullmatch(folder.name)) or folder.path in self._skipped or any(map(os.path.exists, marks))

    def _file(self, entry: os.DirEntry[str], path: str) -> File | None:
        """Returns a file, or the file to which a link leads, if the file or the link has changed."""
        if entry.is_symlink() and not self._is_inside(path):
            return None
        status = entry.stat()
        changed_at = max(status.st_ctime, entry.stat(follow_symlinks=False).st_ctime)
        return File(path, status) if changed_at > self.request.since and stat.S_ISREG(status.st_mode) else None

    def _real(self, path: str) -> str:
        return os.path.realpath(os.path.join(self.code, path))

    def _is_inside(self, path: str) -> bool:
        return _is_below(self._real(path), self.code)


def step_of_clock(began: tuple[float, float], now: tuple[float, float]) -> float:
    """Returns the seconds by which the clock was set back between two times, as a negative number; 0 if it was not.

    Each time is given in Unix seconds and in monotonic seconds. Files written after such a step have a `ctime` that may
    be before the start of the run.
    """
    step = (now[0] - began[0]) - (now[1] - began[1])
    return step if step < -MIN_STEP_SECONDS else 0.0


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _mark(status: os.stat_result) -> tuple[int, int]:
    """Returns the size and mtime by which a file counts as unchanged."""
    return status.st_size, status.st_mtime_ns


def _require_space(folder: str, num_bytes: int) -> None:
    """Raises OSError if the file system has too little free space, except for file systems that report 0 blocks."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if found.f_blocks and num_bytes > free:
        raise OSError(f"it takes {num_bytes:,} bytes, and {free:,} are free")


def _is_linked(partial: str, target: str) -> bool:
    """Moves a file to `target` unless `target` exists. Returns whether the file was moved. Raises OSError."""
    try:
        os.link(partial, target)
    except FileExistsError:
        return False
    except OSError:  # the file system does not support hard links
        if os.path.lexists(target):
            return False
        os.replace(partial, target)
    return True


def matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path matches a pattern, or is below a folder that matches. Path and pattern are given as parts; `**`
    matches any number of folders.
    """
    places = {0}  # positions in the pattern that the path can have reached so far
    for part in path:
        for at in range(len(pattern)):
            if at in places and pattern[at] == "**":
                places.add(at + 1)
        if len(pattern) in places:
            return True
        stays = {at for at in places if pattern[at] == "**"}
        places = stays | {at + 1 for at in places - stays if fnmatchcase(part, pattern[at])}
    return len(pattern) in places
