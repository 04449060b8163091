"""Writes the events of a node to its events file as JSON lines. A full disk delays events but loses none."""

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
    """Events file of a node."""

    def __init__(self, path: str, reserve: Reserve, wake: int | None, echo: Echo | None) -> None:
        """Creates the events file. Descriptor `wake` receives a byte after each write, `echo` each line. Raises OSError
        if the file cannot be created.
        """
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._reserve = reserve
        self._wake = wake
        self._echo = echo
        self._unwritten: list[bytes] = []
        self._is_urgent = False
        """Whether the reserve may be released for one of the unwritten events."""

    def add(self, event: NodeEvent) -> None:
        """Writes an event, or keeps it in memory until the disk has space."""
        line = json.dumps(event.to_json()) + "\n"
        self._unwritten.append(line.encode())
        self._is_urgent |= is_urgent(event)
        self.write()
        if self._echo is not None:
            self._echo(NODE_TAG, line.encode())

    @property
    def is_waiting(self) -> bool:
        """Whether events wait for disk space."""
        return bool(self._unwritten)

    @property
    def is_blocked(self) -> bool:
        """Whether events wait for disk space and no `echo` has received them."""
        return self.is_waiting and self._echo is None

    def write(self) -> None:
        """Writes the waiting events. Events that are not urgent do not use the disk reserve."""
        if not self._unwritten or not (self._reserve.has_space() or self._is_urgent):
            return
        while self._unwritten:
            try:
                written = os.write(self._file, self._unwritten[0])
            except OSError as error:
                self._reserve.record_full()
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
                self._wake = None  # the supervisor has ended; its successor will read the file


def is_urgent(event: NodeEvent) -> bool:
    """Whether the supervisor acts on the event. Such an event is written even if the file system is full."""
    if isinstance(event, RankChanged):
        return event.exit_code is not None
    return isinstance(event, URGENT) or (isinstance(event, NodeWarning) and event.dropped is not None)
