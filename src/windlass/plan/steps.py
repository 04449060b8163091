"""The steps of a plan, each with what is sent or done as typed fields; and how steps are written as JSON and read back.

In JSON a step is `{"kind": …, "summary": …, "request": {…}}`. An engine of another package declares steps of its own
kinds as subclasses of `Step`; they can be read where the module of that engine is imported.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from windlass.plan.compose import NodeTemplate, compose
from windlass.worker.protocol import EMPTY, NodeSpec
from windlass.worker.values import ShapeError, StrictValue

if TYPE_CHECKING:
    from windlass.spec.job import Job

KINDS: Final[dict[str, type[Step]]] = {}
"""The class of each kind of step."""


class Step(StrictValue):
    """One thing that a run does, with the request as it will be sent."""

    kind: ClassVar[str] = ""
    """The name of this kind of step in JSON."""
    shared: ClassVar[tuple[str, ...] | None] = None
    """The fields that another machine uses when it reads the plan of a run from a cluster; it ignores the others, which
    may name folders and programs of the machine that made the plan. None: a plan in a cluster has no such step."""
    summary: str
    """What the step does, in one line."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.kind:
            KINDS[cls.kind] = cls

    @property
    def request(self) -> dict[str, Any]:
        """The fields of the step as JSON data, without its summary."""
        return {name: value for name, value in StrictValue.to_json(self).items() if name != "summary"}

    def to_json(self) -> dict[str, Any]:
        """The step as JSON data."""
        return {"kind": self.kind, "summary": self.summary, "request": self.request}

    @classmethod
    def of_request(cls, summary: str, request: Mapping[str, Any]) -> Self:
        """The step with this request. Raises ShapeError."""
        return super().from_json({**request, "summary": summary})

    @classmethod
    def from_json(cls, data: Any) -> Any:
        """Read `to_json` back, as a step of the class of its kind. Raises ShapeError, also for an unknown kind."""
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
        """The step with the fields that are `shared`; the others have their defaults."""
        hidden = self.fields().keys() - {"summary", *(self.shared or ())}
        return self.replace(**{name: self.fields()[name] for name in hidden})


class ManifestStep(Step):
    """Creates an object in a cluster; its request is the manifest."""

    names: ClassVar[tuple[str, ...]] = ()
    """What the names of such objects have after the run's id; none for objects that are not of one run."""
    manifest: Mapping[str, Any]

    @property
    def request(self) -> dict[str, Any]:
        """The manifest."""
        return dict(self.manifest)

    @classmethod
    def of_request(cls, summary: str, request: Mapping[str, Any]) -> Self:
        """See `Step`."""
        return cls(summary, request)

    def as_shared(self) -> Self:
        """The step as it is: the reader of the plan checks the object's kind, name and namespace."""
        return self


# -- every engine -----------------------------------------------------------------------------------------------------


class FolderStep(Step):
    """Makes the folders of a run on this machine."""

    kind = "folder"
    path: str
    """The folder of its outputs."""
    checkpoints: str
    base: str = ""
    """The folder to which paths of the job are relative; empty where it is not known."""


class SentFile(StrictValue):
    """A file of the code."""

    name: str
    bytes: int


class IgnoredFiles(StrictValue):
    """Files and folders that are not sent, by the line of an ignore file."""

    source: str
    """File and line of the pattern."""
    pattern: str
    entries: int


class Added(StrictValue):
    """The files of Windlass itself in the archive."""

    files: int
    bytes: int


class CodeStep(Step):
    """Sends the code: the archive of the job's folder and of the parts of Windlass that its nodes need."""

    kind = "code"
    shared = ("digest", "bytes", "source", "pieces")
    digest: str
    """SHA-256 of the archive."""
    folder: str = ""
    """The job's folder, on the machine that made the plan."""
    bytes: int = 0
    """Of the archive."""
    source: str = ""
    """Address of the archive in a store; empty where `pieces` carry it, and on SageMaker, which has an `address`."""
    address: str = ""
    """Address of the folder in a store that has the archive, as SageMaker reads it."""
    pieces: tuple[Mapping[str, Any], ...] = ()
    """The objects of a cluster that carry the archive, without their content."""
    unpacked_bytes: int = 0
    """Of the folder's files that are sent."""
    files: tuple[SentFile, ...] = ()
    """Of the folder, by name."""
    left_out: tuple[IgnoredFiles, ...] = ()
    added: Added | None = None
    is_imported: bool = False
    """Whether another machine made the plan: this one has no folder with the code."""


