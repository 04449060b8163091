"""What is known of one node of an attempt: all that it has said, line by line in a file of the attempt's folder.

Whoever keeps a run may die and another take over: what was said is read again from the beginning, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from windlass.engines.keeping.nodeevents import Sieve

QUOTED_CHARS: Final = 4000


class Told:
    """One node, as it has told of itself."""

    def __init__(self, number: int, ranks: tuple[int, ...], folder: Path) -> None:
        self.number = number
        self.ranks = ranks
        self.folder = folder
        self.pid: int | None = None
        self.start_ticks = 0
        self.boot = ""
        self.failures: list[dict[str, Any]] = []
        self.alone: tuple[int, ...] = ()
        """Its ranks that trained without ever reaching another."""
        self.ended = False
        """Whether it said its last word."""
        self.lost = False
        """Whether it died without one."""
        self.begun = False
        """Whether its worker has reported anything."""
        self.not_started = False
        """Whether it was ended because the attempt was, before its worker had reported anything."""
        self._offset = 0
        self._partial = b""
        self._sieve = Sieve()

    @property
    def num_ignored(self) -> int:
        """Lines of its events that were not its own."""
        return self._sieve.num_ignored

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.ended or self.lost

    def path(self, kind: str) -> Path:
        """One of its files: `events`, `out` and what else its engine keeps."""
        return self.folder / f"node-{self.number}.{kind}"

    def news(self) -> Iterator[dict[str, Any]]:
        """What it has said since the last call."""
        try:
            with open(self.path("events"), "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            event = self._sieve.take(line)
            if event is None:
                continue
            if event["kind"] == "node":
                self.begun = True
                self.pid, self.start_ticks, self.boot = event["pid"], event["start_ticks"], event["boot"]
            elif event["kind"] == "end":
                self.take_end(event["failures"])
                self.alone = tuple(event.get("alone", ()))
            elif event["kind"] == "alone":
                self.alone = tuple(event["ranks"])
            yield event

    def take_end(self, failures: list[dict[str, Any]]) -> None:
        """Take the node's `end` event: how its ranks failed; empty where none did."""
        self.ended, self.failures = True, failures

    def last_words(self) -> str:
        """What the process of the node itself wrote, which is nothing unless it broke."""
        try:
            return self.path("out").read_text(errors="replace").strip()[-QUOTED_CHARS:]
        except OSError:
            return ""
