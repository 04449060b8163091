"""An engine without processes, to test programs that drive Windlass: every rank is a thread that plays a part.

    def play(rank):
        rank.print(f"hello from {rank.rank} of {rank.world_size}")
        if rank.rank == 1:
            raise ValueError("loss is nan")

    run = windlass.run(Job(name="digits", run="train.py", nodes=2), on=FakeEngine(store, play))
    assert run.wait(check=False).cause["rank"] == 1

Record, logs, first cause, restarts and stops are those of a real run. What only a process has is not there: pids, a
working folder, an environment that `os.environ` shows (it is in `rank.env`), and death in the middle of a statement:
a signal reaches a rank when it next calls one of `FakeRank`'s methods.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.base import Engine, reopen
from windlass.engines.fakerank import Actor, FakeRank, FakeSignal, Play
from windlass.errors import UsageError
from windlass.plan.arguments import fill_in, resume_request
from windlass.plan.placement import attempt_environment, job_environment, place, rank_environment
from windlass.plan.plan import Plan, Step
from windlass.runs.attempts import asked_to_resume, resume_environment, why_begun
from windlass.runs.history import History
from windlass.runs.outcome import is_late, outcome, timed_out
from windlass.runs.record import Phase, Status
from windlass.runs.store import RunWriter, Store
from windlass.runs.wish import Wish, read_wish, write_wish
from windlass.spec.job import Job
from windlass.worker.blame import first_cause
from windlass.worker.logfile import LogFile
from windlass.worker.resume import go_on

__all__ = ["FakeEngine", "FakeRank", "FakeSignal", "FakeTarget", "Play", "plan"]

if TYPE_CHECKING:
    from windlass.diagnose.observations import Observations

POLL_SECONDS: Final = 0.02
LOST: Final = "the process that played the run is gone"
FIRST_PORT: Final = 29500


@dataclass(frozen=True, slots=True)
class FakeTarget:
    """Where fake runs are said to be."""

    name: str = "fake"
    gpus_per_node: int = 0
    """What `procs_per_node: auto` counts."""
    env: Mapping[str, str] = field(default_factory=dict)


def plan(job: Job, target: FakeTarget, home: str, run_id: str) -> Plan:
    """The plan of a run that is only played. `home` is the folder of the records. Pure."""
    procs = max(1, target.gpus_per_node) if job.procs_per_node == "auto" else job.procs_per_node
    run_dir = f"{home}/runs/{run_id}"
    folders = {"path": f"{run_dir}/output", "checkpoints": f"{run_dir}/checkpoints"}
    common = job_environment(
        run_id=run_id, num_nodes=job.nodes.max, procs_per_node=procs, max_restarts=job.restarts.max,
        output_dir=folders["path"], checkpoint_dir=folders["checkpoints"],
        data={data.name: data.source for data in job.data},
        checkpoint_every=job.checkpoint.every, checkpoint_keep=job.checkpoint.keep,
    )  # fmt: skip
    words = list(job.script_argv) if job.command is not None else fill_in(job.script_argv, common)
    nodes = [
        {
            "node": places[0].node,
            "env": {**common, **target.env, **job.env},
            "ranks": [{**asdict(p), "argv": words, "env": rank_environment(p)} for p in places],
            "progress": job.progress,
            **resume_request(job, common, home),
        }
        for places in place(job.nodes.max, procs)
    ]
    return Plan(
        run_id=run_id, name=job.name, target=target.name, engine="fake", output_dir=folders["path"],
        num_nodes=job.nodes.max, procs_per_node=procs, job=job.model_dump(mode="json", exclude_defaults=True),
        policy={"timeout_seconds": job.timeout, "grace_seconds": job.grace, "max_restarts": job.restarts.max,
                "restart_on": list(job.restarts.on)},
        steps=(Step("folder", f"make {folders['path']}", folders),
               *(Step("node", f"play node {request['node']}", request) for request in nodes)),
    )  # fmt: skip


class _Keeper:
    """Watches one run to its end and writes its record."""

    def __init__(self, writer: RunWriter, plan: Plan, play: Play) -> None:
        self.writer, self.plan, self.play = writer, plan, play
        self.run_dir = writer.store.run_dir(plan.run_id)
        self.woken = threading.Event()
        self.history = History.of(writer.events())
        self.next_at = 0.0
        """When the next attempt may begin, in unix seconds."""

    def run(self) -> None:
        """Attempt after attempt, as long as the policy allows."""
        for folder in self.plan.requests("folder"):
            Path(folder["path"]).mkdir(parents=True, exist_ok=True)
            Path(folder["checkpoints"]).mkdir(parents=True, exist_ok=True)
        while not self.writer.status.phase.is_terminal:
            if not self._is_over_before_the_next():
                self._attempt(len(self.writer.status.attempts) + 1)

    def append(self, kind: str, data: Mapping[str, Any], *, at: float | None = None) -> Status:
        """Write an event, and remember what the next decision needs of it."""
        status = self.writer.append(kind, data, at=at)
        self.history.take(kind, data, time.time() if at is None else at)
        return status

    def _is_over_before_the_next(self) -> bool:
        """Wait until the next attempt may begin; gives whether the run was ended meanwhile."""
        while True:
            wish = read_wish(self.run_dir)
            if wish is not None:
                self.append("stop", asdict(wish))
                self.append("end", {"phase": Phase.STOPPED, "exit_code": 0, "reason": "stop"})
            elif is_late(self.writer.status, self.plan.policy, time.time()):
                end = timed_out(self.plan.policy)
                self.append("cause", end.cause or {})
                self.append("end", end.end())
            if self.writer.status.phase.is_terminal or time.time() >= self.next_at:
                return self.writer.status.phase.is_terminal
            time.sleep(POLL_SECONDS)

    def _attempt(self, number: int) -> None:
        requests = self.plan.requests("node")
        nodes = [[spec["rank"] for spec in node["ranks"]] for node in requests]
        why = why_begun(self.history, self.writer.status)
        self.append("attempt", {"number": number, "world_size": self.plan.world_size, "nodes": nodes,
                                "members": list(range(len(nodes))), "reason": why})  # fmt: skip
        folder = self.run_dir / f"attempt-{number}"
        folder.mkdir()
        env = {**attempt_environment(number, "127.0.0.1", FIRST_PORT + number),
               **resume_environment(self.writer.status)}  # fmt: skip
        asked = [asked_to_resume(node, self.writer.status, self.writer.events()) for node in requests]
        try:
            requests, found = go_on(asked, self.writer.status.created_at, number)
        except ValueError as error:
            self.append("cause", {"summary": f"could not start: {error}"})
            self.append("end", {"phase": Phase.FAILED, "exit_code": 127, "reason": "failure"})
            return
        for event in found:
            self.append("checkpoint", {"rank": 0, **event})
        actors = []
        for node in requests:
            for spec in node["ranks"]:
                log = LogFile(str(folder), spec["rank"], node["progress"])
                actors.append(Actor(FakeRank(node, spec, env, log), log, self.play, self.woken.set))
        self._finish(self._watch(actors), first_cause([a.failure() for a in actors if a.exit_code]))

    def _watch(self, actors: list[Actor]) -> str | None:
        """Until all have ended; gives why they were ended, if they were: `failure`, `stop` or `timeout`."""
        reason: str | None = None
        kill_at = float("inf")
        while not all(actor.told for actor in actors):
            self.woken.wait(POLL_SECONDS)
            self.woken.clear()
            self._note(actors)
            wish = read_wish(self.run_dir)
            why = reason
            if wish is not None:
                why = "stop"
                if not self.writer.status.stop_requested:
                    self.append("stop", asdict(wish))
            elif reason is None and any(actor.exit_code for actor in actors):
                why = "failure"
            elif reason is None and is_late(self.writer.status, self.plan.policy, time.time()):
                why = "timeout"
            if why is not None and reason is None:
                kill_at = time.monotonic() + self.plan.policy["grace_seconds"]
                for actor in actors:
                    actor.send(signal.SIGTERM)
            reason = why
            if time.monotonic() >= kill_at or (wish is not None and wish.now):
                for actor in actors:
                    actor.send(signal.SIGKILL)
        return reason

    def _note(self, actors: list[Actor]) -> None:
        """Write down who has ended, whether anyone spoke, the newest progress, and what was told of checkpoints."""
        ended = [actor for actor in actors if actor.exit_code is not None and not actor.told]
        status = self.writer.status
        if status.phase is Phase.STARTING and any(actor.log.spoke for actor in actors):
            status = self.writer.append("phase", {"phase": Phase.TRAINING})
        told = [dict(actor.log.progress) for actor in actors if actor.log.progress]
        if told:
            rates = [one["samples_per_second"] for one in told if "samples_per_second" in one]
            newest = {**told[0], **({"samples_per_second": sum(rates)} if rates else {})}  # type: ignore[arg-type]
            phase = Phase.CHECKPOINTING if newest.pop("phase", "") == Phase.CHECKPOINTING else Phase.TRAINING
            if status.phase is not phase and status.phase in (Phase.TRAINING, Phase.CHECKPOINTING):
                self.writer.append("phase", {"phase": phase})
            step = newest.get("step")
            if isinstance(step, int) and self.history.reach(step):
                self.append("caught-up", {"step": self.history.highest})
            if any(status.progress.get(name) != value for name, value in newest.items()):
                self.append("progress", {**newest, "at": time.time()})
        for actor in actors:
            for event in actor.rank.told_of_checkpoints():
                self.append("checkpoint", {"rank": actor.rank.rank, **event})
        for actor in ended:
            actor.told = True
            self.writer.append("rank", {"rank": actor.rank.rank, "exit_code": actor.exit_code}, at=actor.ended_at)

    def _finish(self, reason: str | None, cause: dict[str, Any] | None) -> None:
        result = outcome(reason, cause, self.history, self.plan.policy, at=time.time())
        if result.cause is not None:
            self.append("cause", result.cause)
        if result.phase is None:
            self.append("attempt-end", result.attempt_end())
            self.next_at = time.time() + result.wait_seconds
        else:
            self.append("end", result.end())


class FakeEngine(Engine):
    """Plays runs in threads of this process; when the process ends, what it still plays is lost."""

    def __init__(self, store: Store, play: Play) -> None:
        """`play` is called in a thread for each rank; it gives the exit code (None: 0), or raises."""
        self.store = store
        self._play = play

    def plan(self, job: Job, run_id: str) -> Plan:
        """The plan of a run that is only played."""
        return plan(job, FakeTarget(), str(self.store.home), run_id)

    def submit(self, plan: Plan) -> Status:
        """Write the record and begin to play. Raises PlanError if the plan is blocked, StoreError."""
        plan.require_runnable()
        writer = self.store.create(plan.run_id, name=plan.name, target=plan.target, output_dir=plan.output_dir,
                                   plan=plan.to_text(), time=time.time(),
                                   restarts=plan.policy.get("max_restarts"))  # fmt: skip
        self._play_on(plan, writer)
        return writer.status

    def resume(self, run_id: str, plan: Plan | None = None, checkpoint: str | None = None) -> Status:
        """Play on what has ended. Raises NoSuchRun, UsageError, PlanError, StoreError."""
        if plan is not None:
            plan.require_runnable()
        self.status(run_id)
        writer = self.store.writer(run_id)
        if writer is None:
            raise UsageError(f"{run_id} has not ended: it is {self.store.status(run_id).phase}", "stop it, or wait")
        try:
            reopen(writer, self.store.run_dir(run_id), plan, checkpoint)
        except BaseException:
            writer.close()
            raise
        self._play_on(Plan.from_json(self.store.plan(run_id)), writer)
        return writer.status

    def _play_on(self, plan: Plan, writer: RunWriter) -> None:
        """Keep the run in a thread, which gives its lock back at the end."""
        keep = threading.Thread(target=self._keep, args=(plan, writer.lock), name=f"fake {plan.run_id}", daemon=True)
        keep.start()

    def status(self, run_id: str) -> Status:
        """The status, true now. Raises NoSuchRun."""
        status = self.store.status(run_id)
        writer = None if status.phase.is_terminal else self.store.writer(run_id)
        if writer is None:
            return status
        try:
            if not writer.status.phase.is_terminal:  # it may have ended while we asked for the lock
                stopped = writer.status.stop_requested or read_wish(self.store.run_dir(run_id)) is not None
                writer.append("cause", {"summary": LOST})
                writer.append("end", {"phase": Phase.STOPPED if stopped else Phase.LOST})
            return self.store.status(run_id)
        finally:
            writer.close()

    def stop(self, run_id: str, *, now: bool = False) -> None:
        """Ask the run to end. Raises NoSuchRun."""
        if not self.status(run_id).phase.is_terminal:
            write_wish(self.store.run_dir(run_id), Wish(now=now))

    def observe(self, run_id: str) -> Observations:
        """All that can be seen of a run. Raises NoSuchRun."""
        from windlass.engines.observing import observe

        return observe(self.store, self.status(run_id))

    def delete(self, run_id: str) -> None:
        """Remove an ended run. Raises UsageError while it goes on."""
        if not self.status(run_id).phase.is_terminal:
            raise UsageError(f"{run_id} has not ended", "stop it, then remove it")
        self.store.delete(run_id)

    def _keep(self, plan: Plan, lock: int) -> None:
        with Store(self.store.home) as store:  # SQLite's connections belong to their threads
            writer = store.writer(plan.run_id, lock)
            assert writer is not None
            try:
                _Keeper(writer, plan, self._play).run()
            finally:
                os.close(lock)
