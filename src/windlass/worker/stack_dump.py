"""Collects stacks and collectives of unresponsive ranks. The ranks themselves write both; no debugger is attached."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035 - the worker runs on Python 3.9 too

from windlass.worker import process
from windlass.worker.flight_recorder import ASK, RESPONSE, STACKS
from windlass.worker.protocol import RankStack
from windlass.worker.rank import FORCED_STACK_SIGNAL, STACK_SIGNAL

if TYPE_CHECKING:
    from windlass.worker.ranks import Rank

PATIENCE_SECONDS = 1.0
QUIET_SECONDS = 0.05
MAX_STACK_CHARS = 16_384
_BEGUN = b" (most recent call first):"
_WAITED = re.compile(r"[Tt]imed out|[Tt]imeout|[Ww]atchdog")


def take_stacks(ranks: list[Rank], drain: Callable[[Rank], object]) -> tuple[RankStack, ...]:
    """Returns the current stack of each live rank. The ranks write their stacks to their logs.

    Takes 0.1 s; 1 s if a rank does not respond to the first signal; 2 s if it does not respond to the second either.
    """
    for rank in ranks:
        drain(rank)
    before = {rank.number: rank.capture.length for rank in ranks}
    listening = [rank for rank in ranks if ask_flight(rank.base, STACKS)]
    asked = listening + [rank for rank in ranks if rank not in listening and _sent(rank, STACK_SIGNAL)]
    silent = _await_stacks(asked, before, drain)
    silent += [rank for rank in ranks if rank not in asked]
    _await_stacks([rank for rank in silent if _sent(rank, FORCED_STACK_SIGNAL)], before, drain)
    flights = take_flights([rank.base for rank in listening])
    found = []
    for rank in ranks:
        text = _written(rank, before).decode("utf-8", "replace")
        line = process.stat(rank.pid)
        state = line.state if line else ""
        found.append(RankStack(rank.number, state, text[-MAX_STACK_CHARS:], flights.get(rank.base)))
    return tuple(found)


def _await_stacks(asked: list[Rank], before: dict[int, int], drain: Callable[[Rank], object]) -> list[Rank]:
    """Waits until ranks have written their stacks. Returns the ranks that have written none."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    silent, lengths, changed_at = asked, dict(before), time.monotonic()
    while asked and time.monotonic() < give_up:
        time.sleep(0.01)
        for rank in asked:
            drain(rank)
        now = {rank.number: rank.capture.length for rank in asked}
        if now != lengths:
            lengths, changed_at = now, time.monotonic()
        silent = [rank for rank in asked if _BEGUN not in _written(rank, before)]
        if not silent and time.monotonic() - changed_at >= QUIET_SECONDS:
            break
    return silent


def _written(rank: Rank, before: dict[int, int]) -> bytes:
    """Returns the output of a rank since `before`; of long output only the end."""
    written = rank.capture.length - before[rank.number]
    return rank.capture.last(written) if written else b""


def _sent(rank: Rank, number: int) -> bool:
    """Sends a signal to a rank if the rank handles the signal; otherwise the signal would kill it. Returns whether it
    was sent.
    """
    return _handles(rank.pid, number) and process.send(rank.pid, number)


def ask_flight(base: str, words: bytes = b"", kind: str = RESPONSE) -> bool:
    """Requests the last collectives of the rank whose files start with `base`. Returns whether the rank can respond.

    `STACKS` requests the stacks as well. `WORK` with the `kind` `STATE` only requests whether the rank waits for
    others.
    """
    try:
        asked = os.open(base + ASK, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # the rank has created no process group, or has ended
    with contextlib.suppress(OSError):
        os.unlink(base + kind)  # removes an older response
    try:
        os.write(asked, words)
    except OSError:
        return False  # the rank has just ended
    finally:
        os.close(asked)
    return True


def take_flights(bases: list[str], kind: str = RESPONSE) -> dict[str, dict[str, Any]]:
    """Returns the responses of ranks, by the path prefix of their files. Ranks that do not respond are left out."""
    found: dict[str, dict[str, Any]] = {}
    give_up = time.monotonic() + PATIENCE_SECONDS
    while len(found) < len(bases):
        found.update({base: flight for base in bases if base not in found and (flight := read_flight(base, kind))})
        if len(found) == len(bases) or time.monotonic() >= give_up:
            break
        time.sleep(0.005)
    return found


def read_flight(base: str, kind: str = RESPONSE) -> dict[str, Any]:
    """Reads the last collectives of a rank from its file; empty if there is no valid file."""
    try:
        with open(base + kind) as file:
            flight = json.load(file)
    except (OSError, ValueError):
        return {}
    return flight if isinstance(flight, dict) else {}


def ask_after_failure(failed: Rank, live: list[Rank]) -> None:
    """If a collective failed in one rank, requests the collectives of the other ranks before they are ended.

    An abort in native code counts as a failed collective, because gloo aborts if sizes differ.
    """
    if read_flight(failed.base).get("failed_in") or failed.exit_code == -signal.SIGABRT:
        take_flights([rank.base for rank in live if ask_flight(rank.base)])


def flights_of(ranks: list[Rank]) -> dict[str, dict[str, Any]]:
    """Returns the last collectives by rank, of the ranks that have written them."""
    return {str(rank.number): flight for rank in ranks if (flight := read_flight(rank.base))}


def forget(rank: Rank) -> None:
    """Removes the FIFO of a rank that has ended, because a process could block on it."""
    with contextlib.suppress(OSError):
        os.unlink(rank.base + ASK)


def reports_timeout(tail: str) -> bool:
    """Whether a rank's last output reports a timeout; the stacks of the other ranks then show why."""
    return bool(_WAITED.search(tail[-4096:]))


def _handles(pid: int, number: int) -> bool:
    """Whether a process handles a signal."""
    return _has(pid, b"SigCgt:", number)


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal."""
    return _has(pid, b"SigIgn:", number)


def _has(pid: int, mask: bytes, number: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # the name of the process may contain any bytes
            for line in file:
                if line.startswith(mask):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError):
        pass
    return False
