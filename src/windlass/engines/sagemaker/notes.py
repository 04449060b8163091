"""Notes of a plan: settings that SageMaker or this version does not support, and warnings before the run. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from windlass.engines.sagemaker import instances, layout
from windlass.engines.sagemaker.facts import Facts
from windlass.engines.sagemaker.request import MAX_RUNTIME, Shape, checkpoint_folder, is_channel
from windlass.plan.notes import Note, blocker, image_notes
from windlass.pricing.instances import instance_type
from windlass.spec.targets import SageMakerTarget

if TYPE_CHECKING:
    from windlass.spec.job import Job
    from windlass.spec.targets import SageMakerLocalTarget

    Target = SageMakerTarget | SageMakerLocalTarget

STOP_SECONDS: Final = 120
"""Seconds between SIGTERM and SIGKILL in SageMaker; a request cannot change them."""
MAX_CHANNELS: Final = 18
"""Maximum number of data sets; Windlass uses two more channels."""
MAX_LOCAL_HOSTS: Final = 100
"""Maximum number of hosts of one job on this machine."""
MAX_WARM_SECONDS: Final = 21_600
"""Maximum seconds for which SageMaker keeps instances for the next job."""
MAX_VALUE: Final = 512
"""Maximum characters of an environment variable of a training job."""


def refusals(job: Job, target: Target, facts: Facts, shape: Shape) -> Iterator[Note]:
    """Yields a blocker for each setting of the job that SageMaker or this version does not support."""
    is_local = not isinstance(target, SageMakerTarget)
    yield from facts.code.notes(job.script_argv[0])
    if facts.role_problem is not None:
        words, fix = facts.role_problem
        yield blocker(
            "role-unknown",
            f"the ARN of the target's role is unknown: {words}",
            f"{fix}; or give its ARN in target {target.name}",
        )
    if not shape.image:
        yield blocker("image-missing", "no image is named", f"set image:, in the job or in target {target.name}")
    if not shape.instance:
        yield blocker(
            "instance-missing",
            "no instance type is named",
            f"set resources: {{instance: …}} in the job, or instance: in target {target.name}",
        )
    elif not shape.instance.startswith("ml."):
        yield blocker(
            "instance-unknown",
            f"{shape.instance} is no instance type of SageMaker",
            f"its types begin with ml.: ml.{shape.instance}",
        )
    elif (
        not is_local
        and job.procs_per_node == "auto"
        and not job.resources.gpus
        and (instances.num_gpus(shape.instance) is None)
    ):
        yield blocker(
            "gpus-unknown",
            f"procs_per_node: auto: how many GPUs {shape.instance} has is unknown",
            "set procs_per_node: N, or resources: {gpus: N}",
        )
    if is_local:
        yield from _local_refusals(job, shape, facts)
    else:
        yield from _resource_refusals(job, shape)
    yield from _limit_refusals(job)
    if not is_local and "/" in (job.python or "") and not (job.python or "").startswith("/"):
        yield blocker(
            "python-relative",
            f"python: {job.python} is a path on this machine",
            "give the interpreter's path in the image, or leave it out",
        )
    if job.launcher == "mpi":
        yield blocker("mpi", "launcher: mpi is not supported on SageMaker", "use a target of kind kubernetes")
    if shape.network_isolation:
        yield from _isolation_refusals(job, shape)
    if job.volumes:
        yield blocker("volumes", "volumes: exist on Kubernetes only", "use data: here")
    if job.outputs.to is not None:
        yield blocker(
            "outputs",
            f"outputs: {job.outputs.to}: SageMaker uploads the model to storage: of the target, and the run fetches it",
            "leave it out; windlass data copy copies it further",
        )
    if job.nodes.is_elastic:
        yield Note(
            "elastic-fixed",
            f"{job.nodes.min}–{job.nodes.max} nodes were requested: a training job has "
            f"{job.nodes.max}, and ends with the first that is lost",
            "set restarts: for another",
        )
    yield from _data_refusals(job, facts, is_local=is_local)


def _local_refusals(job: Job, shape: Shape, facts: Facts) -> Iterator[Note]:
    if not facts.python_found:
        yield blocker(
            "python-missing", f"no interpreter at {facts.python}", "set python: to one that has your packages"
        )
    for name, problem in facts.bad_data.items():
        yield blocker("data-missing", f"data {name}: {problem}", "check source:")
    if job.nodes.max > MAX_LOCAL_HOSTS:
        yield blocker(
            "nodes-many",
            f"nodes: {job.nodes.max}: this machine starts at most {MAX_LOCAL_HOSTS} hosts",
            "use fewer nodes to try the job",
        )
    if not shape.storage.startswith(("s3://", "file:///")):
        yield blocker(
            "storage-unknown",
            f"storage: of the target is {shape.storage}, which is no address in S3 and no folder",
            "write s3://BUCKET/PREFIX or file:///FOLDER, or leave it out",
        )


def _resource_refusals(job: Job, shape: Shape) -> Iterator[Note]:
    """Yields a blocker for each resource that the job requests and its instance type lacks; none for an unknown
    type.
    """
    found, asked = instance_type(shape.instance), job.resources
    if found is None:
        return
    fix = "name another type in resources: {instance: …} or in the target, or request less"
    for code, words, wanted, there in (
        ("gpus-few", "GPUs", asked.gpus, found.gpus),
        ("cpus-few", "CPUs", asked.cpus or 0, found.vcpus),
        ("memory-little", "GiB of memory", (asked.memory or 0) / (1 << 30), found.memory_mib / 1024),
    ):
        if wanted > there:
            message = f"{wanted:g} {words} are requested, and {shape.instance} has {there:g}"
            yield blocker(code, message, fix)
    if asked.gpu_type is not None and found.gpus and not _words(asked.gpu_type) & _words(found.gpu_model):
        message = f"a GPU of type {asked.gpu_type} is requested, and {shape.instance} has {found.gpu_model}"
        yield blocker("gpu-type-other", message, fix)


def _words(gpu_type: str) -> set[str]:
    return set(re.split(r"[-_ ]", gpu_type.lower()))


def _limit_refusals(job: Job) -> Iterator[Note]:
    """Yields a blocker for each limit at which SageMaker would refuse the training job."""
    options, limit = job.sagemaker, MAX_RUNTIME if job.timeout is None else job.timeout
    if options.max_wait is not None and options.max_wait < limit:
        yield blocker(
            "max-wait-short",
            f"max_wait: {options.max_wait:g} s is less than the {limit:g} s that the job may run",
            "set timeout: to max_wait: or less, or max_wait: to more",
        )
    if (options.warm_pool or 0) > MAX_WARM_SECONDS:
        yield blocker(
            "warm-pool-long",
            f"warm_pool: SageMaker keeps instances for {MAX_WARM_SECONDS} s at most",
            "set warm_pool: 6h or less",
        )
    if len(",".join(job.secrets)) > MAX_VALUE:
        yield blocker(
            "secrets-many",
            f"secrets: their names have more than {MAX_VALUE} letters together",
            "keep several values in one secret",
        )


def _isolation_refusals(job: Job, shape: Shape) -> Iterator[Note]:
    """Yields notes for network access that isolated containers do not have.

    SageMaker transfers channels, checkpoints and models itself, so these work with network isolation.
    """
    fix = "set network_isolation: false, or leave {} out"
    if job.secrets:
        yield blocker(
            "secrets", "secrets: hosts with network_isolation do not reach Secrets Manager", fix.format("them")
        )
    for data in job.data:
        if data.is_streamed and data.scheme not in ("", "file"):
            message = (
                f"data {data.name}: hosts with network_isolation do not reach {data.source}, which via: stream reads"
            )
            yield blocker("data-isolated", message, "set via: copy, or network_isolation: false")
    folder = checkpoint_folder(shape.storage, shape.run_id, job)
    if "://" not in folder:
        return
    message = f"checkpoint: hosts with network_isolation do not reach {folder}"
    if job.checkpoint.every is not None or job.checkpoint.folder is not None:
        yield blocker("checkpoint-isolated", message, f"{fix.format('checkpoint:')}, or use one node")
    else:
        yield Note("checkpoint-isolated", f"{message}, where several nodes save theirs", "use one node, or save none")


def _data_refusals(job: Job, facts: Facts, *, is_local: bool) -> Iterator[Note]:
    channels = [data for data in job.data if is_channel(data)]
    if len(channels) > MAX_CHANNELS:
        yield blocker(
            "data-many",
            f"the job has {len(channels)} data sets, and a training job has channels for {MAX_CHANNELS}",
            "name one address that has several of them below it",
        )
    for data in job.data:
        if not data.is_remote and not is_local:
            yield blocker(
                "data-remote",
                f"data {data.name}: {data.source} is a folder of this machine",
                "windlass data copy FOLDER s3://BUCKET/PREFIX, and give that as source:",
            )
        elif is_channel(data) and data.scheme != "s3" and not (is_local and data.source.startswith("file:///")):
            yield blocker(
                "data-unknown",
                f"data {data.name}: SageMaker does not read {data.source}",
                "copy it to s3://BUCKET/PREFIX: windlass data copy",
            )
        if is_channel(data) and data.name in (layout.OWN, layout.CODE_CHANNEL):
            yield blocker("data-name", f"data {data.name}: the channel of this name is Windlass's own", "rename it")


def warnings(job: Job, target: Target) -> Iterator[Note]:
    """Yields warnings about settings that have no effect or another effect than expected, and about costs."""
    yield from image_notes(job)
    kind = job.resources.instance or (target.instance if isinstance(target, SageMakerTarget) else None) or ""
    if isinstance(target, SageMakerTarget) and (hint := instances.misspelt(kind)):
        yield Note("instance-unknown", f"{kind} is an unknown instance type", hint)
    yield from _shared_gpus(job, kind)
    if job.grace > STOP_SECONDS:
        yield Note(
            "grace",
            f"grace: SageMaker ends containers {STOP_SECONDS} s after SIGTERM, and the job asks for {job.grace:g} s",
            "save checkpoints more often",
        )
    if job.timeout is None and isinstance(target, SageMakerTarget):
        yield Note(
            "timeout-none",
            f"no timeout is set: SageMaker ends the job after {MAX_RUNTIME // 86400} days",
            "set timeout:",
        )
    if job.restarts.max and isinstance(target, SageMakerTarget):
        yield Note(
            "restarts-here",
            "restarts are made by the supervisor on this machine, and wait while the machine is off",
            "leave it on",
        )
    for data in job.data:
        if is_channel(data) and not data.source.endswith("/") and isinstance(target, SageMakerTarget):
            message = f"data {data.name}: SageMaker brings every object whose address begins with {data.source}"
            yield Note("data-prefix", f"{message}, also those of {data.source}-old/", "end source: with / for a folder")
    if job.secrets:
        names = ", ".join(job.secrets)
        who = "the target's role" if isinstance(target, SageMakerTarget) else "the login of this shell"
        yield Note(
            "secrets-role",
            f"each host reads {names} from Secrets Manager, as {who}",
            f"{who} needs secretsmanager:GetSecretValue on each",
        )
    if job.resources.shm is not None:
        yield Note("shm-unused", "shm: SageMaker cannot set the size of /dev/shm", "it is kept for other targets")
    if job.image is not None and not isinstance(target, SageMakerTarget):
        yield Note(
            "image-unused",
            "image: has no meaning on this machine: ranks run under the interpreter of this machine",
            "it is kept for other targets",
        )
    if job.sagemaker.warm_pool is not None and isinstance(target, SageMakerTarget):
        kept = "1 instance is" if job.nodes.max == 1 else f"{job.nodes.max} instances are"
        yield Note(
            "warm-pool",
            f"warm_pool: {kept} kept for the next job, and paid for, up to "
            f"{job.sagemaker.warm_pool:g} s after this one",
            "leave it out if no job follows",
        )
    if job.hang is not None and "hang" in job.model_fields_set:
        yield _no_stacks(job, job.hang)
    for name in ("queue", "priority"):
        if getattr(job, name) is not None:
            yield Note(f"{name}-unused", f"{name}: has no meaning on SageMaker", "it is kept for other targets")
    for name, default in (("via", "auto"), ("runtime", None)):
        if getattr(job.kubernetes, name) != default:
            message = f"kubernetes.{name} has no meaning on SageMaker: no object of a cluster is made"
            yield Note(f"{name}-unused", message, "it is kept for other targets")


def _shared_gpus(job: Job, instance: str) -> Iterator[Note]:
    """Yields a warning if each node has more ranks than GPUs."""
    procs, gpus = job.procs_per_node, instances.num_gpus(instance)
    if gpus and procs != "auto" and procs > gpus:
        yield Note(
            "gpus-shared",
            f"{procs} ranks on each node, and {instance} has {gpus} GPU{'s' if gpus > 1 else ''}",
            "set procs_per_node: auto, or use gloo: NCCL does not support two ranks on one GPU",
        )


def _no_stacks(job: Job, seconds: float) -> Note:
    """Returns the note for a job with `hang`: workers do not record stacks, because SageMaker cannot signal them."""
    if job.restarts.max and "hang" in job.restarts.on:
        what, fix = "is stopped and restarted", "faulthandler.dump_traceback_later prints them from the script"
    else:
        what, fix = "continues", "set restarts: to start it again, or timeout:"
    return Note(
        "hang-stacks",
        f"hang: a job whose ranks write nothing for {seconds:g} s {what}; SageMaker has no way "
        "to ask for their stacks, and none are recorded",
        fix,
    )
