"""Opens the places at addresses, and the journal of a copy between two places."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from windlass.errors import StorageError, UsageError
from windlass.storage.address import Address, key_of
from windlass.storage.copy_note import CopyNoteFile
from windlass.storage.folder import PARTIAL, Folder
from windlass.storage.journal import Journal, files_of
from windlass.storage.manifest import File
from windlass.storage.names import OWN
from windlass.storage.place import Place, system_errors

LOCK: Final = "lock"
JOURNAL: Final = "journal.jsonl"


def open_place(address: Address, home: Path, *, is_signed: bool = True) -> Place:
    """Opens the place of an address. `home` is the folder WINDLASS_HOME. Requests to S3 are signed if `is_signed`;
    public buckets need no signature.

    Raises StorageError, UsageError, MissingExtra.
    """
    if address.is_folder:
        return Folder(address)
    # HTTP and XML are imported only for the places that need them, because processes on each host import this module.
    if address.is_http:
        from windlass.storage.http_place import HttpPlace

        return HttpPlace(address)
    from windlass.storage.object_place import ObstorePlace, S3Place
    from windlass.stores.s3.credentials import UNSIGNED

    if address.kind != "s3":
        return ObstorePlace(address)
    return S3Place(address, _state(address, home), None if is_signed else {**os.environ, UNSIGNED: "1"})


@contextmanager
def journal_for(source: Address, destination: Address, home: Path, *, waits: bool = False) -> Iterator[Journal]:
    """Yields the journal of a copy, locked against other processes. Raises UsageError.

    If another process holds the lock, waits with `waits`, and raises StorageError otherwise.
    """
    _refuse_overlap(source, destination)
    folder = _own_folder(destination, home)
    was_there = folder.parent.exists()
    # In a folder, the state gets the default mode, like the files. In the home, the state is private.
    with locked(folder, str(destination), waits=waits, mode=0o777 if destination.is_folder else 0o700):
        is_done = False
        try:
            with Journal(folder / JOURNAL) as journal:
                yield journal
            is_done = True
        finally:
            if destination.is_folder:
                _remove_finished(folder)
                if not (is_done or was_there):
                    with suppress(OSError):
                        folder.parent.rmdir()


def written_before(source: Address, destination: Address, home: Path) -> dict[str, File]:
    """Returns the files that an interrupted copy to the destination has written, by name. Raises UsageError."""
    _refuse_overlap(source, destination)
    return files_of(_own_folder(destination, home) / JOURNAL)


@contextmanager
def no_copy_to(destination: Address, home: Path) -> Iterator[None]:
    """Prevents copies to the destination during the block. Raises StorageError if a copy is in progress."""
    folder = _own_folder(destination, home)
    with locked(folder, str(destination), mode=0o777 if destination.is_folder else 0o700):
        try:
            yield
        finally:
            if destination.is_folder:
                _remove_finished(folder)


def _own_folder(destination: Address, home: Path) -> Path:
    return Path(destination.path) / OWN if destination.is_folder else _state(destination, home)


def note_of(source: Address, destination: Address, home: Path) -> CopyNoteFile:
    """Returns the file in which a copy between two addresses records that both are equal."""
    return CopyNoteFile(_state(destination, home).parent / "notes" / f"{key_of(f'{source} {destination}')}.json")


@contextmanager
def locked(folder: Path, destination: str, *, waits: bool = False, mode: int = 0o700) -> Iterator[None]:
    """Locks the destination whose state is in `folder`, which is created with `mode`.

    If another process holds the lock, waits with `waits`, and raises StorageError otherwise.
    """
    while True:
        with system_errors(str(folder)):
            folder.mkdir(mode=mode, parents=True, exist_ok=True)
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode & 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except BlockingIOError as error:
                hint = "wait for it: a second copy then has nothing to do"
                raise StorageError(f"another copy to {destination} is under way", hint) from error
            if not _is_there(folder / LOCK, lock):
                continue  # the previous holder deleted this lock file
            yield
            return
        finally:
            os.close(lock)


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether the open file still has this path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def _remove_finished(folder: Path) -> None:
    """Removes the state of a copy if no file is left to resume."""
    with suppress(OSError):
        (folder / PARTIAL).rmdir()
    if {one.name for one in folder.iterdir()} == {LOCK}:
        (folder / LOCK).unlink()
        with suppress(OSError):
            folder.rmdir()


def _state(address: Address, home: Path) -> Path:
    """Returns the folder on this machine for the state of copies to a store."""
    return home / "transfers" / key_of(str(address))


def _refuse_overlap(source: Address, destination: Address) -> None:
    if (source.kind, source.bucket) != (destination.kind, destination.bucket):
        return
    one, other = f"{source.path}/", f"{destination.path}/"
    if one.startswith(other) or other.startswith(one) or "/" in (one, other):
        raise UsageError(f"{source} and {destination} overlap", "copy to a place outside of the source")
