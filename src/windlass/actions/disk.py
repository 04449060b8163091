"""How much of the disk the runs and sets of this machine take."""

from __future__ import annotations

from pathlib import Path

from windlass.runs.record import Status
from windlass.runs.store import OUTPUT, Store
from windlass.views.disk import DiskUse, RunDisk
from windlass.worker import file_list


def disk_use(store: Store) -> DiskUse:
    """What each run and each other folder of the home takes, the largest first."""
    runs = [run_disk(store, status) for status in store.statuses()]
    folders = [one for one in store.home.iterdir() if one.name != "runs"]  # which are counted by run
    others = {one.name: _bytes(one) for one in folders}
    total = sum(one.bytes for one in runs) + sum(others.values())
    return DiskUse(
        str(store.home),
        total,
        tuple(sorted(runs, key=lambda one: -one.bytes)),
        dict(sorted(others.items(), key=lambda one: -one[1])),
    )


def run_disk(store: Store, status: Status) -> RunDisk:
    """What the folder of one run takes, and its results and checkpoints in it."""
    folder = store.run_dir(status.id)
    results = _look(folder / OUTPUT)
    checkpoints = _look(folder / "checkpoints")
    return RunDisk(status.id, status.phase, _look(folder)[1], *results, checkpoints[1])


def _bytes(path: Path) -> int:
    try:
        return path.lstat().st_size if not path.is_dir() or path.is_symlink() else _look(path)[1]
    except FileNotFoundError:  # removed meanwhile
        return 0


def _look(folder: Path) -> tuple[int, int]:
    """Files of a folder, and their bytes; none where it is not there. Raises OSError."""
    try:
        found = file_list.list_files(str(folder))
    except FileNotFoundError:
        return 0, 0
    return int(found["files"]), int(found["bytes"])
