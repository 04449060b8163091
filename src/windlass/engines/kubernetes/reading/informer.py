"""Informer: keeps the runs of a namespace up to date with one watch per kind, independent of the number of runs.

After a watch ends or its connection breaks, the next watch continues from the last version. All objects are listed
again only if the server no longer has that version (410 Gone).
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
"""Duration of one watch in seconds; a dead connection is detected after this time."""


class Watched:
    """Current state of all runs in a namespace, or of one run."""

    more_seconds = 5.0
    """Seconds between two requests for state that no watch covers; made only while a run needs that state."""

    def __init__(
        self, client: Client, run_id: str = "", state_of: Callable[[Seen], RunState] = lambda seen: seen.state("")
    ) -> None:
        """Raises Refused, Unreachable if the first lists fail."""
        self._client = client
        self._state_of = state_of
        self._run_id = run_id
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._last_trouble: str | None = None
        self.answered_at = time.time()
        """Time of the cluster's last response, in Unix seconds. While `trouble` is set, the state is as of this
        time."""
        self._lists = look(client, run_id)
        self._changed.set()
        for table in TABLES:
            background.start(_watch_of(table), functools.partial(self._turn, table), self._closed, client.health)
        # Failures of these requests are not reported, since the watches detect an unresponsive cluster.
        background.start("questions beside the watches", self._ask_more, self._closed, background.Health())

    def close(self) -> None:
        """Stops all watches."""
        self._closed.set()

    @property
    def trouble(self) -> str | None:
        """Reason why the cluster does not respond now; None if it does."""
        failing = self._client.health.failing()
        return None if failing is None else failing[1].message

    def has_changed(self) -> bool:
        """Returns whether a run or `trouble` has changed since the last call."""
        before, self._last_trouble = self._last_trouble, self.trouble
        changed = self._changed.is_set() or self._last_trouble != before
        self._changed.clear()
        return changed

    def runs(self) -> list[RunState]:
        """Returns all runs, newest first."""
        with self._lock:
            found = self._lists.runs(time.time())
        return [self._state_of(seen) for seen in found]

    def _turn(self, table: Table) -> bool:
        """Applies changes until the server ends the watch; returns whether to stop. Raises Refused, Unreachable."""
        # After an outage, a watch without events would show only after a minute that the cluster responds again.
        if self.trouble is not None:
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
        """Requests state that no watch shows, while a run needs it; returns whether to stop."""
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
        """Lists all objects of a kind again, after changes were missed."""
        fresh = ObjectLists(self._client.namespace)
        with contextlib.suppress(Refused, Unreachable):  # the list is repeated after the next refused watch
            fill(fresh, self._client, table, self._run_id)
            with self._lock:
                self._lists.take(table, fresh)
            self._changed.set()


def _watch_of(table: Table) -> str:
    return f"watch of {table.kind}"
