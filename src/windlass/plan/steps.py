"""Steps of a plan, each with its request as typed fields, and their conversion from and to JSON.

The JSON form of a step is `{"kind": …, "summary": …, "request": {…}}`. An engine in another package defines its own
kinds of steps as subclasses of `Step`, which can be read once the module of that engine is imported.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from windlass.compat import override
from windlass.plan.compose import NodeTemplate, compose
from windlass.worker.protocol import EMPTY, NodeSpec
from windlass.worker.values import ShapeError, StrictValue

if TYPE_CHECKING:
    from windlass.spec.job import Job

KINDS: Final[dict[str, type[Step]]] = {}
"""Step classes by kind."""


class Step(StrictValue):
    """One action of a run, with its request exactly as it will be sent."""

    kind: ClassVar[str] = ""
    """Value of the JSON field `kind` of such steps."""
    shared: ClassVar[tuple[str, ...] | None] = None
    """Fields that another machine uses when it reads the plan from a cluster. All other fields are ignored there,
    because they may contain folders and programs of the machine that made the plan. None if plans in clusters have no
    such step."""
    summary: str
    """Description of the action in one line."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.kind:
            KINDS[cls.kind] = cls

    @property
    def request(self) -> dict[str, Any]:
        """Returns the fields of the step, without its summary, as JSON data."""
        return {name: value for name, value in StrictValue.to_json(self).items() if name != "summary"}

    def to_json(self) -> dict[str, Any]:
        """Returns the step as JSON data."""
        return {"kind": self.kind, "summary": self.summary, "request": self.request}

    @classmethod
    def of_request(cls, summary: str, request: Mapping[str, Any]) -> Self:
        """Creates the step with this request. Raises ShapeError."""
        return super().from_json({**request, "summary": summary})

    @classmethod
    def from_json(cls, data: Any) -> Any:
        """Parses the output of `to_json`; returns a step of the class for the kind. Raises ShapeError, also for an
        unknown kind.
        """
        if not isinstance(data, Mapping) or data.keys() != {"kind", "summary", "request"}:
            raise ShapeError("a step has the fields kind, summary and request, and no others")
        if not isinstance(data["kind"], str) or data["kind"] not in KINDS:
            raise ShapeError(f"unknown kind of step: {data['kind']}")
        if not isinstance(data["summary"], str):
            raise ShapeError(f"the summary of step {data['kind']} is not text")
        if not isinstance(data["request"], Mapping) or "summary" in data["request"]:
            raise ShapeError(f"the request of step {data['kind']} is not one")
        try:
            return KINDS[data["kind"]].of_request(data["summary"], data["request"])
        except ShapeError as error:
            raise ShapeError(f"step {data['kind']}: {error}") from None

    def as_shared(self) -> Self:
        """Returns the step with its `shared` fields; all other fields have their defaults."""
        hidden = self.fields().keys() - {"summary", *(self.shared or ())}
        return self.replace(**{name: self.fields()[name] for name in hidden})


class ManifestStep(Step):
    """Creates an object in a cluster; its request is the manifest."""

    names: ClassVar[tuple[str, ...]] = ()
    """Suffixes that follow the run's id in the names of such objects; empty for objects that several runs share."""
    manifest: Mapping[str, Any]

    @property
    def request(self) -> dict[str, Any]:
        """Returns the manifest."""
        return dict(self.manifest)

    @classmethod
    @override
    def of_request(cls, summary: str, request: Mapping[str, Any]) -> Self:
        return cls(summary, request)

    def as_shared(self) -> Self:
        """Returns the step unchanged: the reader of the plan checks the object's kind, name and namespace."""
        return self


# -- every engine -----------------------------------------------------------------------------------------------------


class FolderStep(Step):
    """Creates the folders of a run on this machine."""

    kind = "folder"
    path: str
    """Folder of the outputs."""
    checkpoints: str
    base: str = ""
    """Folder to which paths of the job are relative; empty if unknown."""


