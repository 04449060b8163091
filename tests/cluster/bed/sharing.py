"""Lets tests share a test cluster or use one exclusively, and removes clusters that tests have started.

Each user holds a kernel lock on a file next to the cluster's folder, so a killed test does not block others.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.host import BedError
from tests.cluster.bed.layout import MOST_BEDS, Layout
from tests.helpers.golang import locked
from tests.helpers.until import passed


@contextmanager
def borrowed(index: int = 0) -> Iterator[Bed]:
    """Yields a shared test cluster; the last user removes it if tests have started it."""
    layout = Layout(index)
    with layout.users.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        there = Bed.at(index).is_up()
        bed = Bed.up(index)
        if not there:
            layout.borrowed.touch()
        try:
            yield bed
        finally:
            if _alone_on(file) and layout.borrowed.exists():
                bed.down()


@contextmanager
def operating(bed: Bed, name: str) -> Iterator[None]:
    """Runs an operator in a shared test cluster; the last user stops it."""
    with bed.layout.operator_users(name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        bed.start_operator(name)
        try:
            yield
        finally:
            if _alone_on(file):
                bed.stop_operator(name)


@contextmanager
def alone() -> Iterator[Bed]:
    """Yields an exclusive test cluster that may be broken, and removes it afterwards. Cluster 0 is the shared one."""
    for index in range(1, MOST_BEDS):
        layout = Layout(index)
        with layout.users.open("w") as file:
            developed_on = Bed.at(index).is_up() and not layout.borrowed.exists()
            if developed_on or not _alone_on(file):
                continue
            bed = Bed.at(index)
            try:
                bed.down()
                Bed.up(index)
                layout.borrowed.touch()
                yield bed
            finally:
                bed.down()
            return
    raise BedError(f"bed: all of the beds 1 to {MOST_BEDS - 1} are in use")


@contextmanager
def only_user(bed: Bed, of: str) -> Iterator[None]:
    """Acquires exclusive use of something cluster-wide, such as a kind or a driver."""
    with locked(bed.layout.folder / f"{of}.lock"):
        yield


REST_SECONDS = 10.0
"""Minimum seconds between two faults: those of several tests together must not exceed what a cluster tolerates."""


@contextmanager
def striking(bed: Bed, strike: str = "") -> Iterator[None]:
    """Allows one fault at a time in what all users of the cluster share; without a name, excludes faults of others."""
    with (bed.layout.folder / "strikes").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ended = max((one[2] for one in strikes_since(bed, 0)), default=0.0)
        passed(max(0.0, ended + REST_SECONDS - time.monotonic()))
        began = time.monotonic()
        try:
            yield
        finally:
            if strike:
                file.write(json.dumps([strike, began, time.monotonic()]) + "\n")


def strikes_since(bed: Bed, moment: float) -> list[tuple[str, float, float]]:
    """Returns name, start and end of the faults that have ended since a moment of the monotonic clock."""
    path = bed.layout.folder / "strikes"
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(one) for one in map(json.loads, lines) if one[2] >= moment]


def _alone_on(file: IO[str]) -> bool:
    """Tries to acquire the lock exclusively; returns whether no other process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
