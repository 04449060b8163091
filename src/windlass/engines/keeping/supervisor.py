"""Keeps one run from its first attempt to its end and writes its record; detached from whoever began it.

It may be killed at any moment. The nodes go on, and the next supervisor (started by the next command that looks) reads
what they said from the beginning; whatever the record knows already changes nothing the second time. A full disk does
not stop it: what it has to write waits in memory, and would be read from the nodes again if it died.

Beside it: `watching.py` watches an attempt, `ending.py` ends it; `hangs.py` sees its silences, `rollcall.py` who is
there; `keeper.py` is the process. The engine's `ground.py` says where attempts take place. What follows an attempt, any
engine asks `runs/outcome.py`.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from windlass.engines.keeping import crash
from windlass.engines.keeping.ground import Attempt, Ground, HeldElsewhere, NotNow
from windlass.engines.keeping.hearing import ProgressOfNodes
from windlass.engines.keeping.membership import Membership
from windlass.engines.keeping.recording import Recording
from windlass.engines.keeping.rollcall import RollCall
from windlass.engines.keeping.watching import Watch
from windlass.errors import EngineError, StoreFull
from windlass.plan import placement
from windlass.plan.plan import Plan
from windlass.runs.attempts import due_at, why_begun
from windlass.runs.outcome import Outcome, is_late, outcome, timed_out
from windlass.runs.record import Phase
from windlass.runs.store import RunWriter
from windlass.runs.wish import Wish, read_wish
from windlass.worker.blame import failed_by_itself, first_cause

POLL_SECONDS: Final = 0.5
ADOPTED_POLL_SECONDS: Final = 0.05
"""Nodes that another supervisor started cannot wake this one."""
FULL_DISK_PATIENCE_SECONDS: Final = 600.0
STOP_PATIENCE_SECONDS: Final = 5.0
"""The same where a command waits for the end; without it in the record, the next command reads it from the nodes."""
MAX_CRASHES: Final = 3
"""Supervisors that may crash one after the other, none of which got anything done, until the run is given up."""
CRASH_WINDOW_SECONDS: Final = 600.0
"""How long a crash counts: what was broken then may have been mended."""
FREE_TAKE_UPS: Final = 3
"""Supervisors that may be started one after the other without a pause, none of which got anything done."""
MAX_PAUSE_SECONDS: Final = 60.0
TROUBLE_SECONDS: Final = 10.0
"""How long a target may be silent until it is worth a line in the record: most outages are shorter."""
LOST: Final = "the run's supervisor and nodes are gone: killed, or the machine was restarted"


class Supervisor:
    """The keeper of one run."""

    def __init__(self, writer: RunWriter, plan: Plan, run_dir: Path, ground: Ground) -> None:
        self.writer = writer
        self.ground = ground
        self.plan = plan
        self.run_dir = run_dir
        policy = plan.policy
        min_nodes = policy.get("min_nodes", plan.num_nodes)
        self.membership = Membership(plan.num_nodes, min_nodes, policy.get("node_back_seconds", 0.0))
        self.record = Recording(writer, self.membership.take)
        self.roll_call = RollCall(self.record, self.membership, ground.unplugged)
        self.progress = ProgressOfNodes(self.record, plan.num_nodes)
        self.watch: Watch | None = None
        """The attempt that goes on; None between two."""
        self.next_at: float | None = None
        """When the next attempt begins, in unix seconds; None while one goes on."""
        self.detached = False
        """Whether this supervisor leaves the run as it is: the run stays open, and its nodes go on."""
        self._delays = 0
        """How often in a row the target could not be used."""
        self._is_holder: bool | None = None
        """Whether this supervisor alone acts for the run.

        None while another one may hold it, False while the target cannot be asked.
        """
        self._hold_at = 0.0
        """When that is asked next, in unix seconds."""
        self._trouble_since: float | None = None
        self.wish: Wish | None = None
        """What a signal has asked for; a person's wish is a file."""
        self.terminated = False
        """Whether the machine goes down (SIGTERM): the run is left for the next command to take up."""
        self.patience_seconds = FULL_DISK_PATIENCE_SECONDS
        self.wake, self.wake_end = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self.wake_end, False)

    # -- life ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Keep the run until it has ended."""
        if self.writer.status.phase.is_terminal:
            return
        self.next_at = 0.0 if self._is_begun() else due_at(self.writer.events())
        while not self.detached and (self.watch is not None or self.next_at is not None):
            if self.watch is None:
                self._pause()
                continue
            self._turn(self.watch)
            if not self.detached and self.watch.attempt.over:
                self._end_attempt(self.watch)

    def take_up(self) -> Watch:
        """Adopt the newest attempt."""
        self.record.read_again()
        last = self.writer.status.attempts[-1]
        members = last.members or tuple(range(self.plan.num_nodes))
        attempt = self.ground.adopt(self._attempt_dir(last.number), last.number, members, self.wake_end)
        self.watch = self._watched(attempt, adopted=True)
        self.watch.read_news()
        return self.watch

    def settle(self) -> bool:
        """Bring the record of a run without supervisor to the truth, if nothing of it lives; else give False.

        A run that is to begin, or to be started again, is left to a supervisor too. Raises StoreFull.
        """
        self.patience_seconds = 0.0  # somebody waits
        if self._is_begun():
            watch = self.take_up()
            if watch.attempt.live_nodes():
                return False
            if self._is_to_stop() or self._what_follows(watch)[0].phase is not None:
                self._end_attempt(watch)
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

    def settle_unseen(self) -> bool:
        """As `settle`, where only a supervisor can find out how an attempt ended."""
        if not self._is_begun():
            return self.settle()
        if not self._is_broken() or self.ground.lives():
            return False
        self._end_run(Outcome(Phase.LOST, cause=self._why_lost(), reason="node-loss"))
        return True

    def _is_begun(self) -> bool:
        """Whether an attempt goes on, as far as the record knows."""
        attempts = self.writer.status.attempts
        return bool(attempts) and attempts[-1].ended_at is None

    def _is_broken(self) -> bool:
        """Whether supervisors of this run crash again and again: another one would crash as well."""
        crashes = list(self.record.history.crashes)
        if (last := crash.read(self.run_dir)) is not None:
            crashes.append(last.at)
        return sum(time.time() - at < CRASH_WINDOW_SECONDS for at in crashes) >= MAX_CRASHES

    def pause_seconds(self) -> float:
        """How long the next supervisor is not to be started yet: the ones before it got nothing done."""
        history = self.record.history
        in_vain = history.take_ups - FREE_TAKE_UPS
        pause = min(MAX_PAUSE_SECONDS, 2.0 ** min(in_vain, 10)) if in_vain >= 0 else 0.0
        return max(0.0, min(pause, history.taken_up_at + pause - time.time()))

    def _attempt_dir(self, number: int) -> Path:
        return self.run_dir / f"attempt-{number}"

    # -- between two attempts -----------------------------------------------------------------------------------------

    def _pause(self) -> None:
        """Wait until the next attempt is due, and do what is asked for meanwhile."""
        assert self.next_at is not None
        if not self._is_holder and time.time() >= self._hold_at:
            self._is_holder = self._hold()
        if self.detached or self.ground.is_lost_to_another:
            self.detached = True
            return
        lives = self._is_begun() and self.ground.is_started(self._attempt_dir(len(self.writer.status.attempts)))
        if self._is_holder is None and not self.terminated:
            self._sleep(POLL_SECONDS)
        elif not lives and self._is_to_stop():
            self._end_run(Outcome(Phase.STOPPED, reason="stop"))
        elif not lives and is_late(self.writer.status, self.plan.policy, time.time()):
            self._end_run(timed_out(self.plan.policy))
        elif self.terminated and (not lives or self.ground.outlives_supervisor):
            self._detach()  # the run stays open
        elif time.time() < self.next_at:
            self._sleep(min(POLL_SECONDS, self.next_at - time.time()))
        elif not self._is_holder:
            self._sleep(POLL_SECONDS)
        elif lives:
            self.next_at = None
            self.take_up()
        elif self._is_begun():
            self._start_again()
        else:
            self.roll_call.muster(between=True)
            if self.membership.is_enough:
                self._begin_attempt()
            else:
                self._sleep(POLL_SECONDS)

    def _hold(self) -> bool | None:
        """Ask whether this supervisor alone acts for the run; see `_is_holder`."""
        try:
            if not self.ground.hold():
                return None
        except HeldElsewhere:
            self.detached = True  # and nothing is written: the record is the other one's
            return None
        except NotNow as error:
            self._hold_at = self._after(error)
            return False
        self._delays = 0
        return True

    def _after(self, error: NotNow) -> float:
        """When to use a target again that cannot be used now: less and less often, but for as long as the run may take.

        In unix seconds. The reason is noted once.
        """
        self._condition(error.kind, error.message)
        pause = min(MAX_PAUSE_SECONDS, 2.0 ** min(self._delays, 10))
        self._delays += 1
        return time.time() + pause

    def _condition(self, kind: str | None, message: str = "") -> None:
        """Note what keeps the run from being supervised, once; None is that nothing does any more."""
        known = (self.writer.status.condition or {}).get("type")
        if kind != known:
            self.record.note("condition", {"type": kind, "message": message})

    def _detach(self) -> None:
        """Leave the run as it is, to the next supervisor."""
        if self.ground.outlives_supervisor:
            why = "no supervisor is attached: it was ended by SIGTERM, and the workers go on without it"
            self._condition("SupervisorDetached", why)
        self.detached = True

    def _begin_attempt(self) -> None:
        number, self.next_at = len(self.writer.status.attempts) + 1, None
        members, procs = self.membership.members, self.plan.procs_per_node
        self.record.read_anew()
        self.progress.begin()
        self.roll_call.begin()
        self.record.note("attempt", {
            "number": number, "world_size": len(members) * procs,
            "nodes": [[one.rank for one in places] for places in placement.place(len(members), procs)],
            "members": list(members), "reason": why_begun(self.record.history, self.writer.status),
        })  # fmt: skip
        self._start(number, members)

    def _start_again(self) -> None:
        """Start the attempt that the record knows and the target does not."""
        last = self.writer.status.attempts[-1]
        self._start(last.number, last.members or tuple(range(self.plan.num_nodes)))

    def _start(self, number: int, members: Sequence[int]) -> None:
        attempt: Attempt | None = None
        self.next_at = None
        try:
            place = self._attempt_dir(number)
            attempt = self.ground.start(self.record, place, number, members, self.wake_end)
            self.watch = self._watched(attempt)
            for why in attempt.refusals:
                self.record.note("warning", {"message": f"cold start: {why}"})
            self._delays = 0
            self._condition(None)
        except NotNow as error:
            self.next_at = self._after(error)
        except HeldElsewhere:
            self.detached = True
        except (OSError, EngineError) as error:
            if attempt is not None:
                attempt.kill()
            self.watch = None
            cause = {"summary": f"could not start: {error}"}
            self._end_run(Outcome(Phase.FAILED, exit_code=127, cause=cause, reason="failure"))

    def _watched(self, attempt: Attempt, *, adopted: bool = False) -> Watch:
        policy, roll_call = self.plan.policy, self.roll_call
        job = self.plan.job
        launcher = job.get("launcher") or ("plain" if job.get("command") else "torchrun")
        return Watch(
            attempt, self.record, policy, roll_call, self.membership, self.progress, adopted=adopted,
            is_to_meet=launcher == "torchrun",
        )  # fmt: skip

    # -- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self, watch: Watch) -> None:
        """Wait for something to happen, then take note of all that has."""
        self._sleep(watch.ending.due_in(ADOPTED_POLL_SECONDS if watch.adopted else POLL_SECONDS))
        if self.ground.is_lost_to_another:
            self.detached = True
            return
        watch.read_news()
        if self.terminated and self.ground.outlives_supervisor:
            self._detach()
            return
        self._obey(watch)
        watch.turn()
        self._note_trouble()

    def _note_trouble(self) -> None:
        """Note that the target does not answer, once that has lasted, and that it does again."""
        trouble = self.ground.trouble()
        if trouble is None:
            self._trouble_since = None
            self._condition(None)
            return
        self._trouble_since = self._trouble_since or time.monotonic()
        if time.monotonic() - self._trouble_since >= TROUBLE_SECONDS:
            self._condition(trouble.kind, trouble.message)

    def _sleep(self, seconds: float) -> None:
        """Wait until a node says something or a signal comes; write what a full disk has delayed."""
        with contextlib.suppress(InterruptedError):
            select.select([self.wake], [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 65536)
        with contextlib.suppress(StoreFull):
            self.writer.catch_up()

    def _obey(self, watch: Watch) -> None:
        """Do what a person, or the job's time limit, has asked for."""
        if watch.ending.reason != "stop" and self._is_to_stop():
            watch.end("stop")
        wish = read_wish(self.run_dir)
        if wish is not None and wish.now:
            watch.ending.hurry()
        if watch.ending.reason in (None, "preemption") and is_late(self.writer.status, self.plan.policy, time.time()):
            watch.end("timeout")
        if self.terminated and watch.ending.reason is None:
            notice = {"source": "sigterm", "action": "terminate", "time": _words_for(time.time())}
            self.record.note("notice", notice)
            watch.end("preemption")

    def _is_to_stop(self) -> bool:
        """Whether somebody has asked for the end; the record then says so."""
        wish = read_wish(self.run_dir) or self.wish
        if wish is not None and not self.writer.status.stop_requested:
            self.record.note("stop", asdict(wish))
        return self.writer.status.stop_requested

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _end_attempt(self, watch: Watch) -> None:
        watch.attempt.close()
        if watch.ending.reason is None:
            watch.warn_if_alone()
        found, died_at = self._what_follows(watch)
        self.watch = None
        unseen = {} if died_at is None else {"died_at": died_at}
        if found.phase is not None:
            self._end_run(found, unseen)
            return
        if found.cause is not None:
            self.record.note("cause", found.cause)
        self.record.note("attempt-end", {**found.attempt_end(), **unseen})
        self.next_at = time.time() + found.wait_seconds

    def _what_follows(self, watch: Watch) -> tuple[Outcome, float | None]:
        """What follows the attempt, all of whose nodes have ended; and the last sign of life, if nobody saw its end."""
        nodes = watch.attempt.nodes
        cause = first_cause(watch.attempt.failures())
        lost = [node.number for node in nodes if node.lost and node.failures and not node.not_started]
        if cause is not None and lost:
            cause["node_lost"] = lost[0]
        ended_by = "stop" if self.writer.status.stop_requested else watch.ending.reason
        status, limits = self.writer.status, self.plan.policy
        if ended_by == "timeout" and cause is None and not is_late(status, limits, watch.ended_at or time.time()):
            ended_by = None  # all ranks had ended well before the limit, while no supervisor watched
        if watch.attempt.is_past_deadline and ended_by != "stop" and (cause is not None or ended_by == "preemption"):
            ended_by = "timeout"
        if ended_by in ("timeout", "hang") and failed_by_itself(watch.attempt.failures()):
            ended_by = "failure"  # the other ranks waited for one that had failed and did not exit
        if watch.attempt.is_taken_back and ended_by in (None, "failure", "hang"):
            ended_by = "preemption"  # how its ranks died of it does not matter
        unseen = watch.adopted and bool(lost) and all(node.lost for node in nodes) and ended_by in (None, "failure")
        if unseen:
            cause = self._why_lost()
        elif ended_by == "hang" and cause is not None:
            cause = watch.hangs.cause(cause)
        is_free = self.membership.is_elastic and bool(lost) and bool(self.membership.members)
        history, policy = self.record.history, self.plan.policy
        died_at = watch.attempt.last_sign_of_life() if unseen else None
        at = time.time() if died_at is None else died_at
        found = outcome(ended_by, cause, history, policy, is_free=is_free, nothing_left=unseen, at=at)
        return found, died_at

    def _why_lost(self) -> dict[str, Any]:
        """Killed, or crashed: a supervisor that crashed has left a marker."""
        crashed = crash.read(self.run_dir)
        if crashed is None:
            return {"summary": LOST}
        return {"summary": f"{crash.BROKE}{crashed.summary}", "traceback": crashed.traceback}

    def _end_run(self, end: Outcome, more: Mapping[str, Any] | None = None) -> None:
        """Record the end, then clean up: a target that does not answer must not cost the run its end."""
        self.next_at = None
        self.ground.clear(self.record)
        if end.cause is not None:
            self.record.note("cause", end.cause)
        if end.reason == "preemption" and self.writer.status.attempts[-1:] and end.phase is Phase.STOPPED:
            self.record.note("attempt-end", end.attempt_end())
        self.record.note("end", {**end.end(), **(more or {})})
        self._write_all()
        self.ground.finish(self.record, is_patient=self.patience_seconds > 0)

    def _write_all(self) -> None:
        """A full disk only delays the end: it is not to be lost for want of a kilobyte. Raises StoreFull."""
        patience = STOP_PATIENCE_SECONDS if self.writer.status.stop_requested else FULL_DISK_PATIENCE_SECONDS
        give_up = time.monotonic() + min(patience, self.patience_seconds)
        while True:
            try:
                self.writer.catch_up()
                return
            except StoreFull:
                if time.monotonic() > give_up:
                    raise
                time.sleep(1.0)


def _words_for(seconds: float) -> str:
    """A time as the machine's metadata writes it: `2026-09-18T08:22:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
