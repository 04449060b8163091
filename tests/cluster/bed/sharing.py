"""Lets tests share a bed, or have one for themselves, and takes down what tests have brought up.

Each user holds a lock of the kernel's on a file beside the bed, so a test that is killed holds up nobody.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.host import BedError
from tests.cluster.bed.layout import MOST_BEDS, Layout


@contextmanager
def borrowed(index: int = 0) -> Iterator[Bed]:
    """A bed to share with other tests; the last to give it back takes down one that tests have brought up."""
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
    """An operator in a bed that others may share; the last to need it stops it."""
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
    """A bed that nobody else uses, to be broken at will; down again afterwards. Bed 0 is the shared one."""
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


def _alone_on(file: IO[str]) -> bool:
    """Whether nobody else has the lock; then it is ours alone."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
