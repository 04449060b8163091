"""Attempt monitor: ingests the node events of one attempt, decides when to end it, and judges how it ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

from windlass.plan.plan import Policy
from windlass.runs.clock import Clock
from windlass.runs.events import NodeLost, NodeNotStarted, RankChanged, RootCause, ShutdownBegun, Warned, entry_of
from windlass.runs.metrics import MetricsFile
from windlass.runs.restart_policy import Outcome, is_late, may_restart, outcome
from windlass.runs.warnings import NOT_COLLECTED, RANKS_ALONE
from windlass.supervise.backend import Attempt, Node
from windlass.supervise.hang_detection import HangDetector
from windlass.supervise.ingestion import EventIngestion, RunProgress
from windlass.supervise.liveness import Liveness
from windlass.supervise.membership import Membership
from windlass.supervise.recorder import Recorder
from windlass.supervise.shutdown import Shutdown
from windlass.worker.protocol import (
    TRACEBACK,
    NodeEnded,
    NodeEvent,
    PeersUnreachable,
    PreemptionNotice,
    RankFailing,
    RankFailure,
    RanksAlone,
    RanksAtWork,
    StacksTaken,
)

ALONE_FIX: Final = (
    "let the script call torch.distributed.init_process_group and wrap the model (DistributedDataParallel); Lightning: "
    "Trainer(devices=..., num_nodes=..., strategy='ddp') for {} ranks. Where ranks are meant to work alone: "
    "launcher: plain"
)
NOT_STARTED: Final = 127
"""Exit code of a run whose target ended the attempt before any rank started."""
CAPACITY_SECONDS: Final = 30.0
"""Seconds for which a later attempt of an elastic run waits for the capacity of a node."""


@dataclass(frozen=True, slots=True)
class RunState:
    """State that the attempts of one run share."""

    record: Recorder
    policy: Policy
    membership: Membership
    liveness: Liveness
    progress: RunProgress
    clock: Clock
    metrics: MetricsFile | None = None
    """Keeps the points of the run's metrics."""
    has_process_group: bool = False
    """Whether the job's launcher expects ranks to create a process group. If they never do, a warning is due."""


