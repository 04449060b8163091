"""Measures the disk space of runs and data sets on this machine."""

from __future__ import annotations

from pathlib import Path

from windlass.runs.record import Status
from windlass.runs.store import OUTPUT, Store
from windlass.views.disk import DiskUse, RunDisk
from windlass.worker import file_list


def disk_use(store: Store) -> DiskUse:
    """Returns the disk space of each run and of each other folder in the home folder, largest first."""
    runs = [run_disk(store, status) for status in store.statuses()]
    # in the folder `runs`, each run is measured separately
    folders = [one for one in store.home.iterdir() if one.name != "runs"]
    others = {one.name: _bytes(one) for one in folders}
    total = sum(one.bytes for one in runs) + sum(others.values())
    return DiskUse(
        str(store.home),
        total,
        tuple(sorted(runs, key=lambda one: -one.bytes)),
        dict(sorted(others.items(), key=lambda one: -one[1])),
    )


def run_disk(store: Store, status: Status) -> RunDisk:
    """Returns the disk space of a run's folder, and of the results and checkpoints in the folder."""
    folder = store.run_dir(status.id)
    results = _look(folder / OUTPUT)
    checkpoints = _look(folder / "checkpoints")
    return RunDisk(status.id, status.phase, _look(folder)[1], *results, checkpoints[1])


def _bytes(path: Path) -> int:
    try:
        return path.lstat().st_size if not path.is_dir() or path.is_symlink() else _look(path)[1]
    except FileNotFoundError:  # the file was removed since the folder was listed
        return 0


def _look(folder: Path) -> tuple[int, int]:
    """Returns the number and total bytes of the files in a folder; zeros for a missing folder. Raises OSError."""
    try:
        found = file_list.list_files(str(folder))
    except FileNotFoundError:
        return 0, 0
    return int(found["files"]), int(found["bytes"])
