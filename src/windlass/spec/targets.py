"""Models of targets: where jobs run, by their names in `targets.yaml`, chosen with `--on NAME`.

    local:    {kind: local, price_per_hour: 0.526, currency: USD}
    gpu-lab:  {kind: kubernetes, context: lab, namespace: team-a}
    aws:      {kind: sagemaker, region: us-east-1, role: arn:aws:iam::123456789012:role/training}

`local` exists without an entry in the file. A target contains no secret: the cluster's and cloud's own tools store
credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, ValidationInfo, field_validator

from windlass.spec.kubernetes import PodOptions
from windlass.spec.names import Env, Label, LabelKey, LabelValue, Line, Location, Name, OnlyList, Text, Word
from windlass.spec.positions import found
from windlass.spec.problems import refuse
from windlass.spec.sections import DataClaim, Document, FileSystem, Workload, in_s3
from windlass.spec.units import Size

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]


class LocalTarget(Document):
    """This machine."""

    kind: Literal["local"] = "local"
    """Kind of the target."""
    name: Name
    """Name of the target, for `--on`."""
    env: Env = Field(default_factory=dict)
    """Environment variables of every job on this target; variables of the job override them. Default: none."""
    python: Line | None = None
    """Interpreter for jobs without `python`. Default: the active environment's."""
    slots: Annotated[StrictInt, Field(ge=1)] | None = None
    """Number of slots that all runs together may use; further runs wait as `queued`. A run takes a slot for each GPU in
    its `resources.gpus`, or without GPUs for each rank. Default: no limit, and runs start at once."""
    price_per_hour: Price | None = None
    """Price of one node per hour, for `windlass cost`. Each simulated node counts as a node, so that a local run shows
    the cost of as many machines. Default: none, and runs have no cost."""
    currency: Currency = "USD"
    """Currency of the price, as a three-letter code. Default `USD`."""


