"""`cluster.yaml` as a frozen model: an EKS cluster for training, with its network, GPUs, storage and operators.

    name: vision
    region: us-west-2
    gpus:
      - {name: a10g, instances: [g5.12xlarge], max: 8}
    storage: {efs: true}

Everything else has a default. A cluster file holds no secret: logins stay where AWS's own tools keep them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, ValidationInfo, field_validator

from windlass.spec.names import Label, LabelKey, LabelValue, Line, OnlyList, Text, Word, matching
from windlass.spec.parts import Document, Part, not_below_min
from windlass.spec.places import found
from windlass.spec.problems import refuse
from windlass.spec.units import Size

Version = Literal["1.33", "1.34", "1.35", "1.36"]
Component = Literal[
    "trainer",
    "jobset",
    "mpi-operator",
    "kueue",
    "nvidia-device-plugin",
    "karpenter",
    "aws-load-balancer-controller",
    "metrics-server",
]
GIB = 1 << 30
PRIVATE = tuple(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
MIN_PUBLIC = 8
"""Prefix length of the widest range that may reach the API server: no owner of addresses has more."""
MIN_NETWORK, MAX_NETWORK = 16, 20
"""Prefix lengths that AWS takes for a VPC, and that leave its subnets enough addresses for pods."""


ClusterName = Annotated[
    Line, matching(r"[a-z][a-z0-9-]{1,28}[a-z0-9]", "a legal name", "3 to 30 lower-case letters, digits and '-'")
]
"""Short: names of roles and of load balancers are made of it, and have 64 and 32 characters at most."""
Region = Annotated[Line, matching(r"[a-z]{2}(?:-[a-z]+)+-\d", "an AWS region", "write for example us-west-2")]
Zone = Annotated[
    Line, matching(r"[a-z]{2}(?:-[a-z]+)+-\d[a-z]", "an availability zone", "write for example us-west-2a")
]
Arn = Annotated[
    Line,
    matching(
        r"arn:aws[a-z-]*:iam::\d{12}:(?:role|user)/[\w+=,.@/-]+",
        "the ARN of a role or user",
        "write for example arn:aws:iam::123456789012:role/platform",
    ),
]
BucketName = Annotated[
    Line,
    matching(
        r"(?!.*\.\.)(?![\d.]+$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
        "the name of a bucket",
        "3 to 63 lower-case letters, digits, '-' and '.', without s3://",
    ),
]
RepositoryName = Annotated[
    Line,
    matching(
        r"(?=.{2,256}$)(?:[a-z0-9]+(?:[._-][a-z0-9]+)*/)*[a-z0-9]+(?:[._-][a-z0-9]+)*",
        "the name of a repository",
        "2 to 256 lower-case letters and digits, with '.', '_', '-' and '/' between them",
    ),
]
Namespace = Annotated[
    Label,
    matching(
        r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?",
        "a namespace of Kubernetes",
        "at most 63 lower-case letters, digits and '-'",
    ),
]
PoolName = Annotated[
    Line,
    matching(r"[a-z](?:[a-z0-9-]{0,18}[a-z0-9])?", "a legal name", "at most 20 lower-case letters, digits and '-'"),
]
InstanceType = Annotated[
    Line, matching(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", "an instance type", "write for example g5.12xlarge")
]
TagKey = Annotated[
    Line,
    matching(
        r"(?!aws:|windlass\.dev/)[\w .:/=+@-]{1,128}",
        "the key of a tag",
        "at most 128 letters, digits, spaces and '.:/=+@_-'; 'aws:' and 'windlass.dev/' are taken",
    ),
]
TagValue = Annotated[
    Text, matching(r"[\w .:/=+@-]{0,256}", "the value of a tag", "at most 256 letters, digits, spaces and '.:/=+@_-'")
]
Few = Annotated[StrictInt, Field(ge=0, le=1000)]
Disk = Annotated[Size, Field(ge=20 * GIB, le=16384 * GIB)]


def _range(text: str, hint: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(text)
    except ValueError as error:
        raise refuse(f"{found(text)} is not a range of addresses ({error})", hint) from None


def _network(text: str) -> str:
    network = _range(text, "write for example 10.40.0.0/16")
    if not any(network.subnet_of(one) for one in PRIVATE):
        raise refuse(f"{text} is not private", "write for example 10.40.0.0/16")
    if not MIN_NETWORK <= network.prefixlen <= MAX_NETWORK:
        raise refuse(
            f"{text} has {network.num_addresses} addresses", f"from /{MIN_NETWORK} to /{MAX_NETWORK} is possible"
        )
    return text


def _addresses(text: str) -> str:
    network = _range(text, "one address is written 203.0.113.7/32")
    if network.prefixlen < MIN_PUBLIC:
        raise refuse(f"{text} opens the API server to the Internet", "name the ranges that administrators come from")
    if any(network.overlaps(one) for one in PRIVATE):
        raise refuse(
            f"{text} is private, and EKS takes public addresses here", "leave it out: the VPC always reaches it"
        )
    return text


def _yes_or_more(given: object) -> object:
    """`true` is a part with its defaults, `false` none."""
    if isinstance(given, bool):
        return {} if given else None
    return given


class Network(Part):
    """The VPC."""

    cidr: Annotated[Line, AfterValidator(_network)] = "10.40.0.0/16"
    """Private addresses of nodes and pods. Default `10.40.0.0/16`; choose another where networks are peered."""
    nat: Literal["one", "per-zone"] = "one"
    """NAT gateways: `one` costs a third, and the other zones lose the Internet with its zone. Default `one`."""
    public_access: Annotated[tuple[Annotated[Line, AfterValidator(_addresses)], ...], OnlyList] = ()
    """Ranges of addresses from which the API server is reached over the Internet. Default: none, so that it is reached
    from the VPC alone."""


class Access(Part):
    """Who may use the cluster, besides its creator."""

    admins: Annotated[tuple[Arn, ...], OnlyList] = ()
    """Roles and users with all rights in the cluster. Default: none."""
    users: Annotated[tuple[Arn, ...], OnlyList] = ()
    """Roles and users that start runs in `namespace`. Default: none."""


class SystemNodes(Part):
    """Nodes for operators and supervisors; no training runs there."""

    instances: Annotated[tuple[InstanceType, ...], OnlyList] = ("m7i.large",)
    """Instance types, the first preferred. Default `[m7i.large]`."""
    min: Annotated[StrictInt, Field(ge=1, le=100)] = 2
    """Nodes that always run. Default 2, so that one can be replaced."""
    max: Annotated[StrictInt, Field(ge=1, le=100, validate_default=True), AfterValidator(not_below_min)] = 4
    """Nodes at most. Default 4."""
    disk: Disk = 50 * GIB
    """Disk of each node. Default 50 GiB."""


class GpuPool(Part):
    """Nodes for training, none of which run while no job needs them."""

    name: PoolName
    """Name of the pool, and of its label `windlass.dev/pool` on the nodes."""
    instances: Annotated[tuple[InstanceType, ...], OnlyList, Field(min_length=1)]
    """Instance types, such as `[g5.12xlarge]`."""
    provision: Literal["karpenter", "node-group"] = "karpenter"
    """Who starts nodes: Karpenter when pods wait for them, or a managed node group of `min` nodes. Default `karpenter`;
    a capacity block, and EFA in a placement group, need `node-group`."""
    capacity: Literal["on-demand", "spot", "capacity-block"] = "on-demand"
    """How nodes are paid for. Default `on-demand`."""
    reservation: (
        Annotated[Line, matching(r"cr-[0-9a-f]+", "a capacity reservation", "write for example cr-0123456789abcdef0")]
        | None
    ) = None
    """The capacity block that was bought. Default: none."""
    min: Few = 0
    """Nodes of a node group that always run, and are paid for. Default 0."""
    max: Annotated[StrictInt, Field(ge=1, le=1000, validate_default=True), AfterValidator(not_below_min)] = 4
    """Nodes at most. Default 4."""
    zone: Zone | None = None
    """Availability zone of all its nodes. Default: any, or the first where nodes share a placement group or FSx."""
    efa: StrictBool | None = None
    """Whether nodes of a node group get Elastic Fabric Adapters. Default: where its first instance type has them."""
    disk: Disk = 200 * GIB
    """Disk of each node, which images are unpacked to. Default 200 GiB."""
    labels: Mapping[LabelKey, LabelValue] = Field(default_factory=dict)
    """Further labels of its nodes. Default: none."""

    @field_validator("reservation")
    @classmethod
    def _with_block(cls, reservation: str | None, info: ValidationInfo) -> str | None:
        if reservation is not None and info.data.get("capacity") != "capacity-block":
            raise refuse("belongs to capacity: capacity-block", "set capacity, or leave it out")
        return reservation

    @field_validator("min")
    @classmethod
    def _of_a_group(cls, least: int, info: ValidationInfo) -> int:
        if least and info.data.get("provision") == "karpenter":
            raise refuse("is for node groups: Karpenter starts nodes when pods wait", "set provision: node-group")
        return least


class Efs(Part):
    """A file system that all pods share: code, checkpoints, results."""

    throughput: Literal["elastic", "bursting"] = "elastic"
    """`elastic` is billed by what is read and written, `bursting` grows with what is stored. Default `elastic`."""


class Fsx(Part):
    """A parallel file system (FSx for Lustre) in the zone of the GPU nodes, linked to the bucket."""

    size: Annotated[Size, Field(ge=1200 * GIB)] = 1200 * GIB
    """Capacity: 1200 GiB, or a multiple of 2400 GiB. Default 1200 GiB."""
    deployment: Literal["scratch-2", "persistent-2"] = "scratch-2"
    """`scratch-2` keeps no second copy, and is cheaper. Default `scratch-2`."""
    throughput: Literal[125, 250, 500, 1000] | None = None
    """MB/s for each TiB of `persistent-2`. Default 125 there."""
    prefix: Annotated[Line, matching(r"[\w./-]*[\w./-]", "a prefix of a bucket", "write for example datasets/")] = (
        "fsx/"
    )
    """The part of the bucket that it shows, and writes changes back to. Default `fsx/`."""
    export: StrictBool = True
    """Whether new and changed files are written to the bucket. Default true."""
    export_deleted: StrictBool = False
    """Whether a file that is removed is removed from the bucket too. Default false."""

    @field_validator("size")
    @classmethod
    def _steps(cls, size: int) -> int:
        gib, rest = divmod(size, GIB)
        if rest or (gib != 1200 and gib % 2400):
            raise refuse(f"expected 1200GiB or a multiple of 2400GiB, found {size / GIB:g} GiB")
        return size

    @field_validator("throughput")
    @classmethod
    def _of_persistent(cls, throughput: int | None, info: ValidationInfo) -> int | None:
        if throughput is not None and info.data.get("deployment") == "scratch-2":
            raise refuse("is for persistent-2; scratch-2 has 200 MB/s for each TiB", "leave it out")
        return throughput


class Storage(Part):
    """What pods read and write."""

    efs: Annotated[Efs | None, BeforeValidator(_yes_or_more)] = None
    """A shared file system: `true`, or its settings. Default: none."""
    fsx: Annotated[Fsx | None, BeforeValidator(_yes_or_more)] = None
    """A parallel file system: `true`, or its settings. Default: none, for it costs most while it stands idle."""
    s3_files: StrictBool = False
    """Whether the bucket can be mounted as files (Amazon S3 Files). Default false."""
    mountpoint: StrictBool = False
    """Whether the bucket can be mounted by Mountpoint for Amazon S3, for `via: mount`. Default false."""
    bucket: BucketName | None = None
    """Name of the bucket for data, code and results: it is made, or, where it exists without the tag of this cluster,
    used and left as it is. Default `windlass-NAME-ACCOUNT`."""


class Budget(Part):
    """An alarm on what the account spends in a month."""

    limit: Annotated[StrictInt, Field(ge=1)]
    """US dollars."""
    email: Annotated[Word, matching(r"[^@\s]+@[^@\s]+\.[^@\s]+", "an e-mail address", "")]
    """Who is told at 80 % of it, and when the forecast exceeds it."""


class State(Part):
    """Where Terraform keeps its state."""

    bucket: BucketName
    """A bucket that exists, with versioning: the state is the only list of what was made."""
    prefix: Annotated[Line, matching(r"[\w./-]*[\w.-]", "a prefix of a bucket", "write for example windlass")] = (
        "windlass"
    )
    """The state is at PREFIX/NAME.tfstate. Default `windlass`."""
    region: Region | None = None
    """Region of the bucket. Default: that of the cluster."""


class Cluster(Document):
    """An EKS cluster for training."""

    name: ClusterName
    """Name of the cluster; names of all that is made begin with it."""
    region: Region
    """AWS region."""
    zones: Annotated[tuple[Zone, ...], OnlyList] = ()
    """Availability zones, two at least. Default: three that the region offers."""
    kubernetes: Version = "1.35"
    """Version of Kubernetes. Default `1.35`."""
    network: Network = Field(default_factory=Network)
    """The VPC. Default: a new one, 10.40.0.0/16, with one NAT gateway."""
    access: Access = Field(default_factory=Access)
    """Who may use it. Default: its creator."""
    namespace: Namespace = "training"
    """Namespace of the runs. Default `training`."""
    system: SystemNodes = Field(default_factory=SystemNodes)
    """Nodes for operators. Default: 2 to 4 of m7i.large."""
    gpus: Annotated[tuple[GpuPool, ...], OnlyList] = ()
    """Pools of nodes for training. Default: none."""
    storage: Storage = Field(default_factory=Storage)
    """What pods read and write. Default: the bucket alone."""
    repositories: Annotated[tuple[RepositoryName, ...], OnlyList] = ()
    """Repositories for images (ECR). Default: one with the name of the cluster."""
    components: Annotated[tuple[Component, ...], OnlyList] = (
        "jobset",
        "trainer",
        "mpi-operator",
        "kueue",
        "nvidia-device-plugin",
        "karpenter",
        "aws-load-balancer-controller",
        "metrics-server",
    )
    """What is installed in the cluster. Default: all that Windlass knows."""
    sagemaker: StrictBool = False
    """Whether to make a role with which training jobs of SageMaker read and write the bucket. Default false."""
    log_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731] = 365
    """How long logs of the control plane are kept. Default 365 days."""
    budget: Budget | None = None
    """An alarm on what the account spends. Default: none."""
    tags: Mapping[TagKey, TagValue] = Field(default_factory=dict)
    """Tags of all that is made, for cost reports. Default: Windlass's own alone."""
    state: State | None = None
    """Where Terraform keeps its state. Default: in the folder of the cluster on this machine, where others lack it."""

    @field_validator("zones")
    @classmethod
    def _several(cls, zones: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        region = info.data.get("region")
        if zones and (len(zones) < 2 or len(set(zones)) != len(zones)):
            raise refuse(f"expected two different zones at least, found {', '.join(zones)}", "EKS needs two")
        if elsewhere := [zone for zone in zones if region and zone[:-1] != region]:
            raise refuse(f"{', '.join(elsewhere)} is not in {region}")
        return zones

    @field_validator("gpus")
    @classmethod
    def _pools(cls, pools: tuple[GpuPool, ...], info: ValidationInfo) -> tuple[GpuPool, ...]:
        names = [pool.name for pool in pools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise refuse(f"two pools are called {twice[0]}")
        region, zones = info.data.get("region"), info.data.get("zones")
        for pool in pools:
            if pool.capacity == "capacity-block" and not (
                pool.provision == "node-group" and pool.reservation and pool.zone
            ):
                needed = "provision: node-group, reservation: cr-… and the zone that it was bought in"
                raise refuse(f"{pool.name}: a capacity block needs {needed}")
            if pool.zone and region and pool.zone[:-1] != region:
                raise refuse(f"{pool.name}: {pool.zone} is not in {region}")
            if pool.zone and zones and pool.zone not in zones:
                raise refuse(f"{pool.name}: {pool.zone} is not one of zones", f"add it to zones: {', '.join(zones)}")
        return pools

    @field_validator("namespace")
    @classmethod
    def _own(cls, namespace: str) -> str:
        if namespace.startswith("kube-"):
            raise refuse(f"{namespace} is Kubernetes' own, and users could change what runs there", "write training")
        return namespace

    @field_validator("components")
    @classmethod
    def _needed(cls, components: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        by_karpenter = [pool.name for pool in info.data.get("gpus", ()) if pool.provision == "karpenter"]
        if by_karpenter and "karpenter" not in components:
            raise refuse(f"lacks karpenter, which starts the nodes of {by_karpenter[0]}", "add it")
        return components

    @property
    def node_groups(self) -> tuple[GpuPool, ...]:
        """Pools that are managed node groups."""
        return tuple(pool for pool in self.gpus if pool.provision == "node-group")

    @property
    def karpenter_pools(self) -> tuple[GpuPool, ...]:
        """Pools whose nodes Karpenter starts."""
        return tuple(pool for pool in self.gpus if pool.provision == "karpenter")
