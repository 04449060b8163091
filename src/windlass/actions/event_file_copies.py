"""Program that runs beside TensorBoard: copies new event files and metrics of runs and object stores to one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from windlass.actions import runs
from windlass.actions.metrics import write_event_files
from windlass.errors import WindlassError
from windlass.plan.environment import SERVICE_DIR
from windlass.plan.steps import UploadStep
from windlass.runs.context import Context, here
from windlass.runs.store import Store
from windlass.stores.errors import StoreError
from windlass.stores.opening import open_store
from windlass.stores.ranged import BLOCK_BYTES, ObjectFile
from windlass.stores.store import Store as ObjectStore

EVENT_FILE: Final = "tfevents"
"""Part of the names of files that TensorBoard reads."""
PAUSE_SECONDS: Final = 10.0


class EventFileCopies:
    """Copies of the event files of several sources in one folder, one subfolder for each source."""

    def __init__(self, folder: Path, sources: Sequence[str]) -> None:
        """`sources` are run ids, addresses of object stores, and paths of folders."""
        names = [one.rstrip("/").rpartition("/")[2] for one in sources]
        is_unique = len(set(names)) == len(names)
        self._places = {
            source: folder / (name if is_unique else f"{number}-{name}")
            for number, (source, name) in enumerate(zip(sources, names, strict=True))
        }
        """Subfolder of each source."""
        self._name = f"{time.time_ns()}.windlass"
        """End of the names of the files with metrics: another program's points are in other files."""
        self._last: dict[str, dict[tuple[str, str, int], float]] = {}
        """Time of the newest written point, by run and series."""

    def update(self, context: Context) -> None:
        """Copies what is new in each source. A source that does not answer now is asked again by the next call."""
        for source, place in self._places.items():
            try:
                with context.store() as store:
                    self._update(source, place, store)
            except (WindlassError, StoreError, OSError) as error:
                print(f"{source}: {error}", file=sys.stderr, flush=True)

    def _update(self, source: str, place: Path, store: Store) -> None:
        if "://" in source:
            _copy_from(source, place)
        elif "/" in source:
            _link(place, Path(source))
        else:
            self._update_run(source, place, store)

    def _update_run(self, run_id: str, place: Path, store: Store) -> None:
        """Links a folder of event files, or copies those of an object store; without any, writes the metrics."""
        engine = runs.engine_for(run_id, store)
        output, plan = Path(engine.status(run_id).output_dir), engine.plan_of(run_id)
        if place.is_symlink() or (not place.exists() and output.is_absolute() and has_event_files(output)):
            _link(place, output)
            return
        upload = plan.first(UploadStep) if plan is not None else None
        if upload is not None and _copy_from(upload.destination, place):
            return
        series, last = engine.metrics(run_id), self._last.setdefault(run_id, {})
        write_event_files(place, series, name=self._name, after=last or {("", "", 0): 0.0})
        last.update({one.key: max(one.times) for one in series if one.times})


def has_event_files(folder: Path) -> bool:
    """Whether TensorBoard finds a file to read below a folder."""
    return any(EVENT_FILE in name for _, _, names in os.walk(folder) for name in names)


def _link(link: Path, folder: Path) -> None:
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(folder)


def _copy_from(address: str, folder: Path) -> bool:
    """Copies the event files below an address of an object store; see `copy_event_files`."""
    opened = open_store(address)
    return opened is not None and copy_event_files(*opened, folder)


def copy_event_files(store: ObjectStore, prefix: str, folder: Path) -> bool:
    """Copies new bytes of the event files below a prefix to a folder. Returns whether the prefix has any event file.

    Event files only grow, so a longer object is read from the end of its copy on. Raises StoreError, OSError.
    """
    start, is_any = f"{prefix}/" if prefix else "", False
    for one in store.listed(start):
        if isinstance(one, str) or EVENT_FILE not in one.key.rpartition("/")[2]:
            continue
        is_any, path = True, folder / one.key.removeprefix(start)
        if not path.resolve().is_relative_to(folder.resolve()):  # a key may contain `..`
            continue
        has = path.stat().st_size if path.exists() else -1
        if has == one.size:
            continue
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        source = ObjectFile(store, one)
        source.seek(has if 0 < has < one.size else 0)
        with open(path, "ab" if has < one.size else "wb") as file:
            shutil.copyfileobj(source, file, BLOCK_BYTES)
    return is_any


def main(words: Sequence[str], context: Context) -> None:
    """Updates the folder `words[0]` in the service's folder from the sources `words[1:]`, until the parent process
    ends.
    """
    copies, parent = EventFileCopies(Path(os.environ[SERVICE_DIR], words[0]), words[1:]), os.getppid()
    while os.getppid() == parent:
        copies.update(context)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:], here())
