"""Exports a plan as a request, or as an ACK manifest, that other programs send to SageMaker. Pure.

The training job is the first attempt of a run, without a supervisor. The job reads its code and node specs from the
store, so both forms include the files to upload.

The kind `TrainingJob` of ACK (AWS Controllers for Kubernetes) has the fields of CreateTrainingJob in camel case, with
exceptions: `LACKING` was read from the CRD that its controller publishes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from windlass.engines.exported import Manifests, Upload, WrittenRequest
from windlass.engines.sagemaker import layout, objects
from windlass.engines.sagemaker.request import attempt_channel
from windlass.engines.sagemaker.service import Request
from windlass.plan.compose import AttemptFacts, Continuation, Rendezvous, compose
from windlass.plan.environment import consecutive_ports
from windlass.plan.notes import Note
from windlass.plan.plan import Plan
from windlass.plan.steps import CodeStep, TrainingJobStep
from windlass.worker.protocol import pack

KIND: Final = "TrainingJob"
API: Final = "sagemaker.services.k8s.aws/v1alpha1"
NAMES: Final = {
    "RoleArn": "roleARN",
    "S3Uri": "s3URI",
    "KmsKeyId": "kmsKeyID",
    "VolumeKmsKeyId": "volumeKMSKeyID",
    "SecurityGroupIds": "securityGroupIDs",
}
"""Names of request fields in the manifest, if more than the case of the first letter differs."""
LACKING: Final = (
    ("AlgorithmSpecification", "ContainerEntrypoint"),
    ("AlgorithmSpecification", "ContainerArguments"),
    ("ProfilerConfig", "DisableProfiler"),
    ("ResourceConfig", "TrainingPlanArn"),
)
"""Fields of the request that the manifest does not support."""
FREE: Final = frozenset({"Environment", "HyperParameters"})
"""Request fields whose keys are chosen by the user; the manifest keeps the case of these keys."""


def request(plan: Plan, code: bytes, since: float) -> WrittenRequest:
    """Returns the body of CreateTrainingJob for a run, and the files to upload to the store.

    `code` is the packed code; `since` is the current time in Unix seconds.
    """
    body = plan.only(TrainingJobStep).body
    return WrittenRequest(plan.run_id, body, _upload(plan, body, code, since), tuple(_notes(plan, body)))


def manifests(plan: Plan, code: bytes, since: float) -> Manifests:
    """Returns the training job as an object of ACK, and the files to upload to the store. Arguments as for
    `request`.
    """
    made = request(plan, code, since)
    body = made.body
    spec = _camel({name: _without(name, value) for name, value in body.items()})
    spec = {name: value for name, value in spec.items() if value != {}}
    name = body["TrainingJobName"]
    one = {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": name, "labels": {"windlass.dev/run": plan.run_id}},
        "spec": spec,
    }
    head = (
        f"Run {plan.run_id} of job {plan.name}, for the SageMaker controller of ACK: kubectl apply -f FILE",
        "The training job has no supervisor. SageMaker keeps it, and its name, when the object is deleted.",
    )
    kinds = (f"trainingjobs.{API.partition('/')[0]}",)
    return Manifests(
        plan.run_id, "", (one,), kinds, (*made.notes, _start_note(body), *_lacking_notes(body)), head, made.upload
    )


def _upload(plan: Plan, body: Request, code: bytes, since: float) -> Upload:
    sent = plan.only(CodeStep)
    storage = sent.address.removesuffix(f"code/{sent.digest}/")
    address = attempt_channel(body)
    start_files = objects.start_files(pack(1, _specs(plan, address, since)))
    files = {
        f"{sent.address}{layout.ARCHIVE}": code,
        **{f"{address}{name}": data for name, data in start_files.items()},
    }
    return Upload(storage, {name.removeprefix(storage): data for name, data in files.items()})


def _specs(plan: Plan, address: str, since: float) -> dict[int, Any]:
    members = range(plan.num_nodes)
    hosts = tuple(map(layout.host, members))
    port = layout.rendezvous_port(address)
    ports = consecutive_ports(plan.nodes.launcher, len(hosts), plan.procs_per_node, 1)
    facts = AttemptFacts(
        number=1,
        folder=f"{layout.WORK}/attempt",
        since=since,
        rendezvous=Rendezvous(hosts[0], port, hosts, ports),
        continuation=Continuation(),
    )
    return dict(enumerate(compose(plan.nodes, members, facts)))


def _without(name: str, value: Any) -> Any:
    """Returns a part of the request without the fields that the manifest does not support."""
    if not isinstance(value, Mapping):
        return value
    return {key: one for key, one in value.items() if (name, key) not in LACKING}


def _camel(value: Any) -> Any:
    """Renames the fields of a value to those of the manifest."""
    if isinstance(value, Mapping):
        return {
            NAMES.get(name) or name[0].lower() + name[1:]: dict(one) if name in FREE else _camel(one)
            for name, one in value.items()
        }
    return [_camel(one) for one in value] if isinstance(value, list | tuple) else value


def _notes(plan: Plan, body: Request) -> Iterator[Note]:
    if plan.policy.max_restarts:
        yield Note(
            "written-restarts",
            f"restarts: {plan.policy.max_restarts}, and no supervisor begins another training job after a failure",
            "windlass run --on TARGET does",
        )
    name, output = body["TrainingJobName"], body["OutputDataConfig"]["S3OutputPath"]
    yield Note(
        "written-model",
        "no run is recorded here: nothing fetches the model, and windlass ps, status, logs and stop find the job "
        f"with --on {plan.target} alone",
        f"aws s3 cp {output}/{name}/output/{layout.MODEL_ARCHIVE} .",
    )


def _start_note(body: Request) -> Note:
    words = ", ".join(f'"{word}"' for word in body["AlgorithmSpecification"]["ContainerEntrypoint"])
    return Note(
        "written-start",
        "ACK's TrainingJob has no field for the command of the container, so the image itself has to start the job",
        f"build it from {body['AlgorithmSpecification']['TrainingImage']} with ENTRYPOINT [{words}], and name it as "
        "image:",
    )


def _lacking_notes(body: Request) -> Iterator[Note]:
    """Yields a note for each part of the request that the manifest omits, except the start command."""
    if "TrainingPlanArn" in body["ResourceConfig"]:
        yield Note(
            "written-training-plan",
            "ACK's TrainingJob has no field for a training plan: it is left out",
            "the job uses on-demand capacity; plan -o request includes the training plan",
        )
    if "ProfilerConfig" in body:
        yield Note(
            "written-profiler",
            "ACK's TrainingJob cannot disable SageMaker's profiler, so it is enabled",
            "it samples the instances and writes to the bucket",
        )