class StageStep(Step):
    """Copies a data set to where the ranks read it, before the first attempt."""

    kind = "stage"
    shared = ("name", "source", "link")
    name: str
    """Of the data set."""
    source: str
    link: str
    """The path at which the ranks find it."""
    python: str = ""
    """The interpreter that copies it on this machine; empty in a cluster."""


class UploadStep(Step):
    """Uploads the outputs to a store."""

    kind = "upload"
    shared = ("source", "destination", "at")
    source: str
    """The folder of the outputs."""
    destination: str
    at: Literal["end", "checkpoint"] = "end"
    """`end`: after the last attempt; `checkpoint`: after each checkpoint too."""
    python: str = ""
    """The interpreter that uploads them on this machine; empty in a cluster."""

    @classmethod
    def of_job(cls, job: Job, source: str, destination: str, python: str = "") -> UploadStep:
        """The upload to `destination`, at the times that the job sets."""
        when = "each checkpoint and after the last attempt" if job.outputs.at == "checkpoint" else "the last attempt"
        summary = f"upload the outputs to {destination} after {when}"
        return cls(summary, source, destination, "checkpoint" if job.outputs.at == "checkpoint" else "end", python)


class NodeStep(Step):
    """Starts the worker of a node. Its spec lacks what only an attempt determines; `Plan.nodes` is what counts."""

    kind = "node"
    shared = ("spec",)
    spec: NodeSpec

    @property
    def request(self) -> dict[str, Any]:
        """The spec. Fields that readers of `-o json` find in every node are there also where they are empty."""
        shown: dict[str, Any] = {
            "host": f"node-{self.spec.node}",
            "warm": [],
            "known_at_start": [],
            "progress": None,
        }
        return {**shown, **self.spec.to_json()}

    @classmethod
    def of_request(cls, summary: str, request: Mapping[str, Any]) -> Self:
        """See `Step`."""
        if unknown := request.keys() - {*NodeSpec.fields(), "host", "version"}:
            raise ShapeError(f"unknown field: {', '.join(sorted(unknown))}")
        return cls(summary, NodeSpec.from_json(request))

    def as_shared(self) -> Self:
        """The step with the number of the node, the folder, the variables and the ranks."""
        spec = self.spec
        return self.replace(spec=NodeSpec(spec.node, "", "", spec.cwd, spec.env, spec.ranks, 0.0))


def node_steps(template: NodeTemplate, job: Job) -> Iterator[NodeStep]:
    """The steps that start the nodes, one for each worker."""
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
    """Slots that the run needs."""
    of: int
    """Slots of the target."""
    priority: int
    gpus: bool
    """Whether a slot is a GPU."""


class NetworkNode(StrictValue):
    """A node with a network namespace of its own."""

    node: int
    host: str
    namespace: str
    address: str


class NetworkStep(Step):
    """Makes a network namespace for each node: see `engines/netns.py`."""

    kind = "network"
    bridge: str
    """The namespace of the bridge that joins the nodes."""
    interface: str
    rate: str | None
    """Limit of each link, as `100mbit`; null without one."""
    nodes: tuple[NetworkNode, ...]
    make: tuple[tuple[str, ...], ...]
    """The commands that create the network."""
    remove: tuple[tuple[str, ...], ...]


# -- a cluster --------------------------------------------------------------------------------------------------------


class ClusterStep(Step):
    """Names the cluster and the namespace, and how the pods are made there."""

    kind = "cluster"
    shared = ("namespace", "via", "why", "expires_seconds", "supervisor_queue", "image", "user", "keeps_claim")
    namespace: str
    via: str
    """The workload: `job`, `jobset`, …"""
    context: str = ""
    kubeconfig: str = ""
    """Of the machine that made the plan."""
    why: str = ""
    """Why it is this workload."""
    expires_seconds: float | None = None
    """How long after its end the run is kept in the cluster; null where it does not expire."""
    supervisor_queue: str = ""
    """The queue that admits the supervisor's pod."""
    image: str = ""
    """The image of the runtime on which the pods stand; empty without a runtime."""
    user: int | None = None
    """The user id of those pods; null without a runtime."""
    keeps_claim: bool = False
    """Whether the claim of the results stays when the run is removed."""


