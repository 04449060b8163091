"""Data sets of runs: differences from earlier runs of the same job, and links to cached sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from windlass.runs.record import Status
from windlass.runs.store import Store

LOOKED_AT: Final = 200
"""Number of newest runs that are searched for an earlier run of the job."""


@dataclass(frozen=True, slots=True)
class DataDifference:
    """A data set whose content differs from that of the job's last run with a set of this name."""

    name: str
    run: str
    """Id of the earlier run."""
    digest: str
    """Digest of the set that the earlier run read."""


def data_differences(status: Status, store: Store) -> tuple[DataDifference, ...]:
    """Returns the data sets of a run that differ from those of the newest earlier run of its job with sets of these
    names.

    A user who compares two runs must know if they read different data.
    """
    if not status.files.data:
        return ()
    earlier = [
        one
        for one in store.statuses(last=LOOKED_AT)
        if one.name == status.name and one.times.created_at < status.times.created_at
    ]
    found = []
    for staged in status.files.data:
        read = ((one.id, of) for one in earlier for of in one.files.data if of.name == staged.name)
        run, other = next(read, (status.id, staged))
        if other.digest != staged.digest:
            found.append(DataDifference(staged.name, run, other.digest))
    return tuple(found)


def unfinished_readers(home: Path) -> dict[Path, set[str]]:
    """Returns the unfinished runs of this machine that link to each data set, by the set's folder. Raises
    StoreError.
    """
    found: dict[Path, set[str]] = {}
    with Store(home) as store:
        for status in store.statuses(unfinished=True):
            folder = store.run_dir(status.id) / "data"
            for link in folder.iterdir() if folder.is_dir() else ():
                if link.is_symlink():
                    found.setdefault(link.resolve(), set()).add(status.id)
    return found
