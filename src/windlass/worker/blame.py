"""Finds the first cause when ranks die: one rank is the cause, the others are its victims.

When one rank dies, its peers fail a moment later in the middle of a collective, often with longer and louder errors.
So a rank is a victim if we ended it, or if it says nothing more than that a peer went away; of the rest the earliest
is the cause.
"""

from __future__ import annotations

import re
import signal
from typing import Any

TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Iteration)\b|[A-Za-z_]\w*(?:\.\w+)+:)"
)
# A script that cannot be compiled never ran, so there is no traceback: the place stands alone.
_UNCOMPILED = re.compile(
    r'^  File ".*", line \d+\n(?:.*\n){0,4}?(?:SyntaxError|IndentationError|TabError): .*', re.MULTILINE
)
_VICTIM = re.compile(
    r"connection (?:was )?(?:closed|reset|refused)|closed by (?:remote )?peer|reset by peer|broken pipe|"
    r"socket (?:timeout|closed)|nccl.*(?:abort|remote|unhandled system error|watchdog)|"
    r"gloo.*(?:connect|closed|reset|timed out)|process group.*(?:abort|watchdog)|peer.*(?:gone|died|lost)|"
    r"horovod.*(?:shut ?down|has been shut down)|DistBackendError|DistNetworkError|MPI_ABORT",
    re.IGNORECASE,
)
_SIGNALS = {
    "SIGKILL": "killed (SIGKILL): by hand, or by the kernel for want of memory",
    "SIGSEGV": "segmentation fault in native code",
    "SIGABRT": "aborted in native code",
    "SIGBUS": "bus error: often a full /dev/shm",
    "SIGTERM": "ended by SIGTERM from outside",
    "SIGINT": "interrupted",
}
TRACEBACK_LINES = 60


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


def traceback_of(text: str) -> str:
    """The last Python traceback in `text`, at most 60 lines; empty where there is none."""
    start = text.rfind(TRACEBACK)
    if start < 0:
        uncompiled = _UNCOMPILED.search(text)
        return uncompiled[0] if uncompiled else ""
    # An exception raised while another was handled is printed after it: the story begins with the first of the chain.
    while True:
        before = text.rfind(TRACEBACK, 0, start)
        if before < 0 or not re.search(r"(?:During handling of|was the direct cause of)", text[before:start]):
            break
        start = before
    lines = text[start:].splitlines()
    for index in range(len(lines) - 1, 0, -1):
        if _EXCEPTION.match(_unprefixed(lines[index])):
            lines = lines[: index + 6]  # the message may go on for some lines
            break
    if len(lines) > TRACEBACK_LINES:
        half = TRACEBACK_LINES // 2
        lines = [*lines[:half], "  …", *lines[-half:]]
    return "\n".join(lines).rstrip()


def exception_line(trace: str) -> str:
    """The line of a traceback that names the exception."""
    for line in reversed(trace.splitlines()):
        if _EXCEPTION.match(_unprefixed(line)):
            return _unprefixed(line).strip()
    return ""


def signal_name(exit_code: int) -> str | None:
    """`SIGKILL` for −9; None for an ordinary exit."""
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def _unprefixed(line: str) -> str:
    return re.sub(r"^\[rank\d+\]:\s?", "", line)  # torch prefixes its own printed traces


def _order(failure: dict[str, Any]) -> tuple[bool, bool, bool, float]:
    return _never_ran(failure), bool(failure["ended_by_us"]), is_victim(failure), began_at(failure)


def _never_ran(failure: dict[str, Any]) -> bool:
    """Whether the rank's node was ended before it started: the rank has neither failed nor been a victim."""
    return bool(failure.get("not_started"))


def is_victim(failure: dict[str, Any]) -> bool:
    """Whether the rank's own words blame a peer. A rank that a signal killed has no words of its own."""
    line = exception_line(traceback_of(failure["tail"]))
    if line:
        return bool(_VICTIM.search(line))
    return failure["exit_code"] == -signal.SIGABRT and bool(_VICTIM.search(failure["tail"][-4096:]))


def _summary(failure: dict[str, Any], trace: str) -> str:
    name = signal_name(failure["exit_code"])
    if name:
        return _SIGNALS.get(name, f"killed by {name}")
    line = exception_line(trace)
    if line:
        return line
    last = [text for text in failure["tail"].splitlines() if text.strip()][-1:]
    said = f"; its last line: {last[0].strip()[:200]}" if last else "; it said nothing"
    return f"exit code {failure['exit_code']}{said}"
