"""Data sets that runs read: those that differ from an earlier run of the same job, and the links to cached ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from windlass.runs.record import Status
from windlass.runs.store import Store

LOOKED_AT: Final = 200
"""Runs, the newest first, among which an earlier one is looked for."""


@dataclass(frozen=True, slots=True)
class DataDifference:
    """A data set that is not the one which the newest earlier run of the job has read under its name."""

    name: str
    run: str
    """That run."""
    digest: str
    """Of the set that it has read."""


def data_differences(status: Status, store: Store) -> tuple[DataDifference, ...]:
    """The data sets of a run that differ from those of the newest earlier run of its job that has read any by the name.

    A user who compares two runs must know that they did not read the same.
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
    """The unfinished runs of this machine that have links to a data set, by its folder. Raises StoreError."""
    found: dict[Path, set[str]] = {}
    with Store(home) as store:
        for status in store.statuses(unfinished=True):
            folder = store.run_dir(status.id) / "data"
            for link in folder.iterdir() if folder.is_dir() else ():
                if link.is_symlink():
                    found.setdefault(link.resolve(), set()).add(status.id)
    return found