class KubernetesTarget(PodOptions, Document):
    """A namespace of a Kubernetes cluster. Its options of pods apply to all jobs on the target."""

    kind: Literal["kubernetes"] = "kubernetes"
    """Kind of the target."""
    name: Name
    """Name of the target, for `--on`."""
    context: Line
    """Context of the kubeconfig. Required, so that the cluster does not depend on the last `kubectl config
    use-context`."""
    kubeconfig: Line | None = None
    """Kubeconfig file with the context, such as `~/.kube/lab`. Default: `$KUBECONFIG` or `~/.kube/config`, as in
    kubectl."""
    namespace: Label = "default"
    """Namespace for runs. Default `default`, as in kubectl."""
    via: Workload = "auto"
    """Workload kind for jobs that set none. Default `auto`: a Job, or another kind if the job requires one."""
    image: Word | None = None
    """Container image for jobs that set none. The image needs Python; Windlass need not be installed. Default:
    PyTorch's official image, in the version that this Windlass is tested with."""
    python: Line | None = None
    """Interpreter in the image for jobs that set none. Default `python3`."""
    env: Env = Field(default_factory=dict)
    """Environment variables of every job on this target; variables of the job override them. Default: none."""
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels of all objects of runs on this target; labels of the job override them. Default: none."""
    image_pull_secrets: Annotated[tuple[Label, ...], OnlyList] = ()
    """Secrets of the namespace with credentials of image registries, for every job on this target. Default: none."""
    user: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)] = 1000
    """User id of the pods; root is refused, so that the `restricted` Pod Security Standard admits the pods."""
    supervisor: Literal["auto", "cluster", "machine"] = "auto"
    """Where supervisors run. `cluster`: in a pod of the namespace, which needs `windlass target setup` once; runs are
    then restarted even while this machine is off. `machine`: on the machine that starts the run. Default `auto`: in the
    cluster if the namespace is set up for it."""
    supervisor_image: Word | None = None
    """Container image of supervisors in the cluster; needs Python 3.11 or newer. Default: the image of the job, or of
    its training runtime."""
    supervisor_queue: Label | None = None
    """Kueue LocalQueue for the Jobs of supervisors and for Jobs that transfer files. Default: none; required if Kueue
    also manages Jobs without a queue name."""
    data: DataClaim | None = None
    """Storage in which data sets are staged, for jobs that set none: `{size: 200GiB}` or `{claim: NAME}`. Default:
    none, and such a job is refused."""
    file_systems: Annotated[tuple[FileSystem, ...], OnlyList] = ()
    """File systems that expose parts of buckets, for data with `via: mount`. Default: none; data is then mounted with
    Mountpoint for Amazon S3."""
    storage: Location | None = None
    """Store for code that is too large for objects of the cluster, such as `s3://bucket/windlass/`, from which pods
    read the code. Default: none; jobs with such code are refused."""
    network_policy: StrictBool = True
    """Whether each run gets NetworkPolicies that admit only connections between its own pods, if the login may create
    them. Default true."""
    region: Label | None = None
    """AWS region of the nodes, such as `us-east-1`. For a job on a single instance type without a price in this target,
    the list price of this region applies (`windlass prices update`). Default: none; list prices are not used."""
    price_per_hour: Price | None = None
    """Price of one node per hour, for `windlass cost`. Default: none; only list prices apply."""
    prices: Mapping[Line, Price] = Field(default_factory=dict)
    """Prices per hour by instance type, such as `{g5.12xlarge: 5.672}`, for plans that name types. For a job that fits
    only one type, this price replaces `price_per_hour`. Default: none."""
    currency: Currency = "USD"
    """Currency of the price, as a three-letter code. Default `USD`."""

    @field_validator("kubeconfig")
    @classmethod
    def _is_absolute(cls, path: str | None) -> str | None:
        if path is not None and not path.startswith(("/", "~/")):
            raise refuse(f"is relative, found {found(path)}", "begin with / or ~/: commands run in many folders")
        return path

    @field_validator("storage")
    @classmethod
    def _is_in_s3(cls, storage: str | None) -> str | None:
        return in_s3(storage, "code is kept")


class SageMakerTarget(Document):
    """Amazon SageMaker in one account and region."""

    kind: Literal["sagemaker"] = "sagemaker"
    """Kind of the target."""
    name: Name
    """Name of the target, for `--on`."""
    region: Label
    """AWS region, such as `us-east-1`."""
    role: Line
    """Execution role of training jobs: an ARN, or a name in this account."""
    storage: Location
    """Location of code, checkpoints and models, such as `s3://bucket/windlass/`; the role reads and writes it."""
    schedule_role: Line | None = None
    """Role with which EventBridge Scheduler deletes deployed models when their time is over: an ARN, or a name in this
    account. Default: none, and only deployments that never end (option `--keep`) are accepted."""
    image: Word | None = None
    """Container image for jobs that set none, in ECR or a registry that the account reaches. The image needs Python;
    Windlass need not be installed. Default: none, and such a job is refused."""
    instance: Line | None = None
    """Instance type for jobs that set none, such as `ml.g5.xlarge`. Default: none, and such a job is refused."""
    volume: Annotated[Size, Field(ge=1 << 30)] | None = None
    """Disk size of each instance, written as `100GiB`. Default 30 GiB."""
    python: Line | None = None
    """Interpreter in the image for jobs that set none. Default `python3`."""
    env: Env = Field(default_factory=dict)
    """Environment variables of every job on this target; variables of the job override them. Default: none."""
    subnets: Annotated[tuple[Line, ...], OnlyList] = ()
    """Subnets of the VPC for the instances; set together with `security_groups`. Default: none."""
    security_groups: Annotated[tuple[Line, ...], OnlyList] = Field(default=(), validate_default=True)
    """Security groups of the instances in the VPC. Default: none."""
    network_isolation: StrictBool = False
    """Whether containers can connect only to each other. Default false."""
    kms_key: Line | None = None
    """KMS key that encrypts the disks of instances and their uploads. Default: the account's."""
    encrypt_traffic: StrictBool = False
    """Whether traffic between instances is encrypted, which slows collectives down. Default false."""
    tags: Mapping[Line, Text] = Field(default_factory=dict)
    """Tags of every training job. Default: only Windlass's own tags."""
    prices: Mapping[Line, Price] = Field(default_factory=dict)
    """Prices per hour by instance type, such as `{ml.g5.xlarge: 1.408}`. Default: none, and runs have no cost."""
    currency: Currency = "USD"
    """Currency of the prices, as a three-letter code. Default `USD`."""

    @field_validator("storage")
    @classmethod
    def _is_in_s3(cls, storage: str) -> str | None:
        return in_s3(storage, "SageMaker reads and writes")

    @field_validator("security_groups")
    @classmethod
    def _with_subnets(cls, groups: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if bool(groups) is not bool(info.data.get("subnets")):
            raise refuse("subnets and security_groups belong together", "set both, or neither")
        return groups


class SageMakerLocalTarget(Document):
    """SageMaker's container contract on this machine, without an account or Docker."""

    kind: Literal["sagemaker-local"] = "sagemaker-local"
    """Kind of the target."""
    name: Name
    """Name of the target, for `--on`."""
    storage: Location | None = None
    """Location of code, checkpoints and models: `s3://bucket/windlass/` or `file:///…`. Default: with the records of
    runs on this machine."""
    instance: Line = "ml.local"
    """Instance type that hosts report, for jobs that set no instance type. Default `ml.local`."""
    python: Line | None = None
    """Interpreter for jobs without `python`. Default: the active environment's."""
    env: Env = Field(default_factory=dict)
    """Environment variables of every job on this target; variables of the job override them. Default: none."""
    network_isolation: StrictBool = False
    """Whether hosts can connect only to each other. Default false."""


Target = LocalTarget | KubernetesTarget | SageMakerTarget | SageMakerLocalTarget

KINDS: Mapping[str, type[LocalTarget] | type[KubernetesTarget] | type[SageMakerTarget] | type[SageMakerLocalTarget]] = {
    "local": LocalTarget,
    "kubernetes": KubernetesTarget,
    "sagemaker": SageMakerTarget,
    "sagemaker-local": SageMakerLocalTarget,
}
"""Model of each kind of target."""
