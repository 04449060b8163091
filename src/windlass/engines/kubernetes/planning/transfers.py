"""Plans the transfers of a run's files: steps, and notes on what the cluster cannot do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.objects import layout, transfer_manifests
from windlass.engines.kubernetes.objects.helper_manifests import read_job
from windlass.engines.kubernetes.objects.pod_template import Shape
from windlass.engines.kubernetes.objects.transfer_manifests import REACHED, READ, needs_obstore
from windlass.plan.notes import Note, blocker, image_notes
from windlass.plan.steps import (
    CheckJobStep,
    CollectStep,
    DataClaimStep,
    ReadJobStep,
    StageJobStep,
    StageStep,
    Step,
    TransferStep,
    UploadJobStep,
    UploadStep,
)
from windlass.stores.gs_az import INSTALL

if TYPE_CHECKING:
    from windlass.engines.kubernetes.planning.facts import Cluster
    from windlass.spec.job import Job
    from windlass.spec.sections import Data, DataClaim
    from windlass.spec.targets import KubernetesTarget

MAX_SETS: Final = 12
"""Maximum number of staged data sets: the report on them must fit into the 4 KiB of a pod's termination message."""
OUTPUTS_MAX: Final = 1 << 30
"""Default limit of collected outputs, in bytes."""
KEEPS_PODS: Final = ("job", "jobset")
"""Workload kinds whose pods can wait until their outputs are collected. The operators of other kinds end pods by
themselves."""
NEEDS_CLAIM: Final = "write kubernetes: {data: {size: 200GiB}}, or the same as data: of the target"


@dataclass(frozen=True, slots=True)
class Transfers:
    """Transfers of a run's files, and the paths at which its ranks find their data."""

    before: tuple[Step, ...]
    """Steps before the first attempt, which stage data sets."""
    after: tuple[Step, ...]
    """Steps after the last attempt: outputs are uploaded from the results claim, or collected by the supervisor."""
    data_paths: Mapping[str, str]
    """Path of each data set in the pods, or the source's address for sets that are neither staged nor mounted."""


def wanted_claim(job: Job, target: KubernetesTarget) -> DataClaim | None:
    """Returns the claim in which the data sets of a job are staged; None if none are staged, or no claim is named."""
    return (job.kubernetes.data or target.data) if _staged(job) else None


def outputs_max(job: Job, via: str) -> int:
    """Returns the limit in bytes of outputs that are collected from the pods; 0 if none are collected."""
    if job.kubernetes.results is not None or via not in KEEPS_PODS:
        return 0
    return OUTPUTS_MAX if job.kubernetes.outputs_max is None else job.kubernetes.outputs_max


def _staged(job: Job) -> list[Data]:
    return [data for data in job.data if data.is_staged]


def plan_transfers(shape: Shape, job: Job, target: KubernetesTarget, cluster: Cluster | None) -> Transfers:
    """Plans the transfers of a run whose pods have this shape."""
    return Transfers(
        before=tuple(_staging_steps(shape, job, target, cluster)),
        after=(*_upload_steps(shape, job), *_collect_steps(shape, job)),
        data_paths={data.name: _data_path(shape, data) for data in job.data},
    )


def _data_path(shape: Shape, data: Data) -> str:
    if data.is_staged:
        return layout.data_path(shape.namespace, shape.run_id, data.name)
    return next((one.path for one in shape.mounts if one.name == data.name), data.source)


def _staging_steps(shape: Shape, job: Job, target: KubernetesTarget, cluster: Cluster | None) -> Iterator[Step]:
    """Yields steps for the claim, the transfer program, and the Job that stages data sets before the first attempt."""
    claim = wanted_claim(job, target)
    is_there = claim is not None and cluster is not None and cluster.has_claim(claim.claim)
    if claim is not None and claim.size is not None and not is_there:
        yield DataClaimStep(
            f"make PersistentVolumeClaim {claim.claim}, which no run removes",
            transfer_manifests.claim_of_data(shape.namespace, claim),
        )
    if claim is not None or shape.code_source or _destination(shape, job):
        made = transfer_manifests.contents(shape, job)
        yield TransferStep(f"make ConfigMap {made['metadata']['name']}, the program that moves files", made)
    if claim is None:
        return
    sets = [
        StageStep(
            f"stage {data.source} as ${data.env_name} in claim {claim.claim}",
            name=data.name,
            source=data.source,
            link=_data_path(shape, data),
        )
        for data in _staged(job)
    ]
    yield from sets
    made = transfer_manifests.stage_job(
        shape, job, [{"name": one.name, "source": one.source, "link": one.link} for one in sets]
    )
    yield StageJobStep(f"make Job {made['metadata']['name']}, which stages them before the first attempt", made)


