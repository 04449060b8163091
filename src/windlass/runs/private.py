"""Makes the folder of the records readable by its user only, even if it existed before."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from windlass.errors import StoreError

RECORD: Final = "record.db"
BESIDE_RECORD: Final = ("record.db-wal", "record.db-shm", "record.db-journal", "record.lock", "reserve", "reserve.new")
FOLDERS: Final = (
    "runs",
    "warm",
    "travel",
    "trash",
    "clusters",
    "transfers",
    "slots",
    "sagemaker-local",
    "sagemaker-storage",
    "services",
    "deployments",
    "serving",
    "environments",
    "ui",
)
CACHE: Final = "data"
"""Name of the cache of data sets, whose mode is set and checked by the cache itself. In a project folder the user may
own this name, so that a folder `data` keeps its mode and does not identify a home."""
OTHERS: Final = 0o077


def service_folder(home: Path | str, run_id: str) -> Path:
    """Returns the folder with the credentials of a service on this machine; it exists while the run is active."""
    return Path(home) / "services" / run_id


def prepare(home: Path) -> None:
    """Creates the home and its required content, accessible to this user only. Raises StoreError, OSError.

    An existing folder with other content, such as a project that WINDLASS_HOME names, keeps its mode; only Windlass's
    files in it become private.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_foreign(home)
    about = home.stat()
    if about.st_uid == os.geteuid() and about.st_mode & OTHERS and _has_only_ours(home):
        home.chmod(0o700)
    with contextlib.suppress(FileExistsError):
        (home / "runs").mkdir(mode=0o700)
    with contextlib.suppress(FileExistsError):  # SQLite gives the mode of this file to its auxiliary files
        os.close(os.open(home / RECORD, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for path, mode in _own(home):
        if mode & OTHERS:
            with contextlib.suppress(FileNotFoundError):  # SQLite or another process may have deleted the file
                path.chmod(stat.S_IMODE(mode) & ~OTHERS)


def refuse_foreign(home: Path) -> None:
    """Raises StoreError if the home or its required content belongs to another user. Changes nothing."""
    if not home.exists():
        return
    if (owner := home.stat().st_uid) not in (os.geteuid(), 0):  # another owner could replace the record
        raise foreign(home, home, owner)
    for _ in _own(home):
        pass


def _own(home: Path) -> Iterator[tuple[Path, int]]:
    """Yields the existing files and folders of the record with their modes. Raises StoreError if one belongs to another
    user.

    Folders that the user or root has replaced by links, as to another disk, are skipped. A link of another user is
    refused too: in a world-writable folder it could lead to a place where that user reads and replaces Windlass's
    files.
    """
    for path in (home / name for name in (RECORD, *BESIDE_RECORD, *FOLDERS, CACHE)):
        with contextlib.suppress(FileNotFoundError):
            about = path.lstat()
            is_link = stat.S_ISLNK(about.st_mode)
            if path.name == CACHE and not is_link:
                continue
            if about.st_uid != os.geteuid() and not (is_link and about.st_uid == 0):
                raise foreign(path, home, about.st_uid)
            if not is_link:
                yield path, about.st_mode


def _has_only_ours(home: Path) -> bool:
    return {path.name for path in home.iterdir()} <= {RECORD, *BESIDE_RECORD, *FOLDERS}


def foreign(path: Path, home: Path, owner: int) -> StoreError:
    """Returns the error for a path in a home that belongs to another user."""
    import shlex

    me, fix = _name(os.geteuid()), "set WINDLASS_HOME to a folder of your own"
    if owner == 0:  # `sudo windlass run` creates such files
        fix = f"if sudo made it: sudo chown -R {me} {shlex.quote(str(home))}; else {fix}"
    return StoreError(f"{path} belongs to user {_name(owner)}, and this process runs as {me}", fix)


def _name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
