"""Where checkpoints lie: the few things that are asked of a place, and a folder as the first such place.

Standard library only, Python 3.9: the writer process uses it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from typing import BinaryIO, Protocol

ASIDE = ".damaged"
"""Ends the name of a checkpoint that was set aside. Versions that do not know it take the folder for none of theirs."""
_BEGUN_BY = "run-"
"""Begins the name of an empty file in a checkpoint; the rest is the id of its run, also before there is a manifest."""


class NotPlainFile(OSError):
    """A symbolic link, a pipe or a folder in the place of a file: no disk error, and nothing that Windlass wrote."""


class Storage(Protocol):
    """A place that keeps files under `checkpoint/file`. Whatever can do this can keep checkpoints.

    All methods raise OSError where the place refuses. Nothing here lists, renames or locks across checkpoints, so a
    bucket of an object store can do it: `put` is then an upload that becomes visible when it is finished.
    """

    def checkpoints(self) -> list[str]:
        """Names of all checkpoints, whole or not, in any order; none where the place does not exist yet."""
        ...

    def files(self, checkpoint: str) -> dict[str, int]:
        """Name and size in bytes of each file of a checkpoint."""
        ...

    def open(self, checkpoint: str, file: str) -> BinaryIO:
        """A file for reading, unbuffered and seekable. Raises OSError where it is no plain file."""
        ...

    def begin(self, checkpoint: str, run_id: str = "") -> None:
        """Make room for a checkpoint's files, and keep the id of its run. No error where another rank has done so."""
        ...

    def begun_by(self, checkpoint: str) -> str:
        """The run id that was given to `begin`; empty where none was."""
        ...

    def set_aside(self, checkpoint: str) -> None:
        """Rename a damaged checkpoint to `checkpoint.damaged`: it stays, and no version of Windlass loads it."""
        ...

    def put(self, checkpoint: str, file: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Keep a file: whole and durable once this returns, or not there at all."""
        ...

    def settle(self, checkpoint: str) -> None:
        """Make durable that the files are there, after `put`s of whatever rank."""
        ...

    def remove(self, checkpoint: str, first: str) -> None:
        """Remove a checkpoint: file `first`, whose absence makes it none, before all others."""
        ...


class Folder:
    """A folder on a disk that all ranks share."""

    def __init__(self, path: str) -> None:
        self.path = path

    def checkpoints(self) -> list[str]:
        """Names of the folders in it; links are none."""
        try:
            with os.scandir(self.path) as entries:
                found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return [name for name in found if not name.startswith(".")]

    def files(self, checkpoint: str) -> dict[str, int]:
        """Plain files alone: a link may lead anywhere."""
        with os.scandir(self._within(checkpoint)) as entries:
            return {
                entry.name: entry.stat(follow_symlinks=False).st_size
                for entry in entries
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")
            }

    def open(self, checkpoint: str, file: str) -> BinaryIO:
        """Opened without following a link, and without waiting for whoever may feed a pipe."""
        path = self._within(checkpoint, file)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotPlainFile(f"{path} is a symbolic link, and those are not followed") from error
            raise
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotPlainFile(f"{path} is not a plain file")
            return open(descriptor, "rb", buffering=0)
        except BaseException:
            os.close(descriptor)
            raise

    def begin(self, checkpoint: str, run_id: str = "") -> None:
        """The folder of all checkpoints must be there: where a disk is gone, its mount point is not to be filled."""
        try:
            os.mkdir(self._within(checkpoint))
        except FileExistsError:
            pass
        marker = _BEGUN_BY + run_id
        if run_id and is_plain_name(marker):
            try:
                os.close(os.open(self._within(checkpoint, marker), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
            except OSError:
                pass  # it only matters where the save is cut off: what is left then stays

    def begun_by(self, checkpoint: str) -> str:
        """From the name of an empty file."""
        return next((name[len(_BEGUN_BY) :] for name in self.files(checkpoint) if name.startswith(_BEGUN_BY)), "")

    def put(self, checkpoint: str, file: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Written beside its place, synced, then renamed into it."""
        path = self._within(checkpoint, file)
        partial = self._within(checkpoint, f".{file}.partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            try:
                self._write(descriptor, pieces)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(partial, path)
        except BaseException:
            _unlink(partial)
            raise

    @staticmethod
    def _write(descriptor: int, pieces: Iterable[bytes | memoryview]) -> None:
        done = 0
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[os.write(descriptor, left) :]
            # Begin writing it to the disk now, so that the fsync at the end finds little left to do.
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, done, len(piece), os.POSIX_FADV_DONTNEED)
            done += len(piece)

    def settle(self, checkpoint: str) -> None:
        """Sync the folder, and the one it stands in."""
        for path in (self._within(checkpoint), self.path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def set_aside(self, checkpoint: str) -> None:
        """One rename. Fails where one of that name has been set aside before."""
        os.rename(self._within(checkpoint), self._within(checkpoint + ASIDE))

    def remove(self, checkpoint: str, first: str) -> None:
        """Take it out of sight in one step as well: a writer that still wants to add to it finds it gone."""
        path = self._within(checkpoint)
        hidden = self._within(f".{checkpoint}.removed")
        _unlink(os.path.join(path, first))
        shutil.rmtree(hidden, ignore_errors=True)
        os.rename(path, hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def _within(self, *names: str) -> str:
        for name in names:
            if not is_plain_name(name):
                raise OSError(f"{name!r} is not a plain name")
        return os.path.join(self.path, *names)


def is_plain_name(name: object) -> bool:
    """Whether it names something directly inside a folder, and nothing else."""
    return isinstance(name, str) and 0 < len(name) <= 255 and name not in (".", "..") and not set(name) & set("/\\\0")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