class ObjectStep(ManifestStep):
    """Creates an object that all attempts share. The first one owns all others of the run."""

    kind = "object"
    names = ("",)


class NetworkPolicyStep(ManifestStep):
    """Creates a NetworkPolicy for the pods of the run."""

    kind = "policy"
    names = ("", "-supervisor")


class ClaimStep(ManifestStep):
    """Creates the claim of the results."""

    kind = "claim"
    names = ("",)


class AttemptPartStep(ManifestStep):
    """Creates an object to which that of the step `attempt` refers."""

    kind = "attempt-part"
    names = ("-1",)


class AttemptStep(ManifestStep):
    """Creates the object that makes the pods of the first attempt; each later attempt has one of its own."""

    kind = "attempt"
    names = ("-1",)


class SupervisorStep(ManifestStep):
    """Creates an object of the supervisor in the cluster: its key, its code with the plan, its Service, its Job."""

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
    """Creates the Job that checks, while the ranks start, that the store of the outputs can be listed."""

    kind = "check-job"
    names = ("-outputs-check",)


class DataClaimStep(ManifestStep):
    """Creates the claim in which data sets are staged; no run removes it."""

    kind = "data-claim"


class MountVolumeStep(ManifestStep):
    """Creates the PersistentVolume of a data set that is mounted; no run removes it."""

    kind = "mount-volume"


class MountClaimStep(ManifestStep):
    """Creates the claim of that volume; no run removes it."""

    kind = "mount-claim"


class MountStep(Step):
    """Mounts a data set in the pods."""

    kind = "mount"
    shared = ("name", "source", "by", "claim", "folder", "why")
    name: str
    """Of the data set."""
    source: str
    by: str
    """`mountpoint`, `s3-files` or `lustre`."""
    claim: str
    folder: str
    """The folder of the claim that has the set; empty for all of it."""
    why: str
    """Why it is mounted by this driver."""


class CollectStep(Step):
    """Copies the outputs from the pods to this machine after the last attempt."""

    kind = "collect"
    shared = ("source", "max_bytes")
    source: str
    """The folder of the outputs in the pods."""
    max_bytes: int
    """Larger outputs are deleted with the pods."""


class NodePool(StrictValue):
    """A NodePool of Karpenter that matches the pods."""

    name: str
    instance_types: tuple[str, ...] = ()
    """Empty where it names none."""
    capacity_types: tuple[str, ...] = ()
    """`on-demand`, `spot`, …"""
    requirements: tuple[str, ...] = ()
    """Its other requirements, in words."""
    prices: Mapping[str, float] = EMPTY
    """What the target says that an instance type costs an hour."""


class NodePoolsStep(Step):
    """Waits for new nodes where no node has the capacity."""

    kind = "machines"
    shared = ("pools",)
    pools: tuple[NodePool, ...]


# -- SageMaker --------------------------------------------------------------------------------------------------------


class ServiceStep(Step):
    """Names the service that runs training jobs: SageMaker, or its hosts on this machine."""

    kind = "service"
    engine: Literal["sagemaker", "sagemaker-local"]
    region: str = ""
    account: str = ""
    """The AWS account; empty where it is not known."""
    home: str = ""
    """The folder of the records, for hosts on this machine."""
    path: str = ""
    """The folder of the interpreter of these hosts."""
    base: str = ""
    """The folder to which paths of the job are relative; empty where it is not known."""


class TrainingJobStep(Step):
    """Creates the training job of the first attempt; its request is that of CreateTrainingJob."""

    kind = "training-job"
    body: Mapping[str, Any]

    @property
    def request(self) -> dict[str, Any]:
        """The body of CreateTrainingJob."""
        return dict(self.body)

    @classmethod
    def of_request(cls, summary: str, request: Mapping[str, Any]) -> Self:
        """See `Step`."""
        return cls(summary, request)


class ModelStep(Step):
    """Copies the model from the store to this machine after the last attempt."""

    kind = "model"
    source: str
    path: str
    """The folder that it is copied to."""
