"""An engine in a package of its own: each node of a run is a process on this machine."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any, ClassVar, Literal

import windlass.worker
from windlass.engines.supervised import SupervisedEngine
from windlass.plan import arguments
from windlass.plan.compose import AttemptFacts, NodeTemplate, Rendezvous, compose
from windlass.plan.environment import consecutive_ports, contract
from windlass.plan.notes import Note
from windlass.plan.plan import Plan, Policy
from windlass.plan.steps import FolderStep, node_steps
from windlass.runs.clock import Clock
from windlass.runs.context import Context
from windlass.spec.job import Job
from windlass.spec.names import Name
from windlass.spec.sections import Document
from windlass.supervise.backend import Attempt, Backend, Intent, Node
from windlass.supervise.process import main
from windlass.supervise.recorder import Recorder
from windlass.worker import process
from windlass.worker.protocol import CollectSpec, NodeSpec
from windlass.worker.resume import add_resume_arguments

WORKER = Path(windlass.worker.__file__).parent


class ToyTarget(Document):
    """A target in targets.yaml: `toybox: {kind: toy}`."""

    kind: Literal["toy"] = "toy"
    name: Name


class ToyEngine(SupervisedEngine):
    """The methods that Windlass requires: the plan, the supervisor's command and the backend."""

    kind: ClassVar[str] = "toy"
    target_model: ClassVar[Any] = ToyTarget
    _supervisor = (__file__,)

    @classmethod
    def make_plan(cls, job: Job, target: ToyTarget, run_id: str, base: Path, context: Context) -> Plan:
        run_dir, code_dir, python = f"{context.home}/runs/{run_id}", str(base / job.code), job.python or sys.executable
        procs = 1 if job.procs_per_node == "auto" else job.procs_per_node
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
        program = [job.script_argv[0]] if job.script_kind == "program" else [python, str(WORKER / "rank.py")]
        nodes = NodeTemplate(
            run_id=run_id, num_nodes=job.nodes.max, procs_per_node=procs, cwd=code_dir,
            script=f"{code_dir}/{job.script_argv[0]}", worker_python=python,
            argv=(*program, *arguments.script_arguments(job, promised)), argv_by_rank=arguments.differ_by_rank(job),
            contract=promised, defaults={"OMP_NUM_THREADS": "1"}, target_env={}, job_env=job.env,
            grace_seconds=job.grace, progress=job.progress, resume=arguments.resume_spec(job, promised, code_dir),
            launcher=job.launcher, setup=job.setup or "", collect=CollectSpec(job.outputs.collect),
        )  # fmt: skip
        return Plan(
            run_id=run_id, name=job.name, target=target.name, engine=cls.kind, output_dir=output_dir,
            num_nodes=nodes.num_nodes, procs_per_node=nodes.procs_per_node, nodes=nodes,
            job=job.model_dump(mode="json", exclude_defaults=True),
            policy=Policy.of_job(job),
            notes=() if job.script_kind != "script" or Path(code_dir, job.script_argv[0]).is_file() else
            (Note("script-missing", f"{job.script_argv[0]} is not in {code_dir}", "check run and code", blocks=True),),
            steps=(FolderStep(f"make {output_dir}", output_dir, checkpoints), *node_steps(nodes, job)),
        )  # fmt: skip

    def _backend(self, plan: Plan, run_dir: Path) -> ToyBackend:
        return ToyBackend(plan, run_dir)


class ToyBackend(Backend):
    """Starts the nodes of each attempt; the supervisor does everything else."""

    def __init__(self, plan: Plan, _run_dir: Path) -> None:
        self._plan = plan

    def start(self, record: Recorder, folder: Path, number: int, members: Sequence[int], clock: Clock) -> Attempt:
        folders = self._plan.only(FolderStep)
        for path in (folder, Path(folders.path), Path(folders.checkpoints)):
            path.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
        asked = record.history.continuation(record.status)
        nodes = self._plan.nodes
        of_ranks = consecutive_ports(nodes.launcher, 1, len(members) * nodes.procs_per_node, number)
        meet = Rendezvous("127.0.0.1", port, ("127.0.0.1",) * len(members), of_ranks)
        facts = AttemptFacts(number, str(folder), meet, record.status.times.created_at, continuation=asked)
        try:
            specs = add_resume_arguments(compose(self._plan.nodes, members, facts))
        except ValueError as error:
            raise OSError(str(error)) from error
        attempt = self._attempt(folder, specs)
        for node, spec in zip(attempt.nodes, specs, strict=True):
            assert isinstance(node, ToyNode)
            node.start(spec, clock.fileno())
        return attempt

    def adopt(self, folder: Path, number: int, members: Sequence[int], clock: Clock) -> Attempt:
        return self._attempt(folder, compose(self._plan.nodes, members))

    def _attempt(self, folder: Path, specs: Sequence[NodeSpec]) -> Attempt:
        return Attempt(folder, [ToyNode(spec.node, tuple(rank.rank for rank in spec.ranks), folder) for spec in specs])


class ToyNode(Node):
    """One worker, which starts and watches the ranks of a node."""

    exit_code = -signal.SIGKILL
    popen: Popen[bytes] | None = None

    def start(self, spec: NodeSpec, wake: int) -> None:
        spec.write()
        command = [spec.worker_python, "-I", "-S", str(WORKER / "run.py"), str(self.path("json")), str(wake)]
        with open(self.path("out"), "ab") as out:
            self.popen = Popen(command, stdin=DEVNULL, stdout=out, stderr=out, pass_fds=[wake], start_new_session=True)
        found = process.stat(self.popen.pid)
        self.pid, self.start_ticks, self.boot = self.popen.pid, found.start_ticks if found else 0, process.boot_id()

    def lives(self) -> bool:
        if self.popen is not None:
            return self.popen.poll() is None
        return self.pid is not None and process.is_same(self.pid, self.start_ticks, self.boot)

    def send(self, intent: Intent) -> None:
        if self.pid is not None and self.lives():
            process.send(self.pid, intent.value)

    def sweep(self) -> None:
        if self.pid is not None:
            process.kill_session(self.pid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], ToyBackend))