class SentFile(StrictValue):
    """A file of the code archive."""

    name: str
    bytes: int


class IgnoredFiles(StrictValue):
    """Files and folders that are not sent, grouped by the matching line of an ignore file."""

    source: str
    """File and line of the pattern."""
    pattern: str
    entries: int


class Added(StrictValue):
    """Files of Windlass itself in the archive."""

    files: int
    bytes: int


class CodeStep(Step):
    """Sends the code: an archive of the job's folder and of the parts of Windlass that the nodes need."""

    kind = "code"
    shared = ("digest", "bytes", "source", "pieces")
    digest: str
    """SHA-256 of the archive."""
    folder: str = ""
    """Folder of the job on the machine that made the plan."""
    bytes: int = 0
    """Size of the archive."""
    source: str = ""
    """Address of the archive in a store; empty if `pieces` contain the archive, and on SageMaker, which uses
    `address`."""
    address: str = ""
    """Address of the folder in a store from which SageMaker reads the archive."""
    pieces: tuple[Mapping[str, Any], ...] = ()
    """Cluster objects that contain the archive, without their content."""
    unpacked_bytes: int = 0
    """Total bytes of the sent files before compression."""
    files: tuple[SentFile, ...] = ()
    """Files of the folder, sorted by name."""
    left_out: tuple[IgnoredFiles, ...] = ()
    added: Added | None = None
    is_imported: bool = False
    """Whether another machine made the plan, so that this machine does not have the code folder."""


class StageStep(Step):
    """Copies a data set to the location where ranks read it, before the first attempt."""

    kind = "stage"
    shared = ("name", "source", "link")
    name: str
    """Name of the data set."""
    source: str
    link: str
    """Path at which the ranks find the data set."""
    python: str = ""
    """Interpreter that copies the data set on this machine; empty in a cluster."""


class UploadStep(Step):
    """Uploads the outputs to a store."""

    kind = "upload"
    shared = ("source", "destination", "at")
    source: str
    """Folder of the outputs."""
    destination: str
    at: Literal["end", "checkpoint"] = "end"
    """When the outputs are uploaded: `end` is after the last attempt, `checkpoint` also after each checkpoint."""
    python: str = ""
    """Interpreter that uploads the outputs on this machine; empty in a cluster."""

    @classmethod
    def of_job(cls, job: Job, source: str, destination: str, python: str = "") -> UploadStep:
        """Returns the upload to `destination`, at the times that the job sets."""
        when = "each checkpoint and after the last attempt" if job.outputs.at == "checkpoint" else "the last attempt"
        summary = f"upload the outputs to {destination} after {when}"
        return cls(summary, source, destination, "checkpoint" if job.outputs.at == "checkpoint" else "end", python)


class NodeStep(Step):
    """Starts the worker of a node. The spec lacks the values of an attempt; `Plan.nodes` is authoritative."""

    kind = "node"
    shared = ("spec",)
    spec: NodeSpec

    @property
    def request(self) -> dict[str, Any]:
        """Returns the spec. Fields that readers of `-o json` expect in every node are included even if they are
        empty.
        """
        shown: dict[str, Any] = {
            "host": f"node-{self.spec.node}",
            "warm": [],
            "known_at_start": [],
            "progress": None,
        }
        return {**shown, **self.spec.to_json()}

    @classmethod
    @override
    def of_request(cls, summary: str, request: Mapping[str, Any]) -> Self:
        if unknown := request.keys() - {*NodeSpec.fields(), "host", "version"}:
            raise ShapeError(f"unknown field: {', '.join(sorted(unknown))}")
        return cls(summary, NodeSpec.from_json(request))

    def as_shared(self) -> Self:
        """Returns the step with the number of the node, the folder, the variables and the ranks."""
        spec = self.spec
        return self.replace(spec=NodeSpec(spec.node, "", "", spec.cwd, spec.env, spec.ranks, 0.0))


