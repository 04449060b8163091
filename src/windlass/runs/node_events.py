"""Parses the lines of a node's events file into node events, and ignores every other line.

Lines are untrusted: a power cut leaves zeros and truncated lines, and in a pod every process can write to the stream of
events. Events that are returned here are recorded, compared and summed without further checks.
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
"""Field with the token by which a pod's worker marks its events; see `worker/pod.py`."""
MAX_BYTES: Final = 16 << 20
"""Maximum size of a line. Stacks of all ranks of a node take a few megabytes at most."""
MAX_DEPTH: Final = 24
MAX_WHOLE: Final = 2**63
"""Upper limit of integers, which is that of the database columns."""
MAX_AHEAD_SECONDS: Final = 86400.0
"""Maximum time by which a node's clock may be ahead of this machine's. An event of the distant future would hide all
later ones."""


class RankSeen(NodeEvent):
    """A backend observed that a node of the attempt runs. Only backends create this event and the next classes, not
    workers.
    """

    kind = "alive"


class StageReached(NodeEvent):
    """Start phase of a node of the attempt: `queued`, `provisioning`, `pulling` or `starting`."""

    kind = "stage"
    stage: str


class Reported(NodeEvent):
    """Report of the cluster on the attempt's queue or on a node provisioned for it; recorded unchanged."""

    kind = "reported"
    entry: Entry


@dataclass(frozen=True, slots=True)
class Line:
    """A parsed line with a node event."""

    event: NodeEvent
    token: str | None
    """Token by which a pod's worker marks its events."""


def parse(line: bytes, now: float | None = None) -> Line | None:
    """Parses a line. Returns None if it is not an event. Never raises.

    Invalid characters are replaced, and an integer that exceeds a database column becomes text, to keep the event.
    """
    if len(line) > MAX_BYTES:
        return None
    try:
        data = _cleaned(json.loads(line), MAX_DEPTH)
        if not isinstance(data, dict):
            return None
        token = data.pop(TOKEN, None)
        event = event_of(data)
    except (ValueError, RecursionError):
        return None
    latest = (time.time() if now is None else now) + MAX_AHEAD_SECONDS
    return Line(event, token if isinstance(token, str) else None) if 0 <= event.at <= latest else None


def read(path: Path) -> Iterator[NodeEvent]:
    """Yields the events in the events file of a node, in order; none if the file cannot be read."""
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
    """Accepts the events of one node and ignores lines that other processes have written to the same stream.

    The worker of a pod creates a token before any rank starts and writes it into each event, including the first.
    Events of nodes without a token, which have separate files, are recognized by their shape only. The token protects
    against accidents, not against an attacker: a process of the same user can read the worker's memory.
    """

    def __init__(self) -> None:
        self.token: str | None = None
        self.num_ignored = 0
        """Number of lines that were not events of this node."""

    def take(self, line: bytes) -> NodeEvent | None:
        """Returns the event in a line; None if the line is not an event of this node. Never raises."""
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
    """Converts a value to a form that the record can store."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict | list) and depth == 0:
        return None
    if isinstance(value, dict):
        return {_cleaned(name, depth): _cleaned(one, depth - 1) for name, one in value.items()}
    if isinstance(value, list):
        return [_cleaned(one, depth - 1) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # the worker converts such numbers to the same text
    if isinstance(value, int) and not isinstance(value, bool) and not -MAX_WHOLE <= value < MAX_WHOLE:
        return str(value)
    return value
