"""Watches one run from its first attempt to its end and writes its record; detached from whoever began it.

It may be killed at any moment. The nodes go on, and the next supervisor (started by the next command that looks) reads
what they said from the beginning; whatever the record knows already changes nothing the second time. A full disk does
not stop it: what it has to write waits in memory, and would be read from the nodes again if it died.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.engines.local import netns, ports
from windlass.engines.local.attempt import Attempt, Node
from windlass.engines.local.membership import Membership, compose, cut_off, heartbeat
from windlass.engines.local.silence import ANSWER_SECONDS, Silence
from windlass.engines.local.warm import WarmPool
from windlass.errors import EngineError, StoreFull
from windlass.plan import placement
from windlass.plan.plan import Plan
from windlass.runs.history import History
from windlass.runs.outcome import Outcome, may_restart, outcome, timed_out
from windlass.runs.record import Phase
from windlass.runs.store import RunWriter, Store
from windlass.runs.wish import Wish, read_wish
from windlass.worker import process
from windlass.worker.blame import first_cause
from windlass.worker.node import LOOK_SIGNAL
from windlass.worker.ranks import read_mark

MASTER_ADDR = "127.0.0.1"
POLL_SECONDS = 0.5
ADOPTED_POLL_SECONDS = 0.05
"""Nodes that another supervisor started cannot wake this one."""
FAILURE_GRACE_SECONDS = 3.0
"""What is left to ranks whose peer has failed: they cannot train on, and the next attempt waits for them."""
LAST_RESORT_SECONDS = 5.0
"""How long after the grace period a node that does not end is killed with all its processes."""
FULL_DISK_PATIENCE_SECONDS = 600.0
PROGRESS_EVENT_SHARE = 0.01
"""Progress goes into the history at intervals of this share of the run's age: a long run has hundreds of them."""
LOOK_SECONDS = {"timeout": 1.0, "stop": 5.0}
"""A job that is ended after so long a silence is asked first where its ranks are."""
MAX_TAKE_UPS = 5
"""Supervisors that may die between two attempts until it is taken for a defect of ours."""
LOST = "the run's supervisor and nodes are gone: killed, or the machine was restarted"
LIVE_PHASES = {"training": Phase.TRAINING, "checkpointing": Phase.CHECKPOINTING}