def node_steps(template: NodeTemplate, job: Job) -> Iterator[NodeStep]:
    """Yields the steps that start the nodes, one for each worker."""
    shown = shlex.join(job.script_argv if job.script_kind == "program" else ("python", *job.script_argv))
    for spec in compose(template):
        ranks = [rank.rank for rank in spec.ranks]
        is_one = template.one_worker and template.num_nodes > 1
        nodes = f"nodes 0–{template.num_nodes - 1}" if is_one else f"node {spec.node}"
        numbers = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}–{ranks[-1]}"
        how = " by mpirun" if spec.launch is not None else ""
        yield NodeStep(f"start {nodes}, {numbers}{how}: {shown}", spec)


# -- this machine -----------------------------------------------------------------------------------------------------


class AfterStep(Step):
    """Waits until another run has succeeded."""

    kind = "after"
    run: str


class QueueStep(Step):
    """Waits for slots of a target."""

    kind = "queue"
    takes: int
    """Number of slots that the run takes."""
    of: int
    """Total number of slots of the target."""
    priority: int
    gpus: bool
    """Whether a slot is a GPU."""


class NetworkNode(StrictValue):
    """A node with a separate network namespace."""

    node: int
    host: str
    namespace: str
    address: str


class NetworkStep(Step):
    """Creates a network namespace for each node; see `engines/netns.py`."""

    kind = "network"
    bridge: str
    """Network namespace of the bridge that connects the nodes."""
    interface: str
    rate: str | None
    """Rate limit of each link, such as `100mbit`; null without a limit."""
    nodes: tuple[NetworkNode, ...]
    make: tuple[tuple[str, ...], ...]
    """Commands that create the network."""
    remove: tuple[tuple[str, ...], ...]


# -- a cluster --------------------------------------------------------------------------------------------------------


class PodPatchStep(Step):
    """Shows one value that a patch in the job or target sets in the pods of a run; the manifests contain the whole
    patch.
    """

    kind = "pod-patch"
    pods: str
    """Pods with the value: `ranks` or `supervisor`."""
    origin: str
    """Origin of the patch: `job`, or the name of the target."""
    path: str
    """Path of the value in the pod template, such as `spec.hostNetwork`."""
    value: str
    """The value as JSON; `null` if the patch removes the field."""


class ClusterStep(Step):
    """Selects the cluster, the namespace, and the workload kind of the pods."""

    kind = "cluster"
    shared = ("namespace", "via", "why", "expires_seconds", "keeps_claim")
    namespace: str
    via: str
    """Workload kind: `job`, `jobset`, …"""
    context: str = ""
    kubeconfig: str = ""
    """Kubeconfig of the machine that made the plan."""
    why: str = ""
    """Why this workload kind was selected."""
    expires_seconds: float | None = None
    """Seconds for which the run is kept in the cluster after its end; null if the run does not expire."""
    keeps_claim: bool = False
    """Whether the claim with the results remains when the run is removed."""


class ObjectStep(ManifestStep):
    """Creates an object that all attempts share. The first such object owns all other objects of the run."""

    kind = "object"
    names = ("",)


class NetworkPolicyStep(ManifestStep):
    """Creates a NetworkPolicy for the pods of the run."""

    kind = "policy"
    names = ("", "-supervisor")


class ClaimStep(ManifestStep):
    """Creates the claim for the results."""

    kind = "claim"
    names = ("",)


class AttemptPartStep(ManifestStep):
    """Creates an object that the owner object of the first attempt refers to."""

    kind = "attempt-part"
    names = ("-1",)


class AttemptStep(ManifestStep):
    """Creates the object that owns the pods of the first attempt; each later attempt gets its own object."""

    kind = "attempt"
    names = ("-1",)


class SupervisorStep(ManifestStep):
    """Creates an object of the supervisor in the cluster: its key, its code with the plan, its Service or its Job."""

    kind = "supervisor"
    names = ("-supervisor", "-key")


