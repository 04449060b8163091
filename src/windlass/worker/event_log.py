"""Writes the events of a node, as JSON lines, into its events file; a full disk only delays them."""

from __future__ import annotations

import json
import os

from windlass.worker.capture import Echo
from windlass.worker.protocol import (
    NODE_TAG,
    NodeEnded,
    NodeEvent,
    NodeWarning,
    PeersUnreachable,
    PreemptionNotice,
    RankChanged,
    RankFailing,
)
from windlass.worker.reserve import FULL_ERRORS, Reserve

URGENT = (RankFailing, PreemptionNotice, PeersUnreachable, NodeEnded)


class EventLog:
    """The events file of a node."""

    def __init__(self, path: str, reserve: Reserve, wake: int | None, echo: Echo | None) -> None:
        """`wake` gets a byte at each write, `echo` each line. Raises OSError if the file cannot be made."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._reserve = reserve
        self._wake = wake
        self._echo = echo
        self._unwritten: list[bytes] = []
        self._is_urgent = False
        """Whether the reserve is released for an event among them."""

    def add(self, event: NodeEvent) -> None:
        """Write an event, or keep it until the disk has room."""
        line = json.dumps(event.to_json()) + "\n"
        self._unwritten.append(line.encode())
        self._is_urgent |= is_urgent(event)
        self.write()
        if self._echo is not None:
            self._echo(NODE_TAG, line.encode())

    @property
    def is_waiting(self) -> bool:
        """Whether events wait until the disk has room."""
        return bool(self._unwritten)

    @property
    def is_held_up(self) -> bool:
        """Whether they wait, and were not echoed either."""
        return self.is_waiting and self._echo is None

    def write(self) -> None:
        """Write what waits. While there is a reserve, an event that is not urgent does not use it."""
        if not self._unwritten or not (self._reserve.has_room() or self._is_urgent):
            return
        while self._unwritten:
            try:
                written = os.write(self._file, self._unwritten[0])
            except OSError as error:
                self._reserve.met_full()
                if self._is_urgent and error.errno in FULL_ERRORS and self._reserve.release():
                    continue
                return
            if written < len(self._unwritten[0]):
                self._unwritten[0] = self._unwritten[0][written:]
            else:
                self._unwritten.pop(0)
        self._is_urgent = False
        if self._wake is not None:
            try:
                os.write(self._wake, b".")
            except OSError:
                self._wake = None  # the supervisor is gone; its successor reads the file


def is_urgent(event: NodeEvent) -> bool:
    """Whether the supervisor acts on an event, so that it must not wait for room on the disk."""
    if isinstance(event, RankChanged):
        return event.exit_code is not None
    return isinstance(event, URGENT) or (isinstance(event, NodeWarning) and event.dropped is not None)
