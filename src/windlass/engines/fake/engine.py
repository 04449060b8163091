"""Fake engine: plans runs of threads, and supervises them in a thread of the calling process."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from windlass.engines.fake.backend import FakeBackend, ThreadClock
from windlass.engines.fake.rank import Play
from windlass.engines.supervised import SupervisedEngine
from windlass.plan.arguments import differ_by_rank, fill_in, folders_in, resume_spec
from windlass.plan.compose import NodeTemplate
from windlass.plan.environment import contract
from windlass.plan.plan import Plan, Policy
from windlass.plan.steps import FolderStep, node_steps
from windlass.runs import crash
from windlass.runs.phase import Phase
from windlass.runs.restart_policy import Outcome
from windlass.runs.store import RunWriter, Store
from windlass.supervise.process import notify_end
from windlass.supervise.supervisor import Supervisor

if TYPE_CHECKING:
    from windlass.runs.context import Context
    from windlass.spec.job import Job


@dataclass(frozen=True, slots=True)
class FakeTarget:
    """The target of fake runs."""

    name: str = "fake"
    gpus_per_node: int = 0
    """Number of GPUs for `procs_per_node: auto`."""
    env: Mapping[str, str] = field(default_factory=dict)


def plan(job: Job, target: FakeTarget, home: str, run_id: str) -> Plan:
    """Returns the plan of a fake run. `home` is the folder of the records. Pure."""
    procs = max(1, target.gpus_per_node) if job.procs_per_node == "auto" else job.procs_per_node
    run_dir = f"{home}/runs/{run_id}"
    output_dir, checkpoints = f"{run_dir}/output", f"{run_dir}/checkpoints"
    promised = contract(
        run_id=run_id,
        launcher=job.launcher,
        max_restarts=job.restarts.max,
        output_dir=output_dir,
        checkpoint_dir=checkpoints,
        data={data.name: data.source for data in job.data},
        checkpoint_every=job.checkpoint.every,
        checkpoint_keep=job.checkpoint.keep,
    )
    argv = job.script_argv if job.command is not None else fill_in(job.script_argv, folders_in(promised))
    nodes = NodeTemplate(
        run_id=run_id, num_nodes=job.nodes.max, procs_per_node=procs, script=job.script_argv[0], worker_python="",
        cwd="", argv=tuple(argv), argv_by_rank=differ_by_rank(job), contract=promised, defaults={},
        target_env=target.env, job_env=job.env, grace_seconds=job.grace, progress=job.progress,
        resume=resume_spec(job, promised, home), launcher=job.launcher,
    )  # fmt: skip
    return Plan(
        run_id=run_id,
        name=job.name,
        target=target.name,
        engine="fake",
        output_dir=output_dir,
        num_nodes=job.nodes.max,
        procs_per_node=procs,
        job=job.model_dump(mode="json", exclude_defaults=True),
        policy=Policy.of_job(job),
        steps=(FolderStep(f"make {output_dir}", output_dir, checkpoints), *node_steps(nodes, job)),
        nodes=nodes,
    )


class FakeEngine(SupervisedEngine):
    """Runs whose ranks are threads of this process; runs that have not ended are lost with the process."""

    kind: ClassVar[str] = "fake"

    @classmethod
    def connect(cls, store: Store, target: Any = None, context: Context | None = None) -> FakeEngine:
        """Returns an engine for reading runs only: a run can continue only in the process that has its function."""
        return cls(store, lambda rank: None)

    def __init__(self, store: Store, play: Play) -> None:
        """`play` is called in a thread for each rank; it returns the exit code (None: 0) or raises."""
        super().__init__(store)
        self._play = play
        self._clocks: dict[str, ThreadClock] = {}
        """Clocks of the supervisors in this process, by run id."""

    def plan(self, job: Job, run_id: str) -> Plan:
        """Returns the plan of a run."""
        return plan(job, FakeTarget(), str(self.store.home), run_id)

    def _backend(self, plan: Plan, run_dir: Path) -> FakeBackend:
        return FakeBackend(plan, self._play)

    def _start_supervisor(self, writer: RunWriter) -> None:
        """Starts the supervisor as a thread, which inherits the run's lock as a process would."""
        run_id, clock = writer.status.id, ThreadClock()
        self._clocks[run_id] = clock
        args = (run_id, os.dup(writer.lock), clock)
        threading.Thread(target=self._supervise, args=args, name=f"supervisor of {run_id}", daemon=True).start()

    def _supervise(self, run_id: str, lock: int, clock: ThreadClock) -> None:
        with Store(self.store.home) as store:  # SQLite connections belong to their thread
            writer = store.writer(run_id, lock)
            assert writer is not None
            try:
                plan, run_dir = store.plan(run_id), store.run_dir(run_id)
                Supervisor(writer, plan, run_dir, self._backend(plan, run_dir), clock).run()
            finally:
                writer.close()
            notify_end(store, plan)

    def _is_supervised(self, run_id: str) -> bool:
        return True  # the supervisor is a thread of this process, so there is no pid file to check

    def _wake_supervisor(self, run_id: str) -> bool:
        clock = self._clocks.get(run_id)
        if clock is not None:
            clock.wake()
        return clock is not None

    def _follow_up(self, writer: RunWriter, supervisor: Supervisor) -> None:
        """Ends the run as lost: only its process, which has ended, had the function that ranks call."""
        cause = crash.cause_of_loss(supervisor.run_dir)
        supervisor.end_run(Outcome(Phase.LOST, cause=cause, reason="node-loss"))
