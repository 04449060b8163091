"""Records the deployments that this machine created, so that they are listed even if their target does not answer."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from windlass.errors import UsageError

FOLDER: Final = "deployments"
"""Folder in the home of the records, with a file for each deployment that this machine has made."""
STAGING: Final = ".staging-"
"""Prefix of folders in `FOLDER` in which the files of a model are gathered; the process id follows."""
FILE: Final = "deployment.json"
MODEL: Final = "model"
"""Folder with the files of a model that is deployed on this machine."""


@dataclass(frozen=True, slots=True)
class KnownDeployment:
    """A deployment that this machine has begun to create."""

    name: str
    target: str
    created_at: float
    """Unix seconds."""
    ends_at: float | None
    """When the deployment ends by itself, in Unix seconds; None if it never does."""
    run_id: str = ""
    labels: tuple[str, ...] = ()
    """Names of the model's classes in order; empty if they are unknown."""
    place: str = ""
    """Place of the target at that time, as `Deployments.place` returned it; empty if it is unknown."""


def folder_of(home: Path, target: str, name: str) -> Path:
    """Returns the folder of a deployment. Callers have checked that neither name contains a slash."""
    return home / FOLDER / target / name


@contextlib.contextmanager
def creating(home: Path, known: KnownDeployment) -> Iterator[None]:
    """Writes the file of a deployment before anything is created at the target. Within the block, no other process of
    this machine can create or forget the same deployment. Raises UsageError, OSError.
    """
    folder = folder_of(home, known.target, known.name)
    with _all_locked(home):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = _lock(folder)
    if lock is None:
        raise UsageError(
            f"another process is creating {known.name} on {known.target}", "wait until that process has ended"
        )
    try:
        remember(home, known)
        yield
    finally:
        os.close(lock)


def remember(home: Path, known: KnownDeployment) -> None:
    """Writes the file of a deployment. Raises OSError."""
    folder = folder_of(home, known.target, known.name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    import secrets  # lists of runs read this module's files, and need no random numbers

    written = folder / f"{secrets.token_hex(4)}.new"
    with open(written, "w", encoding="utf-8") as file:
        json.dump(asdict(known), file)
        file.flush()
        os.fsync(file.fileno())
    written.replace(folder / FILE)


@contextlib.contextmanager
def _all_locked(home: Path) -> Iterator[None]:
    """Waits for the lock that processes hold for moments, while they lock or remove the folder of a deployment.

    Without it, a process could lock a folder that another one has removed, and `services` could refuse a `deploy`.
    """
    folder = home / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _lock(folder: Path) -> int | None:
    """Returns the open descriptor that locks the folder of a deployment; None if another process has locked it."""
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return None
    return opened


def known_deployments(home: Path) -> Iterator[KnownDeployment]:
    """Yields the deployments that this machine has made and that no target has reported as removed."""
    for path in sorted((home / FOLDER).glob(f"*/*/{FILE}")):
        target, name = path.parent.parent.name, path.parent.name
        # A model that is being staged may have a file of this name too.
        if not target.startswith(STAGING) and (found := read_known(home, target, name)) is not None:
            yield found


def read_known(home: Path, target: str, name: str) -> KnownDeployment | None:
    """Returns the record of a deployment on this machine; None if this machine did not create the deployment."""
    path = folder_of(home, target, name) / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return KnownDeployment(**{**data, "labels": tuple(data.get("labels", ()))})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        # The file cannot be read, but the deployment may exist and may bill.
        return KnownDeployment(name, target, path.stat().st_mtime, None)


def forget(home: Path, target: str, name: str) -> None:
    """Removes the folder of a deployment, after the target has reported that the deployment is gone.

    Does nothing while a process of this machine creates the deployment.
    """
    folder = folder_of(home, target, name)
    if not folder.is_dir():
        return
    with _all_locked(home):
        if folder.is_dir() and (lock := _lock(folder)) is not None:
            # The record is deleted last: commands find a folder only by its record, and this process may be killed.
            shutil.rmtree(folder / MODEL, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
