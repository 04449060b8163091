"""Sees an attempt hang: when its ranks are silent for too long, their stacks are asked for and go into the record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from windlass.engines.keeping.ground import Attempt, Node
from windlass.engines.keeping.recording import Recording
from windlass.engines.keeping.silence import ANSWER_SECONDS, Silence
from windlass.runs.outcome import may_restart
from windlass.worker.node import LOOK_SIGNAL

LOOK_SECONDS: Final = {"timeout": 1.0, "stop": 5.0}
"""A job that is ended after so long a silence is asked first where its ranks are."""
WAITING: Final = -1
"""Stands beside the nodes that are waited for: alone, it says that all have answered."""


class Hangs:
    """The silences of one attempt, whose ranks may not be silent for too long from now on."""

    def __init__(self, attempt: Attempt, record: Recording, policy: Mapping[str, Any]) -> None:
        self._attempt = attempt
        self._record = record
        self._policy = policy
        ranks = [rank for node in attempt.nodes for rank in node.ranks]
        self._silence = Silence(attempt.folder, ranks, policy.get("hang_seconds"))
        self._stacks_from: set[int] = set()
        """Nodes whose stacks are waited for, before the attempt is ended as hung."""
        self._stacks_until = 0.0
        self._asked_for = ""
        """Why the nodes were asked for stacks: `silence`, `timeout`, `stop` or `failure`."""

    def turn(self) -> bool:
        """Ask for stacks when a silence is too long; gives whether the attempt is to be ended now as hung.

        It is, once the stacks are there, where the policy starts hung jobs again.
        """
        self._note_end()
        if self._silence.is_hang():
            self.ask("silence")
            if may_restart("hang", self._record.history, self._policy):
                self._stacks_from = {node.number for node in self._attempt.live_nodes()} | {WAITING}
                self._stacks_until = time.monotonic() + ANSWER_SECONDS
        if self._stacks_from and (self._stacks_from == {WAITING} or time.monotonic() >= self._stacks_until):
            self._stacks_from.clear()
            return self._silence.is_long
        return False

    def ask(self, reason: str, besides: Node | None = None) -> None:
        """Ask all nodes, or all besides one, for the stacks of their ranks."""
        self._asked_for = reason
        self._silence.asked()
        for node in self._attempt.live_nodes():
            if node is not besides:
                node.send(LOOK_SIGNAL)

    def ask_before_end(self, reason: str) -> None:
        """The attempt is to be ended: if it has been silent for long, where its ranks are is worth knowing."""
        enough = LOOK_SECONDS.get(reason)
        if enough is not None and self._silence.seconds >= enough:
            self.ask(reason)

    def answered(self, node: Node, event: Mapping[str, Any]) -> None:
        """The stacks of one node's ranks. What several nodes say of the same silence has the same `since`."""
        since, at = self._silence.since, event["at"]
        data = {
            "node": node.number, "reason": self._asked_for or "failure", "since": round(since, 3),
            "seconds": round(at - since, 3), "ranks": event["ranks"],
        }  # fmt: skip
        if not self._record.is_told(at):
            self._record.note("hang", data, at=at)
        self._silence.answered(node.ranks)
        self._stacks_from.discard(node.number)

    def cause(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The cause of an attempt that was ended since it hung: no rank began it, all were killed."""
        summary = f"hung: no rank wrote anything for {self._silence.seconds:.0f} s"
        return {"summary": summary, "exit_code": found["exit_code"]}

    def _note_end(self) -> None:
        over = self._silence.over()
        if over is not None:
            self._stacks_from.clear()
            data = {"since": round(over.since, 3), "at": round(over.at, 3), "seconds": round(over.at - over.since, 3)}
            self._record.note("hang-end", data)
