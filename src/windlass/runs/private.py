"""Makes a home for records that no other user can look into, also where the folder was there before."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from windlass.errors import StoreError

RECORD: Final = "record.db"
BESIDE_RECORD: Final = ("record.db-wal", "record.db-shm", "record.db-journal", "record.lock", "reserve", "reserve.new")
FOLDERS: Final = ("runs", "warm", "travel", "trash")
OTHERS: Final = 0o077


def prepare(home: Path) -> None:
    """Make the home and what must lie in it, for this user alone. Raises StoreError, OSError.

    A folder that was there and holds other things too, such as one of a project that WINDLASS_HOME names, keeps its
    mode: what is ours in it is closed instead.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_foreign(home)
    about = home.stat()
    if about.st_uid == os.geteuid() and about.st_mode & OTHERS and _is_ours_alone(home):
        home.chmod(0o700)
    with contextlib.suppress(FileExistsError):
        (home / "runs").mkdir(mode=0o700)
    with contextlib.suppress(FileExistsError):  # SQLite gives the files beside it the mode of this one
        os.close(os.open(home / RECORD, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for name in (RECORD, "runs", *BESIDE_RECORD, *FOLDERS):
        _close_to_others(home / name)


def refuse_foreign(home: Path) -> None:
    """Raise StoreError if the home or what must lie in it belongs to another user. Changes nothing."""
    if (owner := home.stat().st_uid) not in (os.geteuid(), 0):  # they could put another record in place of ours
        raise _foreign(home, owner)
    for name in (RECORD, "runs", *BESIDE_RECORD, *FOLDERS):
        with contextlib.suppress(FileNotFoundError):
            about = (home / name).lstat()
            if about.st_uid != os.geteuid() and not stat.S_ISLNK(about.st_mode):
                raise _foreign(home / name, about.st_uid)


def _close_to_others(path: Path) -> None:
    try:
        about = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(about.st_mode):
        return  # a user who has moved a folder to another disk has said who may look there
    if about.st_uid != os.geteuid():
        raise _foreign(path, about.st_uid)
    if about.st_mode & OTHERS:
        with contextlib.suppress(FileNotFoundError):  # SQLite and the reserve remove what they do not need
            path.chmod(stat.S_IMODE(about.st_mode) & ~OTHERS)


def _is_ours_alone(home: Path) -> bool:
    return {path.name for path in home.iterdir()} <= {RECORD, *BESIDE_RECORD, *FOLDERS}


def _foreign(path: Path, owner: int) -> StoreError:
    who = f"user {_name(owner)}, and this process runs as {_name(os.geteuid())}"
    return StoreError(f"{path} belongs to {who}", "set WINDLASS_HOME to a folder of your own")


def _name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
