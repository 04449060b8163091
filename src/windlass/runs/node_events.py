"""Parses the lines of a node's events file into node events, and ignores every other line.

A line may come from anywhere: a power cut leaves zeros and half a line, and in a pod every process can write to the
stream that carries the events. What passes here may be recorded, compared and added up without another check.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from windlass.runs.events import Entry
from windlass.worker.protocol import NodeEvent, NodeStarted, event_of

TOKEN: Final = "k"
"""The field by which the process of a pod marks its events; see `worker/pod.py`."""
MAX_BYTES: Final = 16 << 20
"""Stacks of all ranks of a node come to a few megabytes at most."""
MAX_DEPTH: Final = 24
MAX_WHOLE: Final = 2**63
"""Of whole numbers: what a column of the record can hold."""
MAX_AHEAD_SECONDS: Final = 86400.0
"""How far a node's clock may be ahead of ours: an event of the far future would hide all that come after it."""


class RankSeen(NodeEvent):
    """A backend has seen a node of the attempt run. Like the events below, only a backend makes it, not a worker."""

    kind = "alive"


class StageReached(NodeEvent):
    """Start phase of a node of the attempt: `queued`, `provisioning`, `pulling` or `starting`."""

    kind = "stage"
    stage: str


class Reported(NodeEvent):
    """What the cluster reports of the attempt's queue or of a node that is provisioned for it; recorded unchanged."""

    kind = "reported"
    entry: Entry


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is a node event."""

    event: NodeEvent
    token: str | None
    """By which the process of a pod marks its own events."""


def parse(line: bytes, now: float | None = None) -> Line | None:
    """The event in a line; None for a line that is none. Never raises.

    Half characters are replaced, and a number that no column holds becomes text: an event is not lost for either.
    """
    if len(line) > MAX_BYTES:
        return None
    try:
        data = _cleaned(json.loads(line), MAX_DEPTH)
        if not isinstance(data, dict):
            return None
        token = data.pop(TOKEN, None)
        event = event_of(data)
    except (ValueError, RecursionError):  # ShapeError is a ValueError
        return None
    latest = (time.time() if now is None else now) + MAX_AHEAD_SECONDS
    return Line(event, token if isinstance(token, str) else None) if 0 <= event.at <= latest else None


def read(path: Path) -> Iterator[NodeEvent]:
    """The events in the events file of a node, in order; none where it cannot be read."""
    deduplicator = EventDeduplicator()
    try:
        with open(path, "rb") as file:
            for line in file:
                event = deduplicator.take(line) if line.endswith(b"\n") else None
                if event is not None:
                    yield event
    except OSError:
        return


class EventDeduplicator:
    """Passes the events of one node, and none that another process has written to the same stream.

    The process of a pod makes up a token before any rank starts and puts it into each event, its first included. Events
    of nodes without one, which have files of their own, are recognised by their shape alone. That protects
    against accidents, not against an attacker: a process of the same user can read the memory of the pod's process.
    """

    def __init__(self) -> None:
        self.token: str | None = None
        self.num_ignored = 0
        """Lines that were no event of this node."""

    def take(self, line: bytes) -> NodeEvent | None:
        """The event in a line; None for a line that is none of this node's. Never raises."""
        found = parse(line)
        if found is None:
            self.num_ignored += bool(line.strip(b"\0 \r\n"))
            return None
        if self.token is None and isinstance(found.event, NodeStarted):
            self.token = found.token
        if self.token is not None and found.token != self.token:
            self.num_ignored += 1
            return None
        return found.event


def _cleaned(value: Any, depth: int) -> Any:
    """The value as the record can keep it."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict | list) and depth == 0:
        return None
    if isinstance(value, dict):
        return {_cleaned(name, depth): _cleaned(one, depth - 1) for name, one in value.items()}
    if isinstance(value, list):
        return [_cleaned(one, depth - 1) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # as the worker itself writes it
    if isinstance(value, int) and not isinstance(value, bool) and not -MAX_WHOLE <= value < MAX_WHOLE:
        return str(value)
    return value
