"""Finds the first cause when ranks die: one rank is the cause, the others are its victims.

When one rank dies, its peers fail a moment later in the middle of a collective, often with longer and louder errors.
So a rank is a victim if we ended it, or if it says nothing more than that a peer went away; of the rest the earliest
is the cause.
"""

from __future__ import annotations

import signal
from typing import Any

from windlass.worker.traces import (
    blames_peer,
    child_signal,
    exception_line,
    is_launched,
    is_secondary,
    traceback_of,
    unstyled,
)

_SIGNALS = {
    "SIGKILL": "killed (SIGKILL): by hand, or by the kernel for want of memory",
    "SIGSEGV": "segmentation fault in native code",
    "SIGABRT": "aborted in native code",
    "SIGBUS": "bus error: often a full /dev/shm",
    "SIGTERM": "ended by SIGTERM from outside",
    "SIGINT": "interrupted",
}
_DEATHS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
"""Signals by which a process dies of something else than its launcher."""


def first_cause(failures: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Of the failed ranks, the one that began it.

    Each failure has `rank`, `exit_code` (−N for signal N), `at` (unix seconds), `ended_by_us`, `tail` (its last output)
    and `traceback_at` (when the rank marked its failure, else when it printed a traceback) or None, and `not_started`
    where its node was ended before it started, and `marked` where the rank marked its failure itself. Gives `rank`,
    `exit_code`, `signal`, `summary`, `traceback` and `victims` (ranks), and `blames_peer` where even it says no more
    than that a peer went away; None where nothing failed.
    """
    if not failures:
        return None
    first = min(failures, key=_order)
    trace = traceback_of(first["tail"])
    found = {
        "rank": first["rank"],
        "exit_code": first["exit_code"],
        "signal": signal_name(first["exit_code"]),
        "at": began_at(first),
        "summary": _summary(first, trace),
        "traceback": trace,
        "victims": sorted(failure["rank"] for failure in failures if failure is not first and not _never_ran(failure)),
    }
    return {**found, "blames_peer": True} if is_victim(first) else found


def failed_by_itself(failures: list[dict[str, Any]]) -> bool:
    """Whether the first cause is a failure that its rank marked before anything ended the rank, and blames no peer.

    Such a failure comes before a time limit or a hang that the other ranks run into because of it.
    """
    first = min(failures, key=_order, default=None)
    return first is not None and bool(first.get("marked")) and not first["ended_by_us"] and not is_victim(first)


def began_at(failure: dict[str, Any]) -> float:
    """When the rank began to fail: its traceback comes before its death, which may take a second more."""
    traceback_at = failure.get("traceback_at")
    return float(failure["at"] if traceback_at is None else min(traceback_at, failure["at"]))


def signal_name(exit_code: int) -> str | None:
    """`SIGKILL` for −9; None for an ordinary exit."""
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def _order(failure: dict[str, Any]) -> tuple[bool, bool, bool, float]:
    return _never_ran(failure), bool(failure["ended_by_us"]), is_victim(failure), began_at(failure)


def _never_ran(failure: dict[str, Any]) -> bool:
    """Whether the rank's node was ended before it started: the rank has neither failed nor been a victim."""
    return bool(failure.get("not_started"))


def is_victim(failure: dict[str, Any]) -> bool:
    """Whether the rank's own words blame a peer. A rank that a signal killed has no words of its own."""
    tail = unstyled(failure["tail"])
    line = exception_line(traceback_of(tail))
    if line:
        return blames_peer(line) and not (is_launched(tail) and child_signal(tail) in _DEATHS)
    return failure["exit_code"] == -signal.SIGABRT and blames_peer(tail[-4096:])


def launched_signal(text: str) -> int:
    """The signal that killed the child of which a launcher says that it failed first; 0 where a child says more."""
    line = exception_line(traceback_of(text))
    number = child_signal(text) if is_launched(text) else 0
    return number if number in _DEATHS and (not line or is_secondary(line)) else 0


def _summary(failure: dict[str, Any], trace: str) -> str:
    tail = unstyled(failure["tail"])
    number = launched_signal(tail)
    name = signal_name(-number if number else failure["exit_code"])
    line = exception_line(trace)
    if name and not (line and is_launched(tail) and not number):
        return _SIGNALS.get(name, f"killed by {name}")
    if line:
        return line
    last = [text for text in tail.splitlines() if text.strip()][-1:]
    said = f"; its last line: {last[0].strip()[:200]}" if last else "; it said nothing"
    return f"exit code {failure['exit_code']}{said}"
