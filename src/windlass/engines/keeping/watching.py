"""Watches one attempt: what its nodes say goes into the record, and what they suffer decides when it is to end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from windlass.engines.keeping.ending import Ending
from windlass.engines.keeping.ground import Attempt, Node
from windlass.engines.keeping.hangs import Hangs
from windlass.engines.keeping.hearing import Event, Hearing, ProgressOfNodes, carried
from windlass.engines.keeping.membership import Membership
from windlass.engines.keeping.recording import Recording
from windlass.engines.keeping.rollcall import RollCall
from windlass.runs.outcome import may_restart
from windlass.worker.ranks import read_mark
from windlass.worker.traces import TRACEBACK

Policy = Mapping[str, Any]


class Watch:
    """One attempt that goes on."""

    def __init__(
        self, attempt: Attempt, record: Recording, policy: Policy, roll_call: RollCall, membership: Membership,
        progress: ProgressOfNodes, *, adopted: bool = False,
    ) -> None:  # fmt: skip
        self.attempt = attempt
        self.adopted = adopted
        """Whether another supervisor has started it."""
        self.ending = Ending(attempt, policy["grace_seconds"])
        self.hangs = Hangs(attempt, record, policy)
        self._record = record
        self._policy = policy
        self._roll_call = roll_call
        self._membership = membership
        self._failed_node: int | None = None
        """The node that failed or was lost first."""
        self._notices: list[Event] = []
        """What nodes have said of a machine that is to go away, and nobody has heeded yet."""
        self._hearing = Hearing(record, progress)
        self._kinds: dict[str, Callable[[Node, Event], None]] = {
            "notice": lambda _, event: self._notices.append(event), "hang": self.hangs.answered,
            "failing": self._hear_failing, "unreachable": self._hear_unreachable,
        }  # fmt: skip

    def read_news(self) -> None:
        """Take note of all that nodes have said, and of those that died."""
        silent = []
        for node in self.attempt.nodes:
            if node.over:
                continue
            alive = node.lives()  # asked first: what a dead node said is then all there
            for event in node.news():
                if not self._hearing.hear(node, event) and event["kind"] in self._kinds:
                    self._kinds[event["kind"]](node, event)
            if not alive and not node.ended:
                if node.begun:
                    self._lose(node)
                else:
                    silent.append(node)
        # After the news of all nodes: a supervisor that takes over does not know what the one before it ended, and why.
        for node in silent:
            if self._is_not_started(node):
                self._give_up(node)
            else:
                self._lose(node)
        self._heed_notices()

    def turn(self) -> None:
        """Do what is due: look at silences, let nodes in again, and go on with an end that has begun."""
        if self.ending.reason is None and self.hangs.turn():
            self.end("hang")
        self._grow()
        self.ending.turn()

    def end(self, reason: str) -> None:
        """Begin to end it, unless that has begun; see `Ending.reason`."""
        if self.ending.reason is None:
            self.hangs.ask_before_end(reason)
        self.ending.begin(reason)

    def _grow(self) -> None:
        """End it to go on with nodes that are back; only once it has saved what it did, as it will again."""
        is_to_grow = self._membership.is_elastic and self._membership.away and self.ending.reason is None
        if is_to_grow and self._record.history.now.saved and self._roll_call.muster(between=False):
            self.end("resize")

    def _end_for(self, node: Node) -> None:
        """Begin to end it because this node has failed."""
        if self.ending.reason is None:
            self._failed_node = node.number
        self.end("failure")

    # -- what nodes say that asks for a decision -----------------------------------------------------------------------

    def _hear_failing(self, node: Node, event: Event) -> None:
        if event.get("waited"):
            self.hangs.ask("failure", besides=node)
        self._end_for(node)

    def _hear_unreachable(self, node: Node, event: Event) -> None:
        is_ending = self.ending.reason is not None
        if self._roll_call.unreachable(self.attempt, node, event["nodes"], is_ending=is_ending):
            self.ending.no_more_grace()  # the others wait for it in a collective, and would do so for half an hour

    def _heed_notices(self) -> None:
        """End it, if its machine is to go away. SIGTERM to a node that we are ending is our own."""
        notices, self._notices = self._notices, []
        for notice in notices:
            is_ending = self.ending.reason is not None or self._record.status.stop_requested
            if notice["source"] == "sigterm" and is_ending:
                continue
            self._record.once("notice", carried(notice), at=notice["at"])
            # Advice to leave is no reason to end a run that would not be started again.
            if notice["action"] != "rebalance" or may_restart("preemption", self._record.history, self._policy):
                self.end("preemption")

    # -- nodes that die -----------------------------------------------------------------------------------------------

    def _is_not_started(self, node: Node) -> bool:
        """Whether a node that died without reporting anything was ended by us: the attempt ends for another reason."""
        is_cut = node.number in self._roll_call.cut
        return self.ending.reason is not None and not is_cut and TRACEBACK not in node.last_words()

    def _give_up(self, node: Node) -> None:
        """A node was ended before its worker handled signals. It has neither failed nor been lost."""
        node.lost = node.not_started = True
        node.sweep()
        failed = self._failed_node
        reason = f"node {failed} failed" if failed is not None else f"the attempt was ended ({self.ending.reason})"
        why = f"ended because {reason}"
        self._record.once("not-started", {"node": node.number, "why": why})
        for rank in node.ranks:
            node.failures.append(
                {"rank": rank, "exit_code": -signal.SIGTERM, "at": time.time(), "tail": "", "traceback_at": None,
                 "ended_by_us": True, "not_started": True}
            )  # fmt: skip

    def _lose(self, node: Node) -> None:
        """A node died without its last word: its ranks go with it, and the attempt with them."""
        node.lost = True
        node.sweep()
        is_cut = node.number in self._roll_call.cut
        why = f"node {node.number} cannot be reached by the others" if is_cut else ""
        words = why or node.last_words() or f"node {node.number} died"
        for rank in node.ranks:
            exit_code = self._exit_code(rank)
            if exit_code != 0:
                node.failures.append(
                    {"rank": rank, "exit_code": node.exit_code if exit_code is None else exit_code, "at": time.time(),
                     "tail": words, "traceback_at": None, "ended_by_us": self.ending.reason is not None}
                )  # fmt: skip
        if node.failures:
            # One that we ask to end says a last word: who dies without it was lost, unless it was we who killed it.
            if is_cut or not self.ending.is_killing:
                self._record.once("lost-node", {"node": node.number, "why": words.splitlines()[-1]})
            self._end_for(node)

    def _exit_code(self, rank: int) -> int | None:
        """How a rank of a lost node had ended by then: as its node said, or as it has marked itself; else None."""
        known = next(state.exit_code for state in self._record.status.ranks if state.rank == rank)
        if known is None:
            known, _ = read_mark(str(self.attempt.folder / f"rank-{rank}.done"))
            if known is not None:
                self._record.note("rank", {"rank": rank, "exit_code": known})
        return known
