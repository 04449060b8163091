"""Informer: keeps the runs of a namespace up to date by one watch of each kind, however many runs there are.

A watch that ends, or whose connection breaks, continues from its last version. Only where the server no longer has that
version (410 Gone) all is listed again.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from typing import Final

from windlass.engines.kubernetes.access import background
from windlass.engines.kubernetes.access.client import TABLE, Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.reading.discovery import followups
from windlass.engines.kubernetes.reading.discovery.discovery import fill, look
from windlass.engines.kubernetes.reading.discovery.object_lists import OURS, TABLES, ObjectLists, Table
from windlass.engines.kubernetes.reading.discovery.phase import Seen
from windlass.engines.values import RunState

WATCH_SECONDS: Final = 60
"""How long one watch lasts; by then a dead connection is detected."""


class Watched:
    """The runs of a namespace, or one of them, as of now."""

    more_seconds = 5.0
    """Between two requests for what the watches do not show, while anything is open."""

    def __init__(
        self, client: Client, run_id: str = "", state_of: Callable[[Seen], RunState] = lambda seen: seen.state("")
    ) -> None:
        """Raises Refused, Unreachable: a list that is refused is reported at once."""
        self._client = client
        self._state_of = state_of
        self._run_id = run_id
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._last_trouble: str | None = None
        self.answered_at = time.time()
        """When the cluster last answered, in Unix seconds: with `trouble`, what is known is as of then."""
        self._lists = look(client, run_id)
        self._changed.set()
        for table in TABLES:
            background.start(_watch_of(table), functools.partial(self._turn, table), self._closed, client.health)
        # What fails of these is no trouble: the watches notice where the cluster does not answer.
        background.start("questions beside the watches", self._ask_more, self._closed, background.Health())

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    @property
    def trouble(self) -> str | None:
        """Why the cluster does not answer now."""
        failing = self._client.health.failing()
        return None if failing is None else failing[1].message

    def has_changed(self) -> bool:
        """Whether anything has changed since the last call."""
        before, self._last_trouble = self._last_trouble, self.trouble
        changed = self._changed.is_set() or self._last_trouble != before
        self._changed.clear()
        return changed

    def runs(self) -> list[RunState]:
        """All runs, newest first."""
        with self._lock:
            found = self._lists.runs(time.time())
        return [self._state_of(seen) for seen in found]

    def _turn(self, table: Table) -> bool:
        """Apply changes until the server ends the watch; returns whether that is final. Raises Refused, Unreachable."""
        if self.trouble is not None:  # a watch without events would not show for a minute that it works
            self._client.find(table.api, table.kind, table.selector(self._run_id), limit="1")
            self._note_answer(table)
        try:
            self._watch(table)
        except Refused as error:
            if error.status != 410:
                raise
            self._list(table)
        self._note_answer(table)
        return self._closed.is_set()

    def _watch(self, table: Table) -> None:
        selector = table.selector(self._run_id)
        events = self._client.watch(
            table.api,
            table.kind,
            selector,
            self._lists.versions[table.kind],
            WATCH_SECONDS,
            accept=TABLE,
            includeObject=table.include,
        )
        for event in events:
            self._note_answer(table)
            with self._lock:
                self._lists.change(table, event["type"], event["object"])
            if event["type"] != "BOOKMARK":
                self._changed.set()
            if self._closed.is_set():
                return

    def _note_answer(self, table: Table) -> None:
        self.answered_at = time.time()
        self._client.health.well(_watch_of(table))

    def _ask_more(self) -> bool:
        """Ask, as long as anything is open that no watch shows; returns whether that is final."""
        if self._closed.wait(self.more_seconds):
            return True
        with self._lock:
            questions = self._lists.open_questions()
        more = followups.ask(self._client, OURS, *questions)
        if more != self._lists.more:
            self._lists.more = more
            self._changed.set()
        return False

    def _list(self, table: Table) -> None:
        """List all again, since changes were missed."""
        fresh = ObjectLists(self._client.namespace)
        with contextlib.suppress(Refused, Unreachable):  # asked again after the next watch that is refused
            fill(fresh, self._client, table, self._run_id)
            with self._lock:
                self._lists.take(table, fresh)
            self._changed.set()


def _watch_of(table: Table) -> str:
    return f"watch of {table.kind}"
