"""Reads and writes the files of checkpoints in a shared folder: durable writes, no links followed.

Standard library only, Python 3.9, because the writer process uses this module.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

ASIDE = ".damaged"
"""Suffix of a checkpoint that was set aside. Versions that do not know the suffix ignore the folder."""
WRITE_BYTES = 32 << 10
"""Bytes per write call, as in `storage/files.py`: larger writes are slower on some virtual machines (decision 0082)."""
RUN_MARKER = "run-"
"""Prefix of the name of an empty file in a checkpoint; the rest of the name is the run id. The file exists before the
manifest."""


class NotPlainFile(OSError):
    """A symbolic link, pipe or folder in place of a file: not a disk error, and not written by Windlass."""


class Folder:
    """A folder of checkpoints on a disk that all ranks share. All methods raise OSError."""

    num_reads = 1
    """Number of reads before a file counts as damaged; more for an object store: bytes may change in transit."""

    def __init__(self, path: str) -> None:
        self.path = path

    def make(self) -> None:
        """Creates the folder if it is missing."""
        # Unlike os.makedirs, Path.mkdir raises every error of the file system.
        Path(self.path).mkdir(parents=True, exist_ok=True)

    def checkpoints(self) -> list[str]:
        """Returns the names of its subfolders, complete checkpoints or not, without links; empty if it does not
        exist.
        """
        try:
            with os.scandir(self.path) as entries:
                found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return [name for name in found if not name.startswith(".")]

    def files(self, checkpoint: str) -> dict[str, int]:
        """Returns name and size in bytes of each plain file of a checkpoint, without links, which may point
        anywhere.
        """
        with os.scandir(self._within(checkpoint)) as entries:
            return {
                entry.name: entry.stat(follow_symlinks=False).st_size
                for entry in entries
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")
            }

    def changed_at(self, checkpoint: str) -> float:
        """Returns when the checkpoint was last changed, in Unix seconds."""
        return os.lstat(self._within(checkpoint)).st_mtime

    def open(self, checkpoint: str, file: str) -> BinaryIO:
        """Opens a file for unbuffered reading, without following links or waiting for the writer of a pipe."""
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
        """Creates the folder of a checkpoint, unless another rank has created it, and an empty file named after the
        run.

        The parent folder must exist: if a disk was unmounted, its mount point must not be filled.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._within(checkpoint))
        marker = RUN_MARKER + run_id
        if run_id and is_plain_name(marker):
            # The marker protects the remains of an interrupted save from removal; a save without it can still succeed.
            with contextlib.suppress(OSError):
                os.close(os.open(self._within(checkpoint, marker), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))

    def run_of(self, checkpoint: str) -> str:
        """Returns the run id that was given to `begin`; empty if none was given."""
        names = (name for name in self.files(checkpoint) if name.startswith(RUN_MARKER))
        return next((name[len(RUN_MARKER) :] for name in names), "")

    def put(self, checkpoint: str, file: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Writes a file atomically, as `replacing` does."""
        done = 0
        with replacing(self._within(checkpoint, file)) as written:
            for piece in pieces:
                for start in range(0, len(piece), WRITE_BYTES):
                    written.write(piece[start : start + WRITE_BYTES])
                # Starts writing to the disk now, so that the fsync at the end has little left to do.
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(written.fileno(), done, len(piece), os.POSIX_FADV_DONTNEED)
                done += len(piece)

    def discard(self, checkpoint: str, file: str) -> None:
        """Removes a checkpoint's file if it exists."""
        Path(self._within(checkpoint, file)).unlink(missing_ok=True)

    def sync(self, checkpoint: str) -> None:
        """Makes file names durable: syncs the folder of the checkpoint and its parent."""
        for path in (self._within(checkpoint), self.path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def set_aside(self, checkpoint: str) -> None:
        """Renames a damaged checkpoint, so that no version of Windlass loads it. Fails if the new name is taken."""
        os.rename(self._within(checkpoint), self._within(checkpoint + ASIDE))

    def remove(self, checkpoint: str, first: str) -> None:
        """Removes a checkpoint, and its file `first` before all others. The checkpoint is renamed first, so that no
        writer adds files to it.
        """
        path, hidden = self._within(checkpoint), self._within(f".{checkpoint}.removed")
        Path(path, first).unlink(missing_ok=True)
        shutil.rmtree(hidden, ignore_errors=True)
        os.rename(path, hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def finish_removals(self) -> None:
        """Completes removals whose process was killed. Nothing lists their folders or writes to them."""
        for hidden in Path(self.path).glob(".step-*.removed"):
            shutil.rmtree(hidden, ignore_errors=True)

    def undo_words(self, checkpoint: str) -> str:
        """Describes how to use a checkpoint again that was set aside."""
        return f"rename it to {checkpoint[: -len(ASIDE)]}"

    def _within(self, *names: str) -> str:
        for name in names:
            if not is_plain_name(name):
                raise OSError(f"{name!r} is not a plain name")
        return os.path.join(self.path, *names)


def is_address(path: str) -> bool:
    """Whether the text is the address of a store and not a path."""
    return "://" in path


def absolute(path: str) -> str:
    """Returns an absolute path, with `~` expanded; an address is returned unchanged."""
    if is_address(path):  # the address `s3://` without a bucket is refused later
        return path if path.endswith("://") else path.rstrip("/")
    return os.path.abspath(os.path.expanduser(path))


def is_plain_name(name: object) -> bool:
    """Whether the name denotes a direct entry of a folder."""
    return isinstance(name, str) and 0 < len(name) <= 255 and name not in (".", "..") and not set(name) & set("/\\\0")


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Writes a temporary file next to `path`, syncs and renames it at the end: complete and durable, or absent."""
    partial = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        os.rename(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