class Supervisor:
    """The keeper of one run."""

    def __init__(self, writer: RunWriter, plan: Plan, run_dir: Path) -> None:
        self.writer = writer
        self.plan = plan
        self.run_dir = run_dir
        self.requests = plan.requests("node")
        events = writer.events()
        self.history = History.of(events)
        policy = plan.policy
        min_nodes = policy.get("min_nodes", plan.num_nodes)
        self.membership = Membership(plan.num_nodes, min_nodes, policy.get("node_back_seconds", 0.0))
        self.membership.recall(events)
        self.unheard: dict[int, tuple[int, ...]] = {}
        """For each node of the attempt that has complained, the nodes that it no longer hears."""
        self.cut: set[int] = set()
        """Nodes that were given up since the others do not hear them."""
        self.mustered_at = 0.0
        self.attempt: Attempt | None = None
        self.next_at: float | None = None
        """When the next attempt begins, in unix seconds; None while one goes on."""
        self.adopted = False
        self.reason: str | None = None
        """Why the attempt is being ended: `stop`, `timeout`, `preemption`, `hang`, `resize` or `failure`."""
        self.now_at: float | None = None
        """When the grace period of its ranks is over, where the nodes do not know of it."""
        self.kill_at: float | None = None
        self.notices: list[Mapping[str, Any]] = []
        """What nodes have said of a machine that is to go away, and nobody has heeded yet."""
        self.silence: Silence | None = None
        self.stacks_from: set[int] = set()
        """Nodes whose stacks are waited for, before the attempt is ended as hung."""
        self.stacks_until = 0.0
        self.look_reason = ""
        """Why the nodes were asked for stacks: `silence`, `timeout`, `stop` or `failure`."""
        self.wish: Wish | None = None
        """What a signal has asked for; a person's wish is a file."""
        self.terminated = False
        """Whether the machine goes down (SIGTERM): the run is left for the next command to take up."""
        self.patience_seconds = FULL_DISK_PATIENCE_SECONDS
        self.told_until = 0.0
        """Time of the newest event that another supervisor has written: what nodes said before is in the record."""
        self.told: set[str] = set()
        """The events of that supervisor, where this one reads again what the nodes said."""
        self.progress = dict(writer.status.progress)
        self.progress_event_at = 0.0
        self.node_rates: dict[int, float] = {}
        self.steps_from = self.plan.num_nodes
        """The lowest node that has told a step: the run's progress is that of its lowest rank that tells any."""
        self.wake, self.wake_end = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self.wake_end, False)

    # -- life ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Keep the run until it has ended."""
        if self.writer.status.phase.is_terminal:
            return
        attempts = self.writer.status.attempts
        if attempts and attempts[-1].ended_at is None:
            self.take_up()
        else:
            self.next_at = self._due()
        while self.attempt is not None or self.next_at is not None:
            if self.attempt is None:
                self._pause()
                continue
            self._turn()
            if self.attempt.over:
                self._end_attempt()

    def note(self, kind: str, data: Mapping[str, Any], *, at: float | None = None) -> None:
        """Write an event, and remember what the next decision needs of it. Raises StoreError."""
        self.writer.note(kind, data, at=at)
        self.history.take(kind, data)
        self.membership.take(kind, data, time.time() if at is None else at)

    def take_up(self) -> bool:
        """Adopt the newest attempt; gives whether any of it still lives."""
        self.adopted = True
        events = self.writer.events()
        self.told_until = max(event.time for event in events)
        self.told = {_key(event.kind, event.data) for event in events}
        last = self.writer.status.attempts[-1]
        members = last.members or tuple(range(self.plan.num_nodes))
        self.attempt = Attempt.adopt(self._attempt_dir(last.number), self._composed(members))
        self._listen()
        self._read_news()
        return bool(self.attempt.live_nodes())

    def settle(self) -> bool:
        """Bring the record of a run without supervisor to the truth, if nothing of it lives; else give False.

        A run that is to begin, or to be started again, is left to a supervisor too. Raises StoreFull.
        """
        self.patience_seconds = 0.0  # somebody waits
        attempts = self.writer.status.attempts
        if attempts and attempts[-1].ended_at is None:
            if self.take_up():
                return False
            if self._is_to_stop() or self._what_follows()[0].phase is not None:
                self._end_attempt()
            elif self._is_broken():
                self._end_run(Outcome(Phase.LOST, cause=self._why_lost(), reason="node-loss"))
            else:
                return False  # it is to be started again
        elif self._is_to_stop():
            self._end_run(Outcome(Phase.STOPPED, reason="stop"))
        elif self._is_broken():
            self._end_run(Outcome(Phase.LOST, cause=self._why_lost()))
        else:
            return False  # before the first attempt, or between two
        return True

    def _is_broken(self) -> bool:
        """Whether supervisors of this run die again and again: to start one more would help nobody."""
        return bool(self._last_words()) or self.history.take_ups >= MAX_TAKE_UPS

    def _due(self) -> float:
        """When the attempt that comes next may begin, in unix seconds."""
        for event in reversed(self.writer.events()):
            if event.kind in ("attempt-end", "resume"):
                return float(event.time + event.data.get("wait_seconds", 0.0))
        return 0.0

    def _begin_attempt(self) -> None:
        number, self.next_at = len(self.writer.status.attempts) + 1, None
        members = self.membership.members
        nodes = [[one.rank for one in places] for places in placement.place(len(members), self.plan.procs_per_node)]
        self.adopted, self.reason, self.now_at, self.kill_at = False, None, None, None
        self.notices.clear()
        self.told.clear()
        self.stacks_from.clear()
        self.node_rates.clear()
        self.steps_from = self.plan.num_nodes
        self.unheard.clear()
        self.cut.clear()
        self.note("attempt", {
            "number": number, "world_size": len(members) * self.plan.procs_per_node, "nodes": nodes,
            "members": list(members), "reason": self._why_begun(),
        })  # fmt: skip
        try:
            for folder in self.plan.requests("folder"):
                Path(folder["path"]).mkdir(parents=True, exist_ok=True)
                Path(folder["checkpoints"]).mkdir(parents=True, exist_ok=True)
            with contextlib.closing(ports.reserve(self.plan.policy["port"])) as port:
                master = (MASTER_ADDR, port)
                place, pool = self._attempt_dir(number), WarmPool(self.writer.store.home)
                requests = [self._completed(request) for request in self._in_networks(number, members)]
                self.attempt = Attempt.start(place, number, requests, master, self.wake_end, pool)
            self._listen()
            for why in self.attempt.refusals:
                self.note("warning", {"message": f"cold start: {why}"})
        except (OSError, EngineError) as error:
            if self.attempt is not None:
                self.attempt.kill()
            self.attempt = None
            cause = {"summary": f"could not start: {error}"}
            self._end_run(Outcome(Phase.FAILED, exit_code=127, cause=cause, reason="failure"))

    def _why_begun(self) -> str:
        """Why the attempt that begins now does."""
        if self.history.ended:
            return self.history.ended[-1].reason
        return "resume" if self.writer.status.attempts else "first"

    def _completed(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A node's request with what is known of this run only by now."""
        completed = dict(request)
        if self.writer.status.resume_from is not None:
            completed["env"] = {**request["env"], "WINDLASS_RESUME_FROM": self.writer.status.resume_from}
            if "resume" in request:  # until the script has saved another, which it does not tell
                asked_at = max(event.time for event in self.writer.events() if event.kind == "resume")
                asked = {"named": self.writer.status.resume_from, "named_at": asked_at}
                completed["resume"] = {**request["resume"], **asked}
        if "notices" in request:  # what was heeded already is not heeded again
            completed["notices"] = {**request["notices"], "known": self.history.obeyed}
        return completed

    def _listen(self) -> None:
        """From now on the ranks of this attempt may not be silent for too long."""
        if self.attempt is not None:
            ranks = [rank for node in self.attempt.nodes for rank in node.ranks]
            self.silence = Silence(self.attempt.folder, ranks, self.plan.policy.get("hang_seconds"))

    def _composed(self, members: Sequence[int]) -> list[Mapping[str, Any]]:
        """The requests of the nodes that take part."""
        return compose(self.requests, members, self.plan.num_nodes, self.plan.procs_per_node)

    def _in_networks(self, number: int, members: Sequence[int]) -> list[Mapping[str, Any]]:
        """The requests of the nodes that take part, once their networks are there, if they are to have any.

        The networks outlive an attempt: what was cut stays cut. Raises EngineError, OSError.
        """
        requests = self._composed(members)
        for network in self.plan.requests("network"):
            if netns.make(network, self.run_dir):
                self.note("network", {name: network[name] for name in ("interface", "rate", "nodes")})
            meeting_point = netns.meeting_point(network, number, members[0])
            requests = [{**request, "env": {**meeting_point, **request["env"]}} for request in requests]
            if len(requests) > 1:
                attempt_id = f"{self.plan.run_id}.{number}"
                requests = [
                    {**request, "heartbeat": heartbeat(network, members, request["node"], attempt_id)}
                    for request in requests
                ]
        return requests

    def _remove_networks(self) -> None:
        """Before the end is written: a run that has ended is looked after by nobody."""
        for network in self.plan.requests("network"):
            for refused in netns.remove(network):
                self.note("warning", {"message": f"left behind: {refused}"})

    def _attempt_dir(self, number: int) -> Path:
        return self.run_dir / f"attempt-{number}"

    # -- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Wait for something to happen, then take note of all that has."""
        self._sleep(ADOPTED_POLL_SECONDS if self.adopted else POLL_SECONDS)
        self._read_news()
        self._obey()
        self._watch_silence()
        self._grow()
        if self.attempt is None:
            return
        if self.now_at is not None and time.monotonic() >= self.now_at:
            self.now_at = None
            self.attempt.send(signal.SIGUSR1)
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.attempt.kill()

    def _pause(self) -> None:
        """Between two attempts: wait until the next is due, and do what is asked for meanwhile."""
        assert self.next_at is not None
        if self._is_to_stop():
            self._end_run(Outcome(Phase.STOPPED, reason="stop"))
        elif self._is_late():
            self._end_run(timed_out(self.plan.policy))
        elif self.terminated:
            self.next_at = None  # the run stays open
        elif time.time() < self.next_at:
            self._sleep(min(POLL_SECONDS, self.next_at - time.time()))
        else:
            self._muster()
            if self.membership.is_enough:
                self._begin_attempt()
            else:
                self._sleep(POLL_SECONDS)

    def _sleep(self, seconds: float) -> None:
        """Wait until a node says something or a signal comes; write what a full disk has delayed."""
        timeout = max(0.0, seconds)
        if self.now_at is not None:
            timeout = max(0.0, min(timeout, self.now_at - time.monotonic()))
        with contextlib.suppress(InterruptedError):
            select.select([self.wake], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 65536)
        with contextlib.suppress(StoreFull):
            self.writer.catch_up()

    def _read_news(self) -> None:
        assert self.attempt is not None
        for node in self.attempt.nodes:
            if node.over:
                continue
            alive = node.lives()  # asked first: what a dead node said is then all there
            for event in node.news():
                self._note(node, event)
            if not alive and not node.ended:
                self._lose(node)
        self._heed_notices()

    # -- nodes that leave and come back -------------------------------------------------------------------------------

    def _note_unreachable(self, node: Node, silent: Sequence[int]) -> None:
        """A node does not hear others: whoever is on the lost side of that cut is given up, at once."""
        assert self.attempt is not None
        self.unheard[node.number] = tuple(silent)
        live = {one.number: one for one in self.attempt.live_nodes()}
        complaints = {number: silent for number, silent in self.unheard.items() if number in live}
        for number in cut_off(live, complaints) if self.reason is None else ():
            self.cut.add(number)
            live[number].send(signal.SIGKILL)
            live[number].sweep()
        if self.cut:
            self.now_at = time.monotonic()  # the others wait for it in a collective, and would do so for half an hour

    def _muster(self) -> list[int]:
        """Let in again the nodes that were away for long enough and can be reached; gives these.

        Between two attempts, those that cannot be reached are found too: after a cut they may be on either side.
        """
        ready = self.membership.may_come_back(time.time())
        if not (ready or self.cut) or time.monotonic() - self.mustered_at < POLL_SECONDS:
            return []
        self.mustered_at = time.monotonic()
        down: set[int] = set().union(*(netns.unplugged(network) for network in self.plan.requests("network")))
        for node in down.intersection(self.membership.members) if self.attempt is None else ():
            self.note("lost-node", {"node": node, "why": f"the link of node {node} is down"})
        back = [node for node in ready if node not in down]
        for node in back:
            self.note("node-back", {"node": node})
        return back

    def _grow(self) -> None:
        """End the attempt to go on with nodes that are back; only once it has saved what it did, as it will again."""
        is_to_grow = self.membership.is_elastic and self.attempt is not None and self.reason is None
        if is_to_grow and self.membership.away and self.history.now.saved and self._muster():
            self._end_nodes("resize")

    # -- what nodes say -----------------------------------------------------------------------------------------------

    def _note(self, node: Node, event: Mapping[str, Any]) -> None:
        kind, at = event["kind"], event["at"]
        status = self.writer.status
        if kind == "node":
            self._once(
                "node",
                {"node": node.number, "start": event["start"], "pid": node.pid, "start_ticks": node.start_ticks},
                at,
            )
        elif kind == "rank":
            known = next(state for state in status.ranks if state.rank == event["rank"])
            if ("pid" in event and known.pid is None) or ("exit_code" in event and known.exit_code is None):
                data = {name: value for name, value in event.items() if name not in ("kind", "at")}
                self.note("rank", data, at=at)
        elif kind == "output":
            if status.phase is Phase.STARTING:
                self._enter(Phase.TRAINING, at)
        elif kind == "progress":
            self._note_progress(node, event["progress"], at)
        elif kind == "checkpoint":
            self._once("checkpoint", _data(event), at)
        elif kind == "unreachable":
            self._note_unreachable(node, event["nodes"])
        elif kind == "notice":
            self.notices.append(event)
        elif kind == "warning":
            self._once("warning", {"message": event["message"]}, at)
        elif kind == "hang":
            self._note_hang(node, event)
        elif kind == "failing":
            if event.get("waited"):
                self._ask_for_stacks("failure", besides=node)
            self._end_nodes("failure")

    def _note_hang(self, node: Node, event: Mapping[str, Any]) -> None:
        """The stacks of one node's ranks. What several nodes say of the same silence has the same `since`."""
        since = self.silence.since if self.silence is not None else event["at"]
        data = {
            "node": node.number, "reason": self.look_reason or "failure", "since": round(since, 3),
            "seconds": round(event["at"] - since, 3), "ranks": event["ranks"],
        }  # fmt: skip
        if event["at"] > self.told_until:
            self.note("hang", data, at=event["at"])
        if self.silence is not None:
            self.silence.answered(node.ranks)
        self.stacks_from.discard(node.number)

    def _watch_silence(self) -> None:
        """Ask for stacks when a silence is too long; then end the attempt, if the policy starts hung jobs again."""
        if self.silence is None or self.attempt is None or self.reason is not None:
            return
        over = self.silence.over()
        if over is not None:
            self.stacks_from.clear()
            data = {"since": round(over.since, 3), "at": round(over.at, 3), "seconds": round(over.at - over.since, 3)}
            self.note("hang-end", data)
        if self.silence.is_hang():
            self._ask_for_stacks("silence")
            if may_restart("hang", self.history, self.plan.policy):
                self.stacks_from = {node.number for node in self.attempt.live_nodes()} | {-1}
                self.stacks_until = time.monotonic() + ANSWER_SECONDS
        if self.stacks_from and (self.stacks_from == {-1} or time.monotonic() >= self.stacks_until):
            self.stacks_from.clear()
            if self.silence.is_long:
                self._end_nodes("hang")

    def _ask_for_stacks(self, reason: str, besides: Node | None = None) -> None:
        if self.attempt is not None and self.silence is not None:
            self.look_reason = reason
            self.silence.asked()
            for node in self.attempt.live_nodes():
                if node is not besides:
                    node.send(LOOK_SIGNAL)

    def _once(self, kind: str, data: Mapping[str, Any], at: float) -> None:
        """Append an event, unless this supervisor reads again what the one before it has written."""
        if _key(kind, data) not in self.told:
            self.note(kind, data, at=at)

    def _note_progress(self, node: Node, progress: dict[str, Any], at: float) -> None:
        if "samples_per_second" in progress:
            self.node_rates[node.number] = progress["samples_per_second"]
            progress["samples_per_second"] = round(sum(self.node_rates.values()), 1)
        phase = LIVE_PHASES.get(str(progress.pop("phase", "training")), Phase.TRAINING)
        if "step" in progress:
            self.steps_from = min(self.steps_from, node.number)
        if node.number > self.steps_from:
            progress = {name: progress[name] for name in ("samples_per_second",) if name in progress}
        self.progress = {**self.progress, **progress, "at": at}
        if isinstance(progress.get("step"), int) and self.history.reach(progress["step"]):
            self.note("caught-up", {"step": self.history.highest}, at=at)
        if at <= self.told_until:
            return
        self._enter(phase, at)
        with contextlib.suppress(StoreFull):
            self.writer.store.set_progress(self.writer.status.id, self.progress)
        if at >= self.progress_event_at:
            self.progress_event_at = at + max(1.0, PROGRESS_EVENT_SHARE * (at - self.writer.status.created_at))
            self.note("progress", self.progress, at=at)

    def _enter(self, phase: Phase, at: float) -> None:
        now = self.writer.status.phase
        if now is not phase and now in (Phase.STARTING, *LIVE_PHASES.values()):
            self.note("phase", {"phase": phase}, at=at)

    def _lose(self, node: Node) -> None:
        """A node died without its last word: its ranks go with it, and the attempt with them."""
        node.lost = True
        node.sweep()
        why = f"node {node.number} cannot be reached by the others" if node.number in self.cut else ""
        words = why or node.last_words() or f"node {node.number} died"
        for rank in node.ranks:
            exit_code = self._exit_code(rank)
            if exit_code != 0:
                node.failures.append(
                    {"rank": rank, "exit_code": node.exit_code if exit_code is None else exit_code, "at": time.time(),
                     "tail": words, "traceback_at": None, "ended_by_us": self.reason is not None}
                )  # fmt: skip
        if node.failures:
            # One that we ask to end says a last word: who dies without it was lost, unless it was we who killed it.
            if self.kill_at is None or time.monotonic() < self.kill_at or node.number in self.cut:
                self._once("lost-node", {"node": node.number, "why": words.splitlines()[-1]}, time.time())
            self._end_nodes("failure")

    def _exit_code(self, rank: int) -> int | None:
        """How a rank of a lost node had ended by then: as its node said, or as it has marked itself; else None."""
        assert self.attempt is not None
        known = next(state.exit_code for state in self.writer.status.ranks if state.rank == rank)
        if known is None:
            known, _ = read_mark(str(self.attempt.folder / f"rank-{rank}.done"))
            if known is not None:
                self.note("rank", {"rank": rank, "exit_code": known})
        return known

    # -- ending -------------------------------------------------------------------------------------------------------

    def _obey(self) -> None:
        """Do what a person, or the job's time limit, has asked for."""
        if self.reason != "stop" and self._is_to_stop():
            self._end_nodes("stop")
        wish = read_wish(self.run_dir)
        if wish is not None and wish.now and self.attempt is not None:
            self.attempt.send(signal.SIGUSR1)
            self.kill_at = min(self.kill_at or float("inf"), time.monotonic() + LAST_RESORT_SECONDS)
        if self.reason in (None, "preemption") and self._is_late():
            self._end_nodes("timeout")
        if self.terminated and self.reason is None:
            notice = {"source": "sigterm", "action": "terminate", "time": _words_for(time.time())}
            self.note("notice", notice)
            self._end_nodes("preemption")

    def _is_late(self) -> bool:
        """Whether the job's time limit has come."""
        limit = self.plan.policy["timeout_seconds"]
        return limit is not None and self.writer.status.limited_seconds(time.time()) >= limit

    def _heed_notices(self) -> None:
        """End the attempt, if its machine is to go away. SIGTERM to a node that we are ending is our own."""
        notices, self.notices = self.notices, []
        for notice in notices:
            is_ours = notice["source"] == "sigterm" and (self.reason is not None or self.writer.status.stop_requested)
            if is_ours:
                continue
            self._once("notice", _data(notice), notice["at"])
            # Advice to leave is no reason to end a run that would not be started again.
            if notice["action"] != "rebalance" or may_restart("preemption", self.history, self.plan.policy):
                self._end_nodes("preemption")

    def _is_to_stop(self) -> bool:
        """Whether somebody has asked for the end; the record then says so."""
        wish = read_wish(self.run_dir) or self.wish
        if wish is not None and not self.writer.status.stop_requested:
            self.note("stop", asdict(wish))
        return self.writer.status.stop_requested

    def _end_nodes(self, reason: str) -> None:
        """SIGTERM to every node, once; each gives its ranks the grace period, but hung ones none: what for?"""
        enough = LOOK_SECONDS.get(reason)
        if enough is not None and self.reason is None and self.silence is not None and self.silence.seconds >= enough:
            self._ask_for_stacks(reason)
        if self.reason is not None and reason not in ("stop", "timeout"):
            return
        first, self.reason = self.reason is None, reason
        if not first or self.attempt is None:
            return
        grace = self.plan.policy["grace_seconds"]
        if reason == "hang":
            grace = 0.0
            self.attempt.send(signal.SIGUSR1)
        else:
            self.attempt.send(signal.SIGTERM)
        if reason == "failure":
            grace = min(grace, FAILURE_GRACE_SECONDS)
            self.now_at = time.monotonic() + grace
        self.kill_at = time.monotonic() + grace + LAST_RESORT_SECONDS

    def _what_follows(self) -> tuple[Outcome, float | None]:
        """What follows the attempt, all of whose nodes have ended; and the last sign of life, if nobody saw its end."""
        assert self.attempt is not None
        nodes = self.attempt.nodes
        cause = first_cause(self.attempt.failures())
        lost = [node.number for node in nodes if node.lost and node.failures]
        if cause is not None and lost:
            cause["node_lost"] = lost[0]
        ended_by = "stop" if self.writer.status.stop_requested else self.reason
        unseen = self.adopted and bool(lost) and all(node.lost for node in nodes) and ended_by in (None, "failure")
        if unseen:
            cause = self._why_lost()
        elif ended_by == "hang" and cause is not None:
            cause = self._why_hung(cause)
        is_free = self.membership.is_elastic and bool(lost) and bool(self.membership.members)
        found = outcome(ended_by, cause, self.history, self.plan.policy, is_free=is_free, nothing_left=unseen)
        return found, self.attempt.last_sign_of_life() if unseen else None

    def _why_hung(self, cause: Mapping[str, Any]) -> dict[str, Any]:
        """The cause of an attempt that was ended since it hung: no rank began it, all were killed."""
        seconds = self.silence.seconds if self.silence is not None else 0.0
        return {"summary": f"hung: no rank wrote anything for {seconds:.0f} s", "exit_code": cause["exit_code"]}

    def _end_attempt(self) -> None:
        assert self.attempt is not None
        for node in self.attempt.nodes:
            if node.popen is not None:
                node.popen.wait()
        found, died_at = self._what_follows()
        self.attempt, self.now_at, self.kill_at = None, None, None
        unseen = {} if died_at is None else {"died_at": died_at}
        if found.phase is not None:
            self._end_run(found, unseen)
            return
        if found.cause is not None:
            self.note("cause", found.cause)
        self.note("attempt-end", {**found.attempt_end(), **unseen})
        self.next_at = time.time() + found.wait_seconds

    def _why_lost(self) -> dict[str, Any]:
        """Killed, or broken: a supervisor that broke has left its trace."""
        said = self._last_words()
        if not said:
            return {"summary": LOST}
        return {"summary": f"Windlass itself broke: {said.splitlines()[-1]}", "traceback": said}

    def _last_words(self) -> str:
        """What supervisors of this run have written, which is nothing unless one broke."""
        try:
            return (self.run_dir / "supervisor.log").read_text(errors="replace").strip()[-4000:]
        except OSError:
            return ""

    def _end_run(self, end: Outcome, more: Mapping[str, Any] | None = None) -> None:
        """Write the end. A full disk only delays it: the end of a run is not to be lost for want of a kilobyte."""
        self.next_at = None
        self._remove_networks()
        if end.cause is not None:
            self.note("cause", end.cause)
        if end.reason == "preemption" and self.writer.status.attempts[-1:] and end.phase is Phase.STOPPED:
            self.note("attempt-end", end.attempt_end())
        self.note("end", {**end.end(), **(more or {})})
        give_up = time.monotonic() + self.patience_seconds
        while True:
            try:
                self.writer.catch_up()
                return
            except StoreFull:
                if time.monotonic() > give_up:
                    raise
                time.sleep(1.0)


def main(argv: list[str]) -> int:
    """`HOME RUN_ID LOCK_FD`: keep one run; the lock is inherited, so there is no moment without a keeper."""
    home, run_id, lock = Path(argv[0]), argv[1], int(argv[2])
    os.set_inheritable(lock, False)
    with Store(home) as store:
        run_dir = store.run_dir(run_id)
        writer = store.writer(run_id, lock)
        assert writer is not None
        keeper = Supervisor(writer, Plan.from_json(store.plan(run_id)), run_dir)
        _hear_signals(keeper)
        _say_who(run_dir)  # not before it hears: the first thing that follows may be a signal
        keeper.run()
    return 0


def _key(kind: str, data: Mapping[str, Any]) -> str:
    """An event as text, to know it again."""
    return f"{kind} {json.dumps(data, sort_keys=True)}"


def _data(event: Mapping[str, Any]) -> dict[str, Any]:
    """What an event of a node carries."""
    return {name: value for name, value in event.items() if name not in ("kind", "at")}


def _words_for(seconds: float) -> str:
    """A time as the machine's metadata writes it: `2026-09-18T08:22:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _say_who(run_dir: Path) -> None:
    me = process.stat(os.getpid())
    with contextlib.suppress(OSError):  # on a full disk it is woken by nobody, and looks every half second
        identity = f"{os.getpid()} {me.start_ticks if me else 0} {process.boot_id()}"
        (run_dir / "supervisor.pid").write_text(identity)


def keeper_pid(run_dir: Path) -> int | None:
    """The process that keeps a run; None where it is dead, even if its pid is another's by now."""
    try:
        pid, start_ticks, boot = (run_dir / "supervisor.pid").read_text().split()
        return int(pid) if process.is_same(int(pid), int(start_ticks), boot) else None
    except (OSError, ValueError):
        return None


def _hear_signals(keeper: Supervisor) -> None:
    """SIGINT wakes the keeper to read a wish; without one it is a wish itself. At SIGTERM the machine goes down."""

    def on_interrupt(_number: int, _frame: object) -> None:
        keeper.wish = Wish()

    def on_term(_number: int, _frame: object) -> None:
        keeper.terminated = True

    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGTERM, on_term)
    signal.set_wakeup_fd(keeper.wake_end, warn_on_full_buffer=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
