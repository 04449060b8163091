"""Queue of a target of this machine: decides which waiting run gets slots next, and records which runs hold them.

Each run has a file in the folder of the queue, with a shared lock that its supervisor and its node workers hold. The
kernel releases it when the last of them ends, however it ends: a file without a lock is of a run that neither waits nor
holds slots. All files are read and written under one lock more, which is held for milliseconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from windlass.runs.store import locked

LOCK: Final = ".lock"
MAX_NAMED: Final = 4
"""Most runs that are named in the reason to wait."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A run in the queue."""

    run_id: str
    takes: int
    """Number of slots that it needs."""
    priority: int = 0
    """Runs with a higher one start first."""
    since: float = 0.0
    """Begin of its wait, in Unix seconds: the oldest starts first."""
    slots: tuple[int, ...] = ()
    """The slots that it holds, from 0; empty while it waits."""
    is_known: bool = True
    """Whether its file could be read; else it counts as holding all."""

    @property
    def order(self) -> tuple[int, float, str]:
        """Sort key among the runs that wait."""
        return -self.priority, self.since, self.run_id


def free_slots(mine: Ticket, others: Sequence[Ticket], total: int) -> tuple[int, ...]:
    """The slots that `mine` gets now, none where it waits: strictly by priority, then age.

    A run waits behind each one before it, even where its own slots are free: smaller runs must not pass a large one
    again and again.
    """
    held = {slot for one in others for slot in one.slots}
    free = [slot for slot in range(total) if slot not in held]
    is_next = all(one.slots or one.order > mine.order for one in others)
    fits = mine.takes <= min(len(free), total - len(held))  # fewer than are free, once `slots:` was lowered
    return tuple(free[: mine.takes]) if is_next and fits else ()


def why_waiting(mine: Ticket, others: Sequence[Ticket], total: int) -> str:
    """Why a run waits: `it takes 2 of 4 slots, and 1 is free: a-1 holds 3`."""
    holders = [one for one in others if one.slots]
    ahead = sorted((one for one in others if not one.slots and one.order < mine.order), key=lambda one: one.order)
    num_free = max(0, total - sum(len(one.slots) for one in holders))
    free = f"{num_free or 'none'} {'are' if num_free > 1 else 'is'} free"
    text = f"it takes {mine.takes} of {total} slots, and {free}"
    text += f": {_named([_held_by(one) for one in holders])}" if holders else ""
    if ahead:
        text += f"; ahead of it: {_named([f'{one.run_id}, which takes {one.takes}' for one in ahead])}"
    return text


def _held_by(one: Ticket) -> str:
    return f"{one.run_id} holds {len(one.slots) if one.is_known else 'an unknown number, since its file is damaged'}"


def _named(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return "; ".join(texts[:MAX_NAMED]) + more


class SlotQueue:
    """One run's entry in the slot queue of a target. Nothing is written before `take`."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder = folder
        self._path = folder / run_id
        self.lock: int | None = None
        """Descriptor of the run's file and its shared lock, which node workers inherit; None while it has none."""

    def take(self, mine: Ticket, total: int) -> tuple[tuple[int, ...], str, int]:
        """Enter the queue, and take slots if it is the run's turn: the slots, or why it waits, and how many of those
        that wait are ahead of it. Raises OSError.
        """
        with locked(self._folder / LOCK):
            self._keep()
            before = None if self.lock is None else _read(self.lock)
            if before is not None and before.slots:
                return before.slots, "", 0
            others = list(self.others(total))
            slots = free_slots(mine, others, total)
            if self.lock is None:
                self.lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self.lock, fcntl.LOCK_SH)
            data = json.dumps(asdict(replace(mine, slots=slots))).encode()
            os.pwrite(self.lock, data, 0)
            os.ftruncate(self.lock, len(data))
            num_ahead = sum(not one.slots and one.order < mine.order for one in others)
            return slots, "" if slots else why_waiting(mine, others, total), num_ahead

    def keep(self) -> None:
        """Hold the slots of nodes that an earlier supervisor of the run has started, also after they have ended, until
        the next attempt; nothing where they have ended already.
        """
        if self._path.exists():
            with contextlib.suppress(OSError), locked(self._folder / LOCK):
                self._keep()

    def leave(self) -> None:
        """Give the slots back, or stop waiting."""
        if self.lock is not None:
            with contextlib.suppress(OSError), locked(self._folder / LOCK):
                self._path.unlink(missing_ok=True)
            self.close()

    def close(self) -> None:
        """Hold nothing in this process; node workers keep what they hold."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def _keep(self) -> None:
        if self.lock is not None or not self._path.exists():
            return
        lock = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        if _is_held(lock):
            fcntl.flock(lock, fcntl.LOCK_SH)
            self.lock = lock
        else:
            self._path.unlink()
            os.close(lock)

    def others(self, total: int) -> Iterator[Ticket]:
        """The other runs that wait or hold slots; for the holder of the queue's lock."""
        for path in sorted(self._folder.iterdir()):
            if path == self._path or path.name == LOCK or not path.is_file():
                continue
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if _is_held(lock):
                    # An incomplete ticket (the disk was full) may hold any slot: it counts as holding all.
                    yield _read(lock) or Ticket(path.name, total, slots=tuple(range(total)), is_known=False)
                else:
                    path.unlink()
            finally:
                os.close(lock)


def _is_held(lock: int) -> bool:
    """Whether any process holds the lock of an open file."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _read(lock: int) -> Ticket | None:
    """The ticket in an open file; None if it is incomplete."""
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        data = json.loads(os.pread(lock, 1 << 16, 0))
        found = Ticket(**{**data, "slots": tuple(data["slots"])})
        numbers = (found.takes, found.priority, *found.slots)
        is_whole = all(type(one) is int for one in numbers) and type(found.run_id) is str
        return found if is_whole and isinstance(found.since, int | float) else None
    return None