def _upload_steps(shape: Shape, job: Job) -> Iterator[Step]:
    results = job.kubernetes.results
    if results is None:
        return
    made = read_job(shape, job, results.claim or shape.run_id)
    yield ReadJobStep(f"make Job {made['metadata']['name']} while cp reads files of the claim after the run", made)
    if not (to := _destination(shape, job)):
        return
    yield UploadStep.of_job(job, layout.OUTPUT, to)
    made = transfer_manifests.upload_job(shape, job, results.claim or shape.run_id, to)
    yield UploadJobStep(f"make Job {made['metadata']['name']}, which uploads them", made)
    made = transfer_manifests.check_job(shape, job, to)
    yield CheckJobStep(
        f"make Job {made['metadata']['name']}, which lists that store while the ranks start: "
        "where it is refused, the run ends",
        made,
    )


def _collect_steps(shape: Shape, job: Job) -> Iterator[Step]:
    """Yields the step that copies the outputs from the pods after the last attempt."""
    # imported here, because the supervisor in the cluster has no `spec` package
    from windlass.spec.units import format_size

    if most := outputs_max(job, shape.via):
        yield CollectStep(
            f"copy outputs of up to {format_size(most)} from the pods to runs/{shape.run_id}/output after the last "
            "attempt; larger ones are deleted with the pods",
            layout.OUTPUT,
            most,
        )


def lost_notes(job: Job, via: str) -> Iterator[Note]:
    """Yields warnings about outputs and checkpoints that are deleted with the pods."""
    if job.kubernetes.results is not None:
        return
    has_checkpoints, keep = job.checkpoint.folder is None, "write kubernetes: {results: {size: 20GiB}} or {claim: NAME}"
    if not outputs_max(job, via):
        lost = "outputs and checkpoints" if has_checkpoints else "outputs"
        why = "" if via in KEEPS_PODS else f", and outputs of via: {via} are not fetched"
        yield Note("results-lost", f"{lost} are deleted with the pods: no results claim is set{why}", keep)
    elif has_checkpoints:
        yield Note("checkpoints-lost", "checkpoints are deleted with the pods: no results claim is set", keep)


def transfer_notes(job: Job, target: KubernetesTarget) -> Iterator[Note]:
    """Yields problems with data sets and outputs on this cluster."""
    for data in job.data:
        yield from _data_notes(data, job, target)
    yield from _image_notes(job, target)
    yield from image_notes(job)
    if len(_staged(job)) > MAX_SETS:
        yield blocker(
            "data-many",
            f"the job stages {len(_staged(job))} data sets, and a run can stage {MAX_SETS}",
            "name one address that has several of them below it",
        )
    if job.outputs.to is None:
        return
    if job.outputs.scheme not in REACHED:
        yield blocker(
            "outputs",
            f"outputs: {job.outputs.to} is not reached from the pods of a cluster",
            "write outputs: s3://BUCKET/PREFIX; or kubernetes: {results: {size: 20GiB}}",
        )
    elif job.kubernetes.results is None:
        yield blocker(
            "outputs-claim",
            "outputs: they are uploaded from the claim of the results, and none is set",
            "write kubernetes: {results: {size: 20GiB}} or {claim: NAME}",
        )


def _data_notes(data: Data, job: Job, target: KubernetesTarget) -> Iterator[Note]:
    if not data.is_remote:
        if not data.source.startswith("/"):
            yield blocker(
                "data-remote",
                f"data {data.name}: {data.source} is a folder of this machine",
                "windlass data copy FOLDER s3://BUCKET/PREFIX, and give that as source:; or mount a claim "
                "by volumes: and give the path there",
            )
    elif not data.is_staged:
        return
    elif data.scheme not in READ:
        yield blocker(
            "data-unknown",
            f"data {data.name}: {data.scheme}:// is not reached from the pods of a cluster",
            "known are s3://, gs://, az:// and https://; or copy it there: windlass data copy",
        )
    elif wanted_claim(job, target) is None:
        yield blocker(
            "data-claim", f"data {data.name}: {data.source} is staged in a claim, and none is named", NEEDS_CLAIM
        )


def _image_notes(job: Job, target: KubernetesTarget) -> Iterator[Note]:
    """Yields a note if the image of the transfer pods needs obstore."""
    addresses = [data.source for data in _staged(job)] + ([job.outputs.to] if job.outputs.to is not None else [])
    if found := [one for one in addresses if needs_obstore(one)]:
        of_others = target.image or "of the job" if job.kubernetes.runtime is None else "of the runtime"
        image = target.supervisor_image or job.image or of_others
        fix = f"{INSTALL} in it, or name one that has it: supervisor_image: of the target"
        yield Note("image-obstore", f"{found[0]} is accessed with obstore, which the image {image} must contain", fix)


def _destination(shape: Shape, job: Job) -> str:
    """Returns the address to which outputs are uploaded; empty if they are not uploaded."""
    if job.outputs.to is None or job.outputs.scheme not in REACHED:
        return ""
    return f"{job.outputs.to.rstrip('/')}/{shape.run_id}/"
