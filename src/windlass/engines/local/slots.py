"""Queue of a target on this machine: decides which waiting run gets slots next, and records the slots of each run.

Each run has a file in the folder of the queue, with a shared lock held by its supervisor and its node workers. The
kernel releases the lock when the last of these processes ends, even if it is killed. A file without a lock belongs to a
run that neither waits nor has slots. All files are read and written under another lock, which is held for milliseconds.
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
"""Maximum number of runs that a reason for waiting lists by name."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Entry of a run in the queue."""

    run_id: str
    takes: int
    """Number of slots that the run needs."""
    priority: int = 0
    """Priority of the run. Runs with a higher priority start first."""
    since: float = 0.0
    """When the run entered the queue, in Unix seconds. The oldest run starts first."""
    slots: tuple[int, ...] = ()
    """Numbers of the run's slots, from 0; empty while it waits."""
    is_known: bool = True
    """Whether the run's file could be read. If not, the run counts as holding all slots."""

    @property
    def order(self) -> tuple[int, float, str]:
        """Sort key among waiting runs."""
        return -self.priority, self.since, self.run_id


def free_slots(mine: Ticket, others: Sequence[Ticket], total: int) -> tuple[int, ...]:
    """Returns the slots that `mine` gets now; empty if it must wait. The order is strictly by priority, then age.

    A run waits for every run before it, even if enough slots are free. Otherwise small runs could delay a large run
    forever.
    """
    held = {slot for one in others for slot in one.slots}
    free = [slot for slot in range(total) if slot not in held]
    is_next = all(one.slots or one.order > mine.order for one in others)
    # If `slots:` was lowered, held slots may exceed the new total, and free ones may not be used.
    fits = mine.takes <= min(len(free), total - len(held))
    return tuple(free[: mine.takes]) if is_next and fits else ()


def why_waiting(mine: Ticket, others: Sequence[Ticket], total: int) -> str:
    """Returns why a run waits, such as `it takes 2 of 4 slots, and 1 is free: a-1 holds 3`."""
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
        """Descriptor of the run's file with a shared lock, which node workers inherit; None without reserved slots."""

    def take(self, mine: Ticket, total: int) -> tuple[tuple[int, ...], str, int]:
        """Enters the queue, and reserves slots if it is the run's turn.

        Returns the slots, the reason for waiting, and the number of waiting runs ahead. Raises OSError.
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
        """Locks the slots of nodes that an earlier supervisor started, so that the slots stay reserved until the next
        attempt.

        Does nothing if the nodes have ended already.
        """
        if self._path.exists():
            with contextlib.suppress(OSError), locked(self._folder / LOCK):
                self._keep()

    def leave(self) -> None:
        """Releases the slots, or leaves the queue."""
        if self.lock is not None:
            with contextlib.suppress(OSError), locked(self._folder / LOCK):
                self._path.unlink(missing_ok=True)
            self.close()

    def close(self) -> None:
        """Releases this process's lock; node workers keep theirs."""
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
        """Yields the other runs that wait or have slots. The caller must have the queue's lock."""
        for path in sorted(self._folder.iterdir()):
            if path == self._path or path.name == LOCK or not path.is_file():
                continue
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if _is_held(lock):
                    # A full disk may have left the ticket incomplete, so its owner may hold any slot.
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
    """Returns the ticket in an open file; None if it is incomplete."""
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        data = json.loads(os.pread(lock, 1 << 16, 0))
        found = Ticket(**{**data, "slots": tuple(data["slots"])})
        numbers = (found.takes, found.priority, *found.slots)
        is_whole = all(type(one) is int for one in numbers) and type(found.run_id) is str
        return found if is_whole and isinstance(found.since, int | float) else None
    return None
