"""The targets as frozen models: where jobs run, by their names in `targets.yaml`, chosen with `--on NAME`.

    local:    {kind: local, price_per_hour: 0.526, currency: USD}
    gpu-lab:  {kind: kubernetes, context: lab, namespace: team-a}
    aws:      {kind: sagemaker, region: us-east-1, role: arn:aws:iam::123456789012:role/training}

`local` is always there and needs no line. A target holds no secret: credentials stay where their own tools keep them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, ValidationInfo, field_validator

from windlass.spec.names import Env, Label, Line, Location, Name, OnlyList, Text, Word
from windlass.spec.parts import DataClaim, Document, FileSystem, Workload, in_s3
from windlass.spec.places import found
from windlass.spec.problems import refuse
from windlass.spec.units import Size

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]


class LocalTarget(Document):
    """This machine."""

    kind: Literal["local"] = "local"
    """What kind of target this is."""
    name: Name
    """What `--on` calls it."""
    env: Env = Field(default_factory=dict)
    """Environment variables for every job here; the job's own win. Default: none."""
    python: Line | None = None
    """Interpreter of scripts whose job names none. Default: the active environment's."""
    slots: Annotated[StrictInt, Field(ge=1)] | None = None
    """How many GPUs, or ranks on a machine without, runs may use at once; further runs wait as `queued`. A run takes a
    slot for each GPU in its `resources.gpus`, else for each rank. Default: none, and runs start at once."""
    price_per_hour: Price | None = None
    """What one node costs an hour, for `windlass cost`. Each simulated node counts as one: a rehearsal
    shows what the job would cost on as many machines. Default: none, and nothing is priced."""
    currency: Currency = "USD"
    """Currency of the price, as its three letters. Default `USD`."""