class TransferStep(ManifestStep):
    """Creates the ConfigMap with the program that moves files."""

    kind = "transfer"
    names = ("-transfer",)


class StageJobStep(ManifestStep):
    """Creates the Job that stages data sets before the first attempt."""

    kind = "stage-job"
    names = ("-data",)


class UploadJobStep(ManifestStep):
    """Creates the Job that uploads the outputs."""

    kind = "upload-job"
    names = ("-outputs",)


class CheckJobStep(ManifestStep):
    """Creates the Job that checks, while the ranks start, whether the store of the outputs can be listed."""

    kind = "check-job"
    names = ("-outputs-check",)


class ReadJobStep(ManifestStep):
    """Creates the Job whose pod mounts the claim of the results after the run, for commands that read files."""

    kind = "read-job"
    names = ("-cp",)


class DataClaimStep(ManifestStep):
    """Creates the claim in which data sets are staged; the claim is kept when a run is removed."""

    kind = "data-claim"


class MountVolumeStep(ManifestStep):
    """Creates the PersistentVolume of a mounted data set; the volume is kept when a run is removed."""

    kind = "mount-volume"


class MountClaimStep(ManifestStep):
    """Creates the claim of a mounted data set's volume; the claim is kept when a run is removed."""

    kind = "mount-claim"


class MountStep(Step):
    """Mounts a data set in the pods."""

    kind = "mount"
    shared = ("name", "source", "by", "claim", "folder", "why")
    name: str
    """Name of the data set."""
    source: str
    by: str
    """Driver that mounts the data set: `mountpoint`, `s3-files` or `lustre`."""
    claim: str
    folder: str
    """Folder of the claim that contains the data set; empty for the whole claim."""
    why: str
    """Why this driver was selected."""


class CollectStep(Step):
    """Copies the outputs from the pods to this machine after the last attempt."""

    kind = "collect"
    shared = ("source", "max_bytes")
    source: str
    """Folder of the outputs in the pods."""
    max_bytes: int
    """Maximum size of the outputs; larger outputs are deleted with the pods."""


class NodePool(StrictValue):
    """A Karpenter NodePool that matches the pods."""

    name: str
    instance_types: tuple[str, ...] = ()
    """Instance types of the pool; empty if the pool names none."""
    capacity_types: tuple[str, ...] = ()
    """Capacity types of the pool, such as `on-demand` or `spot`."""
    requirements: tuple[str, ...] = ()
    """Other requirements of the pool, in words."""
    prices: Mapping[str, float] = EMPTY
    """Price per hour of each instance type, as configured for the target."""


class NodePoolsStep(Step):
    """Waits for new nodes if no existing node has the capacity."""

    kind = "machines"
    shared = ("pools",)
    pools: tuple[NodePool, ...]


# -- SageMaker --------------------------------------------------------------------------------------------------------


class ServiceStep(Step):
    """Selects the service that runs training jobs: SageMaker, or simulated hosts on this machine."""

    kind = "service"
    engine: Literal["sagemaker", "sagemaker-local"]
    region: str = ""
    account: str = ""
    """AWS account; empty if unknown."""
    home: str = ""
    """Folder of the records, for hosts on this machine."""
    path: str = ""
    """Folder of the interpreter, for hosts on this machine."""
    base: str = ""
    """Folder to which paths of the job are relative; empty if unknown."""


class TrainingJobStep(Step):
    """Creates the training job of the first attempt; the request is the body of CreateTrainingJob."""

    kind = "training-job"
    body: Mapping[str, Any]

    @property
    def request(self) -> dict[str, Any]:
        """Returns the body of CreateTrainingJob."""
        return dict(self.body)

    @classmethod
    @override
    def of_request(cls, summary: str, request: Mapping[str, Any]) -> Self:
        return cls(summary, request)


class ModelStep(Step):
    """Copies the model from the store to this machine after the last attempt."""

    kind = "model"
    source: str
    path: str
    """Folder on this machine that the model is copied to."""
