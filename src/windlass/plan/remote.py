"""Node template of runs whose code is sent to other machines: pods of a cluster, hosts of SageMaker. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windlass.code.imports import modules_to_preload, slow_modules
from windlass.plan import arguments
from windlass.plan.compose import NodeTemplate
from windlass.plan.environment import contract, known_at_start
from windlass.worker.protocol import CollectSpec

if TYPE_CHECKING:
    from windlass.spec.job import Job


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders on a remote machine with the files that were sent there."""

    code: str
    """Folder of the job, in which ranks start."""
    travel: str
    """Folder with the parts of Windlass that were sent."""

    def proxy(self, python: str) -> tuple[str, ...]:
        """Returns the command that an external launcher starts in place of each rank."""
        return python, "-I", "-S", f"{self.travel}/windlass/worker/rank_proxy.py"


def remote_nodes(
    job: Job,
    folders: Folders,
    *,
    run_id: str,
    python: str,
    num_nodes: int,
    procs_per_node: int,
    output_dir: str,
    checkpoint_dir: str,
    data: Mapping[str, str],
    target_env: Mapping[str, str],
    imports: Sequence[str],
    grace_seconds: float,
    threads: int | None,
) -> NodeTemplate:
    """Returns the node template of a run on other machines. `data` maps the names of data sets to their folders;
    `imports` are the modules that the script imports; `threads` is the number of compute threads per rank, None for the
    default of its libraries.
    """
    promised = contract(
        run_id=run_id,
        launcher=job.launcher,
        max_restarts=job.restarts.max,
        output_dir=output_dir,
        checkpoint_dir=checkpoint_dir,
        data=data,
        checkpoint_every=job.checkpoint.every,
        checkpoint_keep=job.checkpoint.keep,
    )
    defaults = _defaults(job, folders, threads)
    common = {**promised, **defaults, **target_env, **job.env}
    is_program = job.script_kind == "program"
    program = [job.script_argv[0]] if is_program else [python, f"{folders.travel}/windlass/worker/rank.py"]
    return NodeTemplate(
        run_id=run_id,
        num_nodes=num_nodes,
        procs_per_node=procs_per_node,
        script=posixpath.join(folders.code, job.script_argv[0]),
        worker_python=python,
        cwd=folders.code,
        argv=(*program, *arguments.script_arguments(job, common)),
        argv_by_rank=arguments.differ_by_rank(job),
        contract=promised,
        defaults=defaults,
        target_env=target_env,
        job_env=job.env,
        grace_seconds=grace_seconds,
        known_at_start=known_at_start(job.launcher, is_python=not is_program, taken=set(common)),
        progress=job.progress,
        setup=job.setup or "",
        warm=tuple(modules_to_preload(job, tuple(imports))),
        imports=slow_modules(tuple(imports)),
        collect=CollectSpec(job.outputs.collect),
        resume=arguments.resume_spec(job, common, folders.code),
        launcher=job.launcher,
    )


def _defaults(job: Job, folders: Folders, threads: int | None) -> dict[str, str]:
    """Returns variables that are added to the ranks' environment unless the user sets them."""
    env = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "PYTHONPATH": folders.travel}
    if threads is not None:  # more threads than cores would slow all ranks down
        env["OMP_NUM_THREADS"] = str(max(1, threads))
    if job.resources.gpus:
        env |= {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    return env