class KubernetesTarget(Document):
    """A namespace of a Kubernetes cluster."""

    kind: Literal["kubernetes"] = "kubernetes"
    """What kind of target this is."""
    name: Name
    """What `--on` calls it."""
    context: Line
    """Context of the kubeconfig. Has no default: which cluster pays for a run is never left to the last `kubectl`."""
    kubeconfig: Line | None = None
    """File with that context, such as `~/.kube/lab`. Default: as kubectl, `$KUBECONFIG` or `~/.kube/config`."""
    namespace: Label = "default"
    """Namespace in which runs live. Default `default`, as kubectl."""
    via: Workload = "auto"
    """Kind of object for jobs that name none. Default `auto`: a Job, or what the job needs."""
    image: Word | None = None
    """Container image of jobs that name none; it needs Python, and nothing of ours. Default: PyTorch's own, in the
    version that this Windlass is tested with."""
    python: Line | None = None
    """Interpreter inside the image for jobs that name none. Default `python3`."""
    env: Env = Field(default_factory=dict)
    """Environment variables for every job here; the job's own win. Default: none."""
    image_pull_secrets: Annotated[tuple[Label, ...], OnlyList] = ()
    """Secrets of the namespace with logins of image registries, for every job here. Default: none."""
    user: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)] = 1000
    """Number of the user that pods run as; never root's, so that namespaces of the strictest kind take them."""
    supervisor: Literal["auto", "cluster", "machine"] = "auto"
    """Where supervisors run. `cluster`: in a pod of the namespace, so that runs are restarted while this machine is
    off; it needs `windlass target setup` once. `machine`: on the machine that starts the run. Default `auto`: in the
    cluster where the namespace is set up for it."""
    supervisor_image: Word | None = None
    """Container image of supervisors in the cluster; it needs Python 3.11 or newer. Default: the image of the job,
    or of its training runtime."""
    supervisor_queue: Label | None = None
    """LocalQueue of Kueue for the Jobs of supervisors, and for those that move files. Default: none; a Kueue that
    manages Jobs without a queue needs one."""
    data: DataClaim | None = None
    """Where data sets from a store are staged for jobs that do not say: `{size: 200GiB}` or `{claim: NAME}`. Default:
    nowhere, and such a job is refused."""
    file_systems: Annotated[tuple[FileSystem, ...], OnlyList] = ()
    """File systems that show parts of buckets, for data with `via: mount`. Default: none; data is then mounted by
    Mountpoint for Amazon S3."""
    storage: Location | None = None
    """Where code goes that objects of the cluster cannot carry, such as `s3://bucket/windlass/`; the pods read it
    there. Default: nowhere, and such a job is refused."""
    network_policy: StrictBool = True
    """Whether each run gets NetworkPolicies that admit only connections between its own pods, where the login may
    create them. Default true."""
    region: Label | None = None
    """AWS region of the nodes, such as `us-east-1`: jobs that run on one instance type, and for which the target has no
    price of its own, are then priced by the list of `windlass prices update`. Default: none, and no list applies."""
    price_per_hour: Price | None = None
    """What one node costs an hour, for `windlass cost`. Default: none, and only list prices are known."""
    prices: Mapping[Line, Price] = Field(default_factory=dict)
    """What a node of an instance type costs an hour, such as `{g5.12xlarge: 5.672}`: for plans that name types, and in
    place of `price_per_hour` for a job that only one type can serve. Default: none."""
    currency: Currency = "USD"
    """Currency of the price, as its three letters. Default `USD`."""

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
    """What kind of target this is."""
    name: Name
    """What `--on` calls it."""
    region: Label
    """AWS region, such as `us-east-1`."""
    role: Line
    """Role that the training job takes on: an ARN, or a name in this account."""
    storage: Location
    """Where code, checkpoints and models are kept, such as `s3://bucket/windlass/`; the role reads and writes it."""
    image: Word | None = None
    """Container image of jobs that name none, in ECR or a registry that the account reaches; it needs Python, and
    nothing of ours. Default: none, and such a job is refused."""
    instance: Line | None = None
    """Instance type of jobs that name none, such as `ml.g5.xlarge`. Default: none, and such a job is refused."""
    volume: Annotated[Size, Field(ge=1 << 30)] | None = None
    """Disk of each instance, written as `100GiB`. Default 30 GiB."""
    python: Line | None = None
    """Interpreter inside the image for jobs that name none. Default `python3`."""
    env: Env = Field(default_factory=dict)
    """Environment variables for every job here; the job's own win. Default: none."""
    subnets: Annotated[tuple[Line, ...], OnlyList] = ()
    """Subnets of a VPC that instances are connected to, with `security_groups`. Default: none."""
    security_groups: Annotated[tuple[Line, ...], OnlyList] = Field(default=(), validate_default=True)
    """Security groups of the instances in the VPC. Default: none."""
    network_isolation: StrictBool = False
    """Whether containers reach nothing but each other. Default false."""
    kms_key: Line | None = None
    """Key by which disks of the instances and what they upload are encrypted. Default: the account's."""
    encrypt_traffic: StrictBool = False
    """Whether traffic between instances is encrypted, which slows collectives down. Default false."""
    tags: Mapping[Line, Text] = Field(default_factory=dict)
    """Tags of every training job. Default: Windlass's own alone."""
    prices: Mapping[Line, Price] = Field(default_factory=dict)
    """What an instance of a type costs an hour, such as `{ml.g5.xlarge: 1.408}`. Default: none, nothing is priced."""
    currency: Currency = "USD"
    """Currency of the prices, as its three letters. Default `USD`."""

    @field_validator("storage")
    @classmethod
    def _is_in_s3(cls, storage: str) -> str | None:
        return in_s3(storage, "SageMaker reads and writes")

    @field_validator("security_groups")
    @classmethod
    def _with_subnets(cls, groups: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if bool(groups) is not bool(info.data.get("subnets")):
            raise refuse("subnets and security_groups belong together", "give both, or none of them")
        return groups


class SageMakerLocalTarget(Document):
    """SageMaker's container contract on this machine: no account, and no Docker."""

    kind: Literal["sagemaker-local"] = "sagemaker-local"
    """What kind of target this is."""
    name: Name
    """What `--on` calls it."""
    storage: Location | None = None
    """Where code, checkpoints and models are kept: `s3://bucket/windlass/` or `file:///…`. Default: with the records of
    runs on this machine."""
    instance: Line = "ml.local"
    """Instance type that hosts report of themselves for jobs that name none. Default `ml.local`."""
    python: Line | None = None
    """Interpreter of scripts whose job names none. Default: the active environment's."""
    env: Env = Field(default_factory=dict)
    """Environment variables for every job here; the job's own win. Default: none."""
    network_isolation: StrictBool = False
    """Whether hosts reach nothing but each other. Default false."""


Target = LocalTarget | KubernetesTarget | SageMakerTarget | SageMakerLocalTarget

KINDS: Mapping[str, type[LocalTarget] | type[KubernetesTarget] | type[SageMakerTarget] | type[SageMakerLocalTarget]] = {
    "local": LocalTarget,
    "kubernetes": KubernetesTarget,
    "sagemaker": SageMakerTarget,
    "sagemaker-local": SageMakerLocalTarget,
}
"""The class behind each `kind`."""
