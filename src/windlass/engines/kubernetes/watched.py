"""Keeps what is known of all runs of a namespace up to date: by one watch of each kind, however many runs there are.

A watch that ends, or whose connection breaks, goes on from the last version that it told. Only where the server has
forgotten that version (410 Gone) the list is asked for anew.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Final

from windlass.engines.kubernetes import followups
from windlass.engines.kubernetes.client import TABLE, Client, Refused, Unreachable
from windlass.engines.kubernetes.elsewhere import OURS, TABLES, Board, Seen, Table, fill, look, selecting
from windlass.engines.kubernetes.pods import PAUSES
from windlass.errors import EngineError

WATCH_SECONDS: Final = 60
"""How long one watch lasts; a connection that is dead and does not say so is noticed by then."""


class Watched:
    """The runs of a namespace, or one of them, as of now."""

    more_seconds = 5.0
    """Between two questions for what the watches do not show, while there is such a thing."""

    def __init__(self, client: Client, run_id: str = "") -> None:
        """Raises Refused, Unreachable: what may not be listed at all is told at once."""
        self._client = client
        self._run_id = run_id
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = False
        self.trouble: str | None = None
        """Why the cluster cannot be asked now."""
        self.answered_at = time.time()
        """When the cluster last answered, in Unix seconds: with `trouble`, what is known is as of then."""
        self._board = Board(client.namespace)
        look(client, run_id, self._board)
        self._changed.set()
        for table in TABLES:
            threading.Thread(target=self._run, args=(table,), name=f"watch of {table.kind}", daemon=True).start()
        threading.Thread(target=self._ask_more, name="questions beside the watches", daemon=True).start()

    def close(self) -> None:
        """Watch no more."""
        self._closed = True

    def has_changed(self) -> bool:
        """Whether anything is new since this was last asked."""
        changed = self._changed.is_set()
        self._changed.clear()
        return changed

    def runs(self) -> list[Seen]:
        """All runs, the newest first."""
        with self._lock:
            return self._board.runs(time.time())

    def _run(self, table: Table) -> None:
        failed = 0
        while not self._closed:
            try:
                self._watch(table)
                failed = 0
                self._note_answer()
            except EngineError as error:
                if isinstance(error, Refused) and error.status == 410:
                    self._list(table)
                    continue
                self.trouble = error.message
                self._changed.set()
                time.sleep(PAUSES[min(failed, len(PAUSES) - 1)])
                failed += 1

    def _watch(self, table: Table) -> None:
        """Take changes until the server ends the watch. Raises Refused, Unreachable."""
        selector = selecting(table, self._run_id)
        events = self._client.watch(
            table.api, table.kind, selector, self._board.versions[table.kind], WATCH_SECONDS, accept=TABLE,
            includeObject=table.include,
        )  # fmt: skip
        for event in events:
            self._note_answer()
            with self._lock:
                self._board.change(table, event["type"], event["object"])
            if event["type"] != "BOOKMARK":
                self._changed.set()
            if self._closed:
                return

    def _note_answer(self) -> None:
        self.answered_at, self.trouble = time.time(), None

    def _ask_more(self) -> None:
        """Ask again and again, as long as anything is open that no watch shows."""
        while not self._closed:
            time.sleep(self.more_seconds)
            with contextlib.suppress(EngineError):  # the watches notice it too
                with self._lock:
                    questions = self._board.open_questions()
                more = followups.ask(self._client, OURS, *questions)
                if more != self._board.more:
                    self._board.more = more
                    self._changed.set()

    def _list(self, table: Table) -> None:
        """Ask for the whole list, since changes were missed."""
        fresh = Board(self._client.namespace)
        with contextlib.suppress(Refused, Unreachable):  # asked again after the next watch that is refused
            fill(fresh, self._client, table, self._run_id)
            with self._lock:
                self._board.take(table, fresh)
            self._changed.set()
