"""Plans a run on SageMaker, or in its hosts on this machine, from its job and the facts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.sagemaker import instances, layout
from windlass.engines.sagemaker.facts import Facts
from windlass.engines.sagemaker.request import MAX_RUNTIME, Shape, checkpoint_folder, is_channel, training_job
from windlass.plan import arguments
from windlass.plan.launch import torchrun
from windlass.plan.plan import Note, Plan, Step
from windlass.plan.policy import policy
from windlass.plan.price import price
from windlass.plan.remote import Folders, remote_nodes
from windlass.plan.steps import node_steps
from windlass.plan.template import NodeTemplate
from windlass.spec.targets import SageMakerTarget

if TYPE_CHECKING:
    from windlass.spec.job import Job
    from windlass.spec.parts import Data
    from windlass.spec.targets import SageMakerLocalTarget
    from windlass.worker.protocol import LauncherSpec

    Target = SageMakerTarget | SageMakerLocalTarget

LOCAL_ROLE: Final = "arn:aws:iam::000000000000:role/this-machine"
LOCAL_IMAGE: Final = "windlass/this-machine"
PYTHON: Final = "python3"
STOP_SECONDS: Final = 120
"""From SIGTERM to SIGKILL, which no request can change."""
MAX_CHANNELS: Final = 18
"""Data sets beside our own two channels."""
FOLDERS: Final = Folders(layout.CODE, layout.TRAVEL)
_FOLDERS: Final = {"WINDLASS_CHECKPOINT_DIR": "", "WINDLASS_OUTPUT_DIR": ""}


def plan(job: Job, target: Target, facts: Facts, run_id: str) -> Plan:
    """The plan of one run. Problems are in its notes."""
    shape = _shape(job, target, facts, run_id)
    procs = _procs(job, shape.instance)
    body = training_job(shape, job)
    nodes = _nodes(shape, job, target, facts, procs)
    output_dir = f"{facts.home}/runs/{run_id}/output"
    per_hour = target.prices.get(shape.instance) if isinstance(target, SageMakerTarget) else None
    currency = target.currency if isinstance(target, SageMakerTarget) else "USD"
    kept = {**policy(job), "min_nodes": job.nodes.max}  # a training job ends with the first host that is lost
    return Plan(
        run_id=run_id,
        name=job.name,
        target=target.name,
        engine=target.kind,
        output_dir=output_dir,
        num_nodes=job.nodes.max,
        procs_per_node=procs,
        policy=kept,
        job=job.model_dump(mode="json", exclude_defaults=True),
        steps=(
            _service(target, facts),
            _code(shape, facts),
            Step("training-job", _summary(body), body),
            Step("model", f"bring the model to {output_dir} after the last attempt",
                 {"source": body["OutputDataConfig"]["S3OutputPath"], "path": output_dir}),
            *node_steps(nodes, job),
        ),
        notes=(
            *_refusals(job, target, facts, shape),
            *_warnings(job, target),
            *arguments.left_over(arguments.words_with_names(job), nodes.common),
        ),
        price=price(per_hour, currency, job.nodes.max, f"target {target.name}"),
        nodes=nodes,
    )  # fmt: skip


def _shape(job: Job, target: Target, facts: Facts, run_id: str) -> Shape:
    digest = facts.code.digest if facts.code is not None else "0" * 64
    instance = job.resources.instance or target.instance or ""
    if not isinstance(target, SageMakerTarget):
        storage = target.storage or f"file://{facts.home}/sagemaker-storage"
        return Shape(
            run_id=run_id, role=LOCAL_ROLE, storage=storage.rstrip("/"), image=LOCAL_IMAGE, instance=instance,
            code_digest=digest, python=facts.python, user=facts.user, network_isolation=target.network_isolation,
        )  # fmt: skip
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


def _service(target: Target, facts: Facts) -> Step:
    if isinstance(target, SageMakerTarget):
        return Step("service", f"use SageMaker in {target.region}", {"kind": target.kind, "region": target.region})
    summary = "make the hosts of SageMaker on this machine, by processes"
    path = str(PurePosixPath(facts.python).parent)
    return Step("service", summary, {"kind": target.kind, "home": facts.home, "path": path})


def _code(shape: Shape, facts: Facts) -> Step:
    code = facts.code
    address = layout.code_folder(shape.storage, shape.code_digest)
    size = f"{len(code.data) / 1e6:.2f} MB of {len(code.files)} files" if code is not None else "no code"
    request: dict[str, Any] = {"folder": facts.code_dir, "digest": shape.code_digest, "address": address}
    if code is not None:
        request |= {
            "bytes": len(code.data),
            "unpacked_bytes": code.num_bytes,
            "files": [{"name": name, "bytes": size} for name, size in code.files],
            "left_out": [
                {"source": rule.source, "pattern": rule.pattern, "entries": rule.num_entries} for rule in code.left_out
            ],
            "added": {"files": code.num_added, "bytes": code.added_bytes},
        }
    return Step("code", f"send the code, {size}, to {address}", request)


def _summary(body: Any) -> str:
    resources = body["ResourceConfig"]
    spot = ", spot" if body["EnableManagedSpotTraining"] else ""
    kind = resources["InstanceType"] or "no instance type"
    return f"create training job {body['TrainingJobName']}: {resources['InstanceCount']} × {kind}{spot}"


def _nodes(shape: Shape, job: Job, target: Target, facts: Facts, procs: int) -> NodeTemplate:
    """What all attempts have in common."""
    is_here = not isinstance(target, SageMakerTarget)
    nodes = remote_nodes(
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
        imports=facts.script_imports,
        grace_seconds=min(job.grace, STOP_SECONDS),
        threads=facts.num_cpus // (procs * job.nodes.max) if is_here else None,  # its hosts share this machine's cores
    )
    return nodes.replace(launchers=_launchers(shape, job, procs))


def _launchers(shape: Shape, job: Job, procs: int) -> tuple[LauncherSpec, ...]:
    if job.nodes.max == 1 or job.launcher != "torchrun":
        return ()
    return (
        torchrun(
            python=shape.python, proxy=FOLDERS.proxy(shape.python), run_id=shape.run_id, procs_per_node=procs,
            grace_seconds=min(job.grace, STOP_SECONDS),
        ),
    )  # fmt: skip


def _data_path(data: Data, facts: Facts) -> str:
    """Where the ranks read it, or the address of its source."""
    if is_channel(data):
        return layout.data_channel(data.name)
    return data.source if data.is_remote else str(PurePosixPath(facts.code_dir) / data.source)


# -- notes ------------------------------------------------------------------------------------------------------------


def _refusals(job: Job, target: Target, facts: Facts, shape: Shape) -> Iterator[Note]:
    """What SageMaker, or this version, cannot do for the job."""
    is_local = not isinstance(target, SageMakerTarget)
    if not facts.code_dir_found:
        yield _blocker("code-missing", f"the folder {facts.code_dir} is not there", "set code: to the script's folder")
    elif not facts.script_found:
        yield _blocker("script-missing", f"{job.script_argv[0]} is not in {facts.code_dir}", "check run: and code:")
    if facts.code_problem is not None:
        yield _blocker("code-unpacked", *facts.code_problem)
    if facts.role_problem is not None:
        words, fix = facts.role_problem
        yield _blocker("role-unknown", f"the ARN of the target's role is not known: {words}",
                       f"{fix}; or give its ARN in target {target.name}")  # fmt: skip
    if not shape.image:
        yield _blocker("image-missing", "no image is named", f"set image:, in the job or in target {target.name}")
    if not shape.instance:
        yield _blocker("instance-missing", "no instance type is named",
                       f"set resources: {{instance: …}} in the job, or instance: in target {target.name}")  # fmt: skip
    elif not shape.instance.startswith("ml."):
        yield _blocker("instance-unknown", f"{shape.instance} is no instance type of SageMaker",
                       f"its types begin with ml.: ml.{shape.instance}")  # fmt: skip
    if not is_local and "/" in (job.python or "") and not (job.python or "").startswith("/"):
        yield _blocker("python-relative", f"python: {job.python} is a path on this machine",
                       "give the interpreter's path in the image, or leave it out")  # fmt: skip
    if job.launcher == "mpi":
        yield _blocker("mpi", "launcher: mpi is not in this version on SageMaker", "use a target of kind kubernetes")
    if job.secrets and shape.network_isolation:
        yield _blocker("secrets", "secrets: hosts with network_isolation do not reach Secrets Manager",
                       "set network_isolation: false, or leave them out")  # fmt: skip
    if job.volumes:
        yield _blocker("volumes", "volumes: claims exist on Kubernetes only", "use data: here")
    if job.outputs is not None:
        yield _blocker("outputs", f"outputs: {job.outputs}: SageMaker uploads the model to storage: of the target, and "
                       "the run brings it home", "leave it out; windlass data copy copies it further")  # fmt: skip
    if job.nodes.is_elastic:
        yield Note("elastic-fixed", f"{job.nodes.min}–{job.nodes.max} nodes were asked for: a training job has "
                   f"{job.nodes.max}, and ends with the first that is lost", "restarts: begin it again")  # fmt: skip
    yield from _data_refusals(job, facts, is_local=is_local)


def _data_refusals(job: Job, facts: Facts, *, is_local: bool) -> Iterator[Note]:
    channels = [data for data in job.data if is_channel(data)]
    if len(channels) > MAX_CHANNELS:
        yield _blocker("data-many", f"the job has {len(channels)} data sets, and a training job has channels for "
                       f"{MAX_CHANNELS}", "name one address that has several of them below it")  # fmt: skip
    for data in job.data:
        if not data.is_remote and not is_local:
            yield _blocker("data-remote", f"data {data.name}: {data.source} is a folder of this machine",
                           "windlass data copy FOLDER s3://BUCKET/PREFIX, and give that as source:")  # fmt: skip
        elif is_channel(data) and data.scheme != "s3" and not (is_local and data.scheme == "file"):
            yield _blocker("data-unknown", f"data {data.name}: SageMaker does not read {data.scheme}://",
                           "copy it to s3://BUCKET/PREFIX: windlass data copy")  # fmt: skip
        if is_channel(data) and data.name in (layout.OWN, layout.CODE_CHANNEL):
            yield _blocker("data-name", f"data {data.name}: the channel of this name is Windlass's own", "rename it")


def _warnings(job: Job, target: Target) -> Iterator[Note]:
    if job.grace > STOP_SECONDS:
        yield Note("grace", f"grace: SageMaker ends containers {STOP_SECONDS} s after SIGTERM, and the job asks for "
                   f"{job.grace:g} s", "save checkpoints more often")  # fmt: skip
    if job.timeout is None and isinstance(target, SageMakerTarget):
        yield Note("timeout-none", f"no timeout is set: SageMaker ends the job after {MAX_RUNTIME // 86400} days",
                   "set timeout:")  # fmt: skip
    if job.restarts.max and isinstance(target, SageMakerTarget):
        yield Note("restarts-here", "restarts are made by the supervisor on this machine, and wait while it is off",
                   "leave it on")  # fmt: skip
    if job.secrets:
        names = ", ".join(job.secrets)
        yield Note("secrets-role", f"each host reads {names} from Secrets Manager, as the target's role",
                   "the role needs secretsmanager:GetSecretValue on each")  # fmt: skip
    for name in ("queue", "priority"):
        if getattr(job, name) is not None:
            yield Note(f"{name}-unused", f"{name}: has no meaning on SageMaker", "it is kept for other targets")


def _blocker(code: str, message: str, fix: str) -> Note:
    return Note(code, message, fix, blocks=True)
