"""Plans a run on SageMaker, or in its emulation on this machine, from the job and the facts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.sagemaker import instances, layout
from windlass.engines.sagemaker.facts import Facts
from windlass.engines.sagemaker.notes import STOP_SECONDS, refusals, warnings
from windlass.engines.sagemaker.request import Shape, checkpoint_folder, is_channel, training_job
from windlass.plan import arguments
from windlass.plan.compose import NodeTemplate
from windlass.plan.notes import Note, lone_ranks, time_limit
from windlass.plan.plan import Plan, Policy
from windlass.plan.price import price
from windlass.plan.remote import Folders, remote_nodes
from windlass.plan.steps import CodeStep, ModelStep, ServiceStep, TrainingJobStep, node_steps
from windlass.spec.targets import SageMakerTarget

if TYPE_CHECKING:
    from windlass.spec.job import Job
    from windlass.spec.sections import Data
    from windlass.spec.targets import SageMakerLocalTarget

    Target = SageMakerTarget | SageMakerLocalTarget

LOCAL_ROLE: Final = "arn:aws:iam::000000000000:role/this-machine"
LOCAL_IMAGE: Final = "windlass/this-machine"
PYTHON: Final = "python3"
FOLDERS: Final = Folders(layout.CODE, layout.TRAVEL)


def plan(job: Job, target: Target, facts: Facts, run_id: str) -> Plan:
    """Returns the plan of one run. Problems are in its notes."""
    shape = _shape(job, target, facts, run_id)
    procs = _procs(job, shape.instance)
    body = training_job(shape, job)
    nodes = _nodes(shape, job, target, facts, procs)
    output_dir = f"{facts.home}/runs/{run_id}/output"
    per_hour = target.prices.get(shape.instance) if isinstance(target, SageMakerTarget) else None
    currency = target.currency if isinstance(target, SageMakerTarget) else "USD"
    return Plan(
        run_id=run_id,
        name=job.name,
        target=target.name,
        engine=target.kind,
        output_dir=output_dir,
        num_nodes=job.nodes.max,
        procs_per_node=procs,
        policy=Policy.of_job(job).replace(min_nodes=job.nodes.max),  # SageMaker ends a training job that loses a host
        job=job.model_dump(mode="json", exclude_defaults=True),
        archive=facts.code.archive,
        steps=(
            _service(target, facts),
            _code(shape, facts),
            TrainingJobStep(_summary(body), body),
            ModelStep(
                f"copy the model to {output_dir} after the last attempt",
                body["OutputDataConfig"]["S3OutputPath"],
                output_dir,
            ),
            *node_steps(nodes, job),
        ),
        notes=(
            *refusals(job, target, facts, shape),
            *warnings(job, target),
            *_lone_ranks(shape, job, target, facts, procs),
            *time_limit(job, facts.code.saves_at_end),
            *arguments.left_over(job, nodes.common),
            *arguments.hidden_launchers(job),
        ),
        price=price(per_hour, currency, job.nodes.max, f"target {target.name}"),
        nodes=nodes,
    )


def _shape(job: Job, target: Target, facts: Facts, run_id: str) -> Shape:
    digest = facts.code.digest
    instance = job.resources.instance or target.instance or ""
    if not isinstance(target, SageMakerTarget):
        storage = target.storage or f"file://{facts.home}/sagemaker-storage"
        return Shape(
            run_id=run_id,
            role=LOCAL_ROLE,
            storage=storage.rstrip("/"),
            image=LOCAL_IMAGE,
            instance=instance,
            code_digest=digest,
            python=facts.python,
            user=facts.user,
            network_isolation=target.network_isolation,
        )
    return Shape(
        run_id=run_id, role=facts.role, storage=target.storage.rstrip("/"), image=job.image or target.image or "",
        instance=instance, code_digest=digest, python=job.python or target.python or PYTHON, user=facts.user,
        volume_bytes=target.volume, subnets=target.subnets, security_groups=target.security_groups,
        network_isolation=target.network_isolation, kms_key=target.kms_key, encrypt_traffic=target.encrypt_traffic,
        tags=target.tags,
    )  # fmt: skip


def _procs(job: Job, instance: str) -> int:
    if job.procs_per_node != "auto":
        return job.procs_per_node
    return max(1, job.resources.gpus or instances.num_gpus(instance) or 1)


# -- steps ------------------------------------------------------------------------------------------------------------


def _service(target: Target, facts: Facts) -> ServiceStep:
    if isinstance(target, SageMakerTarget):
        summary = f"use SageMaker in {target.region}"
        return ServiceStep(summary, target.kind, region=target.region, account=facts.account)
    summary = "make the hosts of SageMaker on this machine, by processes"
    path = str(PurePosixPath(facts.python).parent)
    return ServiceStep(summary, target.kind, home=facts.home, path=path, base=facts.base)


def _code(shape: Shape, facts: Facts) -> CodeStep:
    address = layout.code_folder(shape.storage, shape.code_digest)
    return facts.code.step(f"to {address}", address=address)


def _summary(body: Any) -> str:
    resources = body["ResourceConfig"]
    spot = ", spot" if body["EnableManagedSpotTraining"] else ""
    kind = resources["InstanceType"] or "no instance type"
    return f"create training job {body['TrainingJobName']}: {resources['InstanceCount']} × {kind}{spot}"


def _nodes(shape: Shape, job: Job, target: Target, facts: Facts, procs: int) -> NodeTemplate:
    """Returns the node template that all attempts share."""
    is_here = not isinstance(target, SageMakerTarget)
    return remote_nodes(
        job,
        FOLDERS,
        run_id=shape.run_id,
        python=shape.python,
        num_nodes=job.nodes.max,
        procs_per_node=procs,
        output_dir=layout.MODEL,
        checkpoint_dir=checkpoint_folder(shape.storage, shape.run_id, job),
        data={data.name: _data_path(data, facts) for data in job.data},
        target_env=target.env,
        imports=facts.code.imports,
        grace_seconds=min(job.grace, STOP_SECONDS),
        threads=facts.num_cpus // (procs * job.nodes.max) if is_here else None,  # hosts share this machine's cores
    )


def _lone_ranks(shape: Shape, job: Job, target: Target, facts: Facts, procs: int) -> Iterator[Note]:
    no_gpus = f"{shape.instance} has no GPU" if instances.num_gpus(shape.instance) == 0 else ""
    env = {*target.env, *job.env}
    yield from lone_ranks(job, job.nodes.max * procs, facts.code.imports, env, no_gpus=no_gpus)


def _data_path(data: Data, facts: Facts) -> str:
    """Returns the path at which ranks read a data set, or the address of its source if it is not staged."""
    if is_channel(data):
        return f"{layout.CHANNELS}/{data.name}"
    return facts.data_paths.get(data.name, data.source)
