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
from windlass.engines.kubernetes.background import Backoff
from windlass.engines.kubernetes.client import TABLE, Client, Refused, Unreachable
from windlass.engines.kubernetes.elsewhere import OURS, TABLES, Board, Seen, Table, fill, look, selecting
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
        backoff = Backoff()
        while not self._closed:
            try:
                if self.trouble is not None:  # a quiet watch would not show for a minute that it holds
                    self._client.find(table.api, table.kind, selecting(table, self._run_id), limit="1")
                    self._note_answer()
                self._turn(table)
                self._note_answer()
                backoff.reset()
            except EngineError as error:
                self.trouble = error.message
                self._changed.set()
                time.sleep(backoff.next())
            except Exception as error:  # a defect: what is shown may be old, and the next look may succeed
                self.trouble = f"internal error: {type(error).__name__}: {error}"
                self._changed.set()
                time.sleep(backoff.next())

    def _turn(self, table: Table) -> None:
        try:
            self._watch(table)
        except Refused as error:
            if error.status != 410:
                raise
            self._list(table)

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
            with contextlib.suppress(Exception):  # no answer, which the watches notice too, or a defect: asked again
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
