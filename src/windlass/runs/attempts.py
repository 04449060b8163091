"""What an attempt begins with, on any engine: why and when it does, and the checkpoint that a person has asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from windlass.runs.history import History
from windlass.runs.outcome import RESUME_VARIABLE
from windlass.runs.record import Event, Status


def why_begun(history: History, status: Status) -> str:
    """Why the attempt that begins now does: `first`, `resume`, or the reason for which the one before it ended."""
    if history.ended:
        return history.ended[-1].reason
    return "resume" if status.attempts else "first"


def due_at(events: Iterable[Event]) -> float:
    """When the attempt that comes next may begin, in unix seconds; 0 for the first."""
    due = 0.0
    for event in events:
        if event.kind in ("attempt-end", "resume"):
            due = float(event.time + event.data.get("wait_seconds", 0.0))
    return due


def resume_environment(status: Status) -> dict[str, str]:
    """What names to a script the checkpoint that a person has asked for, until it has saved one of its own."""
    return {} if status.resume_from is None else {RESUME_VARIABLE: status.resume_from}


def asked_to_resume(request: Mapping[str, Any], status: Status, events: Iterable[Event]) -> Mapping[str, Any]:
    """A node's request with that checkpoint, where Windlass itself makes the script go on from its files."""
    if status.resume_from is None or "resume" not in request:
        return request
    asked_at = max(event.time for event in events if event.kind == "resume")
    return {**request, "resume": {**request["resume"], "named": status.resume_from, "named_at": asked_at}}