class AttemptMonitor:
    """Monitor of one attempt in progress."""

    def __init__(self, attempt: Attempt, run: RunState, *, adopted: bool = False) -> None:
        self.attempt = attempt
        self.adopted = adopted
        """Whether another supervisor started the attempt."""
        self.shutdown = Shutdown(attempt, run.policy.grace_seconds, run.clock)
        self.hangs = HangDetector(attempt, run.record, run.policy, run.clock)
        self.ended_at: float | None = None
        """Latest reported end of a node in Unix seconds."""
        self._run = run
        self._record = run.record
        self._may_be_alone = run.has_process_group
        self._failed_node: int | None = None
        """Node that failed or was lost first."""
        self._failed_at: dict[int, float] = {}
        """When each rank failed by itself, in Unix seconds. Kept because a node may be killed before it reports its
        end."""
        self._lost: list[int] = []
        """Lost nodes in the order of their loss, without nodes that the supervisor killed."""
        self._notices: list[PreemptionNotice] = []
        self._is_signalled = False
        """Whether a node ended because it received a signal."""
        self._ingestion = EventIngestion(run.record, run.progress, attempt.num_staged, run.metrics)

    def read_updates(self) -> None:
        """Ingests all node events, and detects nodes that ended without reporting."""
        silent = []
        for node in self.attempt.nodes:
            if node.over:
                continue
            alive = node.lives()  # `lives` is called before the events are read, so that no last event is missed
            for event in node.updates():
                if not self._decide(node, event):
                    self._ingestion.take(node, event)
            if not alive and not node.ended:
                if node.begun:
                    self._lose(node)
                else:
                    silent.append(node)
        self._ingestion.save_progress()
        # Silent nodes are handled after all events: an adopting supervisor does not know which nodes its predecessor
        # ended, and why.
        # Nodes with a failed worker come first, because the other nodes ended as a result.
        silent.sort(key=lambda node: not node.worker_failed)
        for node in silent:
            if self._is_not_started(node):
                self._mark_not_started(node)
            else:
                self._lose(node)
        self._handle_notices()

    def warn_if_alone(self) -> None:
        """Warns once if no rank of the attempt ever connected to another, although the job's launcher connects
        ranks.
        """
        ranks = [rank for node in self.attempt.nodes for rank in node.ranks]
        alone = {rank for node in self.attempt.nodes for rank in node.alone}
        if self._may_be_alone and len(ranks) > 1 and alone.issuperset(ranks):
            self._may_be_alone = False
            message = f"the {len(ranks)} ranks never made a process group: each trained alone"
            self._record.once(Warned(message, code=RANKS_ALONE, fix=ALONE_FIX.format(len(ranks))))

    def turn(self, *, is_observed: bool = True) -> None:
        """Runs due actions: detects hangs while the target is observed, lets nodes rejoin, and continues a shutdown."""
        if self.shutdown.reason is None and self.hangs.turn(is_observed=is_observed):
            self.end("hang")
        self._shrink()
        self._grow()
        self.shutdown.turn()

    def end(self, reason: str) -> None:
        """Begins the shutdown of the attempt unless it has begun; see `Shutdown.reason`."""
        if self.shutdown.reason is None:
            self.hangs.dump_before_end(reason)
        if self.shutdown.is_new_reason(reason) and self._record.history.now.shutdown != reason:
            # The reason is recorded before nodes are signalled. A later supervisor could mistake the signals for a
            # preemption.
            self._record.note(ShutdownBegun(reason))
        self.shutdown.begin(reason)

    def _grow(self) -> None:
        """Ends the attempt in order to continue with nodes that have returned. Waits for a saved checkpoint, so that no
        step is repeated.
        """
        membership = self._run.membership
        is_to_grow = membership.is_elastic and membership.away and self.shutdown.reason is None
        if is_to_grow and self._record.history.now.saved and self._run.liveness.rejoin(between=False):
            self.end("resize")

    def _shrink(self) -> None:
        """Ends the attempt in order to continue without nodes that lack capacity. The first attempt waits for all
        nodes.
        """
        membership, now = self._run.membership, self._run.clock.time()
        is_first = len(self._record.status.attempts) == 1
        if is_first or not membership.is_elastic or self.shutdown.reason is not None:
            return
        waiting = self.attempt.without_capacity()
        is_late = any(now - since >= CAPACITY_SECONDS for since in waiting.values())
        if is_late and len(self.attempt.nodes) - len(waiting) >= membership.min_nodes:
            for node in self.attempt.live_nodes():
                # All these nodes are dropped at once. Otherwise each further attempt would wait for the next of them.
                if node.number in waiting:
                    node.lost = node.not_started = True
                    words = node.last_words() or f"no capacity for node {node.number}"
                    self._record.once(NodeLost(node.number, words.splitlines()[-1]))
            self.end("resize")

    def _end_for(self, node: Node) -> None:
        """Begins the shutdown of the attempt because of this failed node."""
        if self.shutdown.reason is None:
            self._failed_node = node.number
        self.end("failure")

    # -- node events that require a decision --------------------------------------------------------------------------

    def _decide(self, node: Node, event: NodeEvent) -> bool:
        """Acts on an event. Returns False for an event that is only recorded."""
        if isinstance(event, NodeEnded):
            self.ended_at = max(self.ended_at or 0.0, event.at)
            self._is_signalled |= event.ended_by == "stop"
        elif isinstance(event, PreemptionNotice):
            self._notices.append(event)
        elif isinstance(event, StacksTaken):
            self.hangs.take_stacks(node, event)
        elif isinstance(event, RanksAlone):
            self.warn_if_alone()
        elif isinstance(event, RanksAtWork):
            self.shutdown.spare(node, event.ranks)
        elif isinstance(event, PeersUnreachable):
            self._take_unreachable(node, event)
        elif isinstance(event, RankFailing):
            if event.waited:
                self.hangs.dump("failure", besides=node)
            if event.rank is not None:
                self._failed_at.setdefault(event.rank, event.at)
            self._end_for(node)
        else:
            return False
        return True

    def _take_unreachable(self, node: Node, event: PeersUnreachable) -> None:
        is_ending = self.shutdown.reason is not None
        self._run.liveness.take_unreachable(self.attempt, node, event.nodes, is_ending=is_ending)

    def _handle_notices(self) -> None:
        """Begins the shutdown at a preemption notice. During a shutdown, SIGTERM was sent by a supervisor. If a
        previous supervisor sent it, its shutdown is continued.
        """
        notices, self._notices = self._notices, []
        begun = self._record.history.now.shutdown
        if begun is not None and (self._is_signalled or any(notice.source == "sigterm" for notice in notices)):
            self.end(begun)
        for notice in notices:
            is_ending = self.shutdown.reason is not None or self._record.status.supervision.stop_requested
            if notice.source == "sigterm" and is_ending:
                continue
            self._record.once(entry_of(notice.kind, notice.data()), at=notice.at)
            # A rebalance recommendation ends only a run that would be restarted.
            if notice.action != "rebalance" or may_restart("preemption", self._record.history, self._run.policy):
                self.end("preemption")

    # -- dead nodes ------------------------------------------------------------------------------------------

    def _is_not_started(self, node: Node) -> bool:
        """Whether a node without any report was killed by the supervisor, in a shutdown for another reason."""
        is_cut = node.number in self._run.liveness.cut
        # The record shows that the node started, even if its events were deleted with the pod.
        has_started = any(state.pid is not None for state in self._record.status.ranks if state.rank in node.ranks)
        is_broken = is_cut or has_started or TRACEBACK in node.last_words()
        return self.shutdown.reason is not None and not is_broken

    def _mark_not_started(self, node: Node) -> None:
        """Records that a node was ended before its worker had installed signal handlers. Such a node counts neither as
        failed nor as lost.
        """
        node.lost = node.not_started = True
        node.sweep()
        failed = self._failed_node
        reason = f"node {failed} failed" if failed is not None else f"the attempt was ended ({self.shutdown.reason})"
        self._record.once(NodeNotStarted(node.number, f"ended because {reason}"))
        for rank in node.ranks:
            at = self._run.clock.time()
            node.failures.append(RankFailure(rank, -signal.SIGTERM, at, "", ended_by_us=True, not_started=True))

    def _lose(self, node: Node) -> None:
        """Records the loss of a node that ended without reporting. Its ranks were killed with it, and the attempt
        ends.
        """
        node.lost = True
        node.sweep()
        is_cut = node.number in self._run.liveness.cut
        if node.is_collecting:
            message = f"node {node.number} was lost while it copied files to the output"
            self._record.once(Warned(message, code=NOT_COLLECTED, ranks=node.ranks))
        words = self._why_cut(node) or node.last_words() or f"node {node.number} died"
        for rank in node.ranks:
            exit_code = self._exit_code(rank)
            if exit_code != 0 or self.attempt.has_failed_after_ranks:
                code = exit_code or node.exit_code
                # A rank that failed before the loss keeps its exit code.
                if rank in self._failed_at and exit_code is not None:
                    node.failures.append(RankFailure(rank, code, self._failed_at[rank], ""))
                    continue
                is_ours = self.shutdown.reason is not None
                if exit_code is None and self.shutdown.reason == "failure":
                    # The failures that began the shutdown may be consequences of this loss, reported first by the
                    # target.
                    is_ours = self.shutdown.is_killing(node)
                node.failures.append(RankFailure(rank, code, self._run.clock.time(), words, ended_by_us=is_ours))
        if node.failures:
            # A stopped node reports its end. A node without a report was lost, unless the supervisor killed it.
            if is_cut or not self.shutdown.is_killing(node):
                self._lost.append(node.number)
                # If the node's events are gone, the record shows until when the previous supervisor observed it.
                since = node.last_sign_of_life() or (self._record.history.observed_until if self.adopted else 0.0)
                known = {"since": since} if since else {}
                self._record.once(NodeLost(node.number, words.splitlines()[-1], **known))
            self._end_for(node)

    def _why_cut(self, node: Node | None) -> str:
        """Returns why this node was killed if other nodes could not reach it; otherwise empty."""
        is_cut = node is not None and node.number in self._run.liveness.cut
        return f"node {node.number} cannot be reached by the others" if node is not None and is_cut else ""

    def _exit_code(self, rank: int) -> int | None:
        """Returns the exit code of a rank on a lost node, from a node event or an exit marker; None if the rank was
        still running.
        """
        known = next(state.exit_code for state in self._record.status.ranks if state.rank == rank)
        if known is None:
            from windlass.worker.ranks import read_mark

            known = read_mark(str(self.attempt.folder / f"rank-{rank}.done")).code
            if known is not None:
                self._record.note(RankChanged(rank, exit_code=known))
        return known

    # -- end of the attempt ----------------------------------------------------------------------------------

    def judge(self, cause_of_loss: RootCause) -> tuple[Outcome, float | None]:
        """Returns the outcome of an ended attempt, and its last sign of life if the end was not observed.

        `cause_of_loss` is the root cause if nodes and supervisor were killed together.
        """
        run, attempt, nodes = self._run, self.attempt, self.attempt.nodes
        failures = attempt.failures()
        lost = sorted(self._lost)
        cause = self._cause(failures, lost)
        ended_by = self._ended_by(failures)
        if lost and lost[0] in attempt.evicted and ended_by in (None, "failure"):
            ended_by = "preemption"  # the node was evicted, although its preemption notice did not arrive
        is_planned = bool(attempt.evicted) and ended_by == "preemption"
        unseen = self.adopted and bool(lost) and all(node.lost for node in nodes) and ended_by in (None, "failure")
        if unseen:
            cause = cause_of_loss
        elif ended_by == "upload":
            cause = None  # the cause was recorded before the shutdown
        elif ended_by == "hang" and cause is not None:
            cause = self.hangs.cause(cause)
        is_free = run.membership.is_elastic and bool(lost) and bool(run.membership.members)
        died_at = attempt.last_sign_of_life() if unseen else None
        at = run.clock.time() if died_at is None else died_at
        found = outcome(
            ended_by,
            cause,
            run.record.history,
            run.policy,
            is_free=is_free,
            is_planned=is_planned,
            nothing_left=unseen,
            at=at,
        )
        return found, died_at

    def _cause(self, failures: list[RankFailure], lost: list[int]) -> RootCause | None:
        """Returns the root cause, with facts about its node's host or the reason of the node's loss; None without a
        failure.
        """
        why = self.attempt.why_ended
        if lost and failures and why and all(state.pid is None for state in self._record.status.ranks):
            return RootCause(why, exit_code=NOT_STARTED, node_lost=lost[0])
        if not failures:
            return None
        from windlass.worker.root_cause import first_cause  # compiles many patterns, which would delay the start

        first = first_cause(failures)
        if first is None:
            return None
        node = next((node for node in self.attempt.nodes if first.rank in node.ranks), None)
        cause = RootCause.of(first) if node is None else RootCause.of(first, node=node.number, host=node.host)
        if not lost:
            return cause
        cause = RootCause.of(cause, node_lost=lost[0])
        if why := why or self._why_cut(node):
            return RootCause.of(cause, summary=why)
        if node is None or node.number not in self._lost or first.rank in self._failed_at or not node.why_lost():
            return cause
        # It is unknown which signal ended the rank.
        return RootCause.of(cause, summary=f"node {node.number} was lost: {node.why_lost()}", signal=None)

    def _ended_by(self, failures: list[RankFailure]) -> str | None:
        """Returns why the attempt ended, if not because of its ranks; see `restart_policy.outcome`."""
        status, policy, by_target = self._record.status, self._run.policy, self.attempt.ended_by_target
        ended_by = "stop" if status.supervision.stop_requested or by_target == "stop" else self.shutdown.reason
        if (
            ended_by == "timeout"
            and not failures
            and not is_late(status, policy, self.ended_at or self._run.clock.time())
        ):
            ended_by = None  # all ranks succeeded before the limit, while no supervisor was attached
        if by_target == "timeout" and ended_by != "stop" and (failures or ended_by == "preemption"):
            ended_by = "timeout"
        if ended_by in ("timeout", "upload", "hang") and failures:
            from windlass.worker.root_cause import failed_by_itself

            if failed_by_itself(failures):
                ended_by = "failure"  # the other ranks were waiting for the failed rank
        if by_target == "preemption" and ended_by in (None, "failure", "hang"):
            ended_by = "preemption"  # the preemption made the ranks fail
        return ended_by
