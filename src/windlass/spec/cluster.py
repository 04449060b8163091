"""`cluster.yaml` as a frozen model: an EKS cluster for training, with its network, GPUs, storage and operators.

    name: vision
    region: us-west-2
    gpus:
      - {name: a10g, instances: [g5.12xlarge], max: 8}
    storage: {efs: true}

All other fields have defaults. A cluster file contains no secret: AWS's own tools store the logins.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, ValidationInfo, field_validator

from windlass.spec.names import Label, LabelKey, LabelValue, Line, OnlyList, Text, Word, matching
from windlass.spec.positions import found
from windlass.spec.problems import refuse
from windlass.spec.sections import Document, Section, not_below_min
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
Addon = Literal[
    "vpc-cni",
    "kube-proxy",
    "eks-pod-identity-agent",
    "coredns",
    "aws-ebs-csi-driver",
    "aws-efs-csi-driver",
    "aws-fsx-csi-driver",
    "aws-mountpoint-s3-csi-driver",
]
GIB = 1 << 30
PRIVATE = tuple(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
MIN_PUBLIC = 8
"""Minimum prefix length of a public range that may reach the API server: no organization owns a wider range."""
MIN_NETWORK, MAX_NETWORK = 16, 20
"""Prefix lengths that AWS accepts for a VPC and that give the subnets enough addresses for pods."""


ClusterName = Annotated[
    Line, matching(r"[a-z][a-z0-9-]{1,28}[a-z0-9]", "a legal name", "3 to 30 lower-case letters, digits and '-'")
]
"""Name of a cluster. The length is limited because names of roles (64 characters) and load balancers (32) contain the
name."""
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
PolicyArn = Annotated[
    Line,
    matching(
        r"arn:aws[a-z-]*:iam::(?:\d{12}|aws):policy/[\w+=,.@/-]+",
        "the ARN of a policy",
        "write for example arn:aws:iam::123456789012:policy/team-boundary",
    ),
]
RolePath = Annotated[
    Line,
    matching(
        r"(?=.{1,512}\Z)/(?:[A-Za-z0-9_+=,.@-]+/)*",
        "a path of IAM",
        "it begins and ends with '/', for example /team/, and has 512 characters at most",
    ),
]
KeyArn = Annotated[
    Line,
    matching(
        r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+",
        "the ARN of a KMS key",
        "write arn:aws:kms:REGION:ACCOUNT:key/ID; policies of IAM cannot name an alias",
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
VpcId = Annotated[Line, matching(r"vpc-[0-9a-f]+", "the id of a VPC", "write for example vpc-0123456789abcdef0")]
SubnetId = Annotated[
    Line, matching(r"subnet-[0-9a-f]+", "the id of a subnet", "write for example subnet-0123456789abcdef0")
]
ImageMirror = Annotated[
    Line,
    matching(
        r"[a-z0-9.-]+(?::\d{1,5})?(?:/[a-z0-9._-]+)*",
        "a registry",
        "write for example 123456789012.dkr.ecr.us-west-2.amazonaws.com/mirror",
    ),
]
ProxyUrl = Annotated[
    Line,
    matching(
        r"http://[A-Za-z0-9.-]+:\d{1,5}/?",
        "the URL of a proxy",
        "write http://HOST:PORT; a login is not possible, because user data of nodes can be read",
    ),
]
ProxyException = Annotated[
    Line,
    matching(
        r"\.?[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?:/\d{1,2})?",
        "a host, a domain or a range of addresses",
        "write for example .corp.example.com or 10.0.0.0/8",
    ),
]
AddonVersion = Annotated[
    Line,
    matching(r"v\d+\.\d+\.\d+-eksbuild\.\d+", "the version of an EKS add-on", "write for example v1.20.4-eksbuild.2"),
]
Ami = Annotated[
    Line,
    matching(
        r"ami-[0-9a-f]{8,17}|al2023@v\d{8}|(?:/[A-Za-z0-9_.-]+)+(?::\d+)?",
        "an AMI",
        "write ami-0123456789abcdef0, al2023@v20261101, or a parameter of Systems Manager such as /team/images/gpu:3",
    ),
]
"""AMI on Amazon Linux 2023: its id, a release of EKS's own AMIs, or a parameter with an id, and its version."""
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
    """Converts `true` to a section with default values, and `false` to None."""
    if isinstance(given, bool):
        return {} if given else None
    return given


class Network(Section):
    """The VPC: a new VPC, or an existing VPC in which Windlass changes nothing."""

    vpc: VpcId | None = None
    """Id of an existing VPC, in which Windlass creates, changes and tags no subnet, route, gateway or endpoint. Needs
    `subnets`. Default: a new VPC."""
    subnets: Annotated[tuple[SubnetId, ...], OnlyList, Field(validate_default=True)] = ()
    """Ids of the subnets of `vpc` for nodes and pods, in at least two zones, which become the zones of the cluster. The
    first subnet of a zone also gets the mount targets of file systems. Default: new subnets."""
    cidr: Annotated[Line, AfterValidator(_network)] = "10.40.0.0/16"
    """Private address range of nodes and pods in a new VPC. Default `10.40.0.0/16`; choose another if networks are
    peered."""
    nat: Literal["one", "per-zone", "none"] = "one"
    """NAT gateways of a new VPC: `one`, one `per-zone`, or `none`. With `one`, if the zone of the gateway fails, the
    other zones lose Internet access. With `none`, nodes have no route to the Internet; Windlass then creates interface
    endpoints of AWS services in a new VPC, and requires them in an existing VPC. Default `one`, at a third of the price
    for three zones; an existing VPC keeps its own routes."""
    proxy: ProxyUrl | None = None
    """HTTP proxy for nodes (image pulls), the controllers that call AWS, and the pods of runs. Default: none."""
    no_proxy: Annotated[tuple[ProxyException, ...], OnlyList] = ()
    """Hosts, domains and address ranges that are reached without the proxy, in addition to those of cluster and VPC.
    Default: none."""
    public_access: Annotated[tuple[Annotated[Line, AfterValidator(_addresses)], ...], OnlyList] = ()
    """Address ranges from which the API server can be reached over the Internet. Default: none; the API server is then
    reachable only from the VPC."""

    @field_validator("subnets")
    @classmethod
    def _with_vpc(cls, subnets: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if "vpc" in info.data and bool(subnets) is not bool(info.data["vpc"]):
            raise refuse("vpc and subnets belong together", "set both for an existing VPC, or neither for a new one")
        if subnets and (len(subnets) < 2 or len(set(subnets)) != len(subnets)):
            raise refuse(
                f"expected different subnets in two zones at least, found {', '.join(subnets)}", "EKS needs two"
            )
        return subnets

    @field_validator("cidr", "nat")
    @classmethod
    def _of_a_new_vpc(cls, value: str, info: ValidationInfo) -> str:
        if value != "none" and (vpc := info.data.get("vpc")):
            raise refuse(f"is for a new VPC, and {vpc} has its own addresses and routes", "leave it out")
        return value

    @field_validator("no_proxy")
    @classmethod
    def _of_a_proxy(cls, hosts: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if hosts and "proxy" in info.data and info.data["proxy"] is None:
            raise refuse("names exceptions from a proxy, and there is none", "set proxy: http://HOST:PORT")
        return hosts

    def num_gateways(self, num_zones: int) -> int:
        """Returns the number of NAT gateways in a cluster of `num_zones` zones; 0 in an existing VPC."""
        return 0 if self.vpc or self.nat == "none" else num_zones if self.nat == "per-zone" else 1


class Access(Section):
    """Who may use the cluster, in addition to its creator."""

    admins: Annotated[tuple[Arn, ...], OnlyList] = ()
    """Roles and users with full access to the cluster. Default: none."""
    users: Annotated[tuple[Arn, ...], OnlyList] = ()
    """Roles and users that may start runs in `namespace`. Default: none."""


class Iam(Section):
    """Roles and instance profiles that are created in the account."""

    permissions_boundary: PolicyArn | None = None
    """ARN of the policy that limits the permissions of every role. Default: none."""
    path: RolePath = "/"
    """Path of every role and instance profile. Default `/`. Changing the path replaces the roles and also the
    cluster."""


class SystemNodes(Section):
    """Nodes for operators and supervisors; training does not run on these nodes."""

    instances: Annotated[tuple[InstanceType, ...], OnlyList] = ("m7i.large",)
    """Instance types, in order of preference. Default `[m7i.large]`."""
    min: Annotated[StrictInt, Field(ge=1, le=100)] = 2
    """Minimum number of nodes, which always run. Default 2, so that one node can be replaced."""
    max: Annotated[StrictInt, Field(ge=1, le=100, validate_default=True), AfterValidator(not_below_min)] = 4
    """Maximum number of nodes. Default 4."""
    disk: Disk = 50 * GIB
    """Disk size of each node. Default 50 GiB."""
    ami: Ami | None = None
    """AMI of the nodes, as for a pool. Default: the current release of EKS's AMI when the nodes are made."""


class GpuPool(Section):
    """Nodes for training; the pool scales down to `min` while no job needs it."""

    name: PoolName
    """Name of the pool, and value of the label `windlass.dev/pool` on its nodes."""
    instances: Annotated[tuple[InstanceType, ...], OnlyList, Field(min_length=1)]
    """Instance types, such as `[g5.12xlarge]`."""
    provision: Literal["karpenter", "node-group"] = "karpenter"
    """How nodes are started: by Karpenter when pods are pending, or as a managed node group of `min` nodes. Default
    `karpenter`; a capacity block, and EFA in a placement group, need `node-group`."""
    capacity: Literal["on-demand", "spot", "capacity-block"] = "on-demand"
    """Purchase option of the nodes. Default `on-demand`."""
    reservation: (
        Annotated[Line, matching(r"cr-[0-9a-f]+", "a capacity reservation", "write for example cr-0123456789abcdef0")]
        | None
    ) = None
    """Id of the purchased capacity block. Default: none."""
    min: Few = 0
    """Minimum number of nodes of a node group, which always run and are billed. Default 0."""
    max: Annotated[StrictInt, Field(ge=1, le=1000, validate_default=True), AfterValidator(not_below_min)] = 4
    """Maximum number of nodes. Default 4."""
    zone: Zone | None = None
    """Availability zone of all nodes of the pool. Default: any, or the first one if nodes share a placement group or
    FSx."""
    efa: StrictBool | None = None
    """Whether nodes of a node group get Elastic Fabric Adapters. Default: yes if the first instance type supports such
    adapters."""
    disk: Disk = 200 * GIB
    """Disk size of each node; images are unpacked to this disk. Default 200 GiB."""
    ami: Ami | None = None
    """AMI of the nodes, built on EKS's AMI for Amazon Linux 2023: an id, a release (`al2023@v20261101`), or a parameter
    of Systems Manager, with a version (`/team/images/gpu:3`) or without. Default: the current release of EKS's AMI."""
    labels: Mapping[LabelKey, LabelValue] = Field(default_factory=dict)
    """Additional labels of the nodes. Default: none."""

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


class Efs(Section):
    """A file system (EFS) that all pods share, for code, checkpoints and results."""

    throughput: Literal["elastic", "bursting"] = "elastic"
    """Throughput mode: `elastic` is billed by bytes read and written, `bursting` scales with the bytes stored. Default
    `elastic`."""


class Fsx(Section):
    """A parallel file system (FSx for Lustre) in the zone of the GPU nodes, linked to the bucket."""

    size: Annotated[Size, Field(ge=1200 * GIB)] = 1200 * GIB
    """Capacity: 1200 GiB, or a multiple of 2400 GiB. Default 1200 GiB."""
    deployment: Literal["scratch-2", "persistent-2"] = "scratch-2"
    """Deployment type; `scratch-2` does not replicate data, and is cheaper. Default `scratch-2`."""
    throughput: Literal[125, 250, 500, 1000] | None = None
    """Throughput in MB/s per TiB, only for `persistent-2`. Default 125."""
    prefix: Annotated[Line, matching(r"[\w./-]*[\w./-]", "a prefix of a bucket", "write for example datasets/")] = (
        "fsx/"
    )
    """Prefix in the bucket whose objects the file system shows, and to which it writes changes. Default `fsx/`."""
    export: StrictBool = True
    """Whether new and changed files are written to the bucket. Default true."""
    export_deleted: StrictBool = False
    """Whether deleting a file also deletes it from the bucket. Default false."""

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


class Storage(Section):
    """Storage that pods read and write."""

    efs: Annotated[Efs | None, BeforeValidator(_yes_or_more)] = None
    """EFS, a shared file system: `true`, or its settings. Default: none."""
    fsx: Annotated[Fsx | None, BeforeValidator(_yes_or_more)] = None
    """FSx for Lustre, a parallel file system: `true`, or its settings. Default: none, because it costs most
    while idle."""
    s3_files: StrictBool = False
    """Whether the bucket can be mounted as files (Amazon S3 Files). Default false."""
    mountpoint: StrictBool = False
    """Whether pods can mount the bucket with Mountpoint for Amazon S3, for `via: mount`. Default false."""
    bucket: BucketName | None = None
    """Name of the bucket for data, code and results. The bucket is created if it does not exist; an existing bucket
    without the tag of this cluster is used and not changed. Default `windlass-NAME-ACCOUNT`."""

    @property
    def needs_key(self) -> bool:
        """Whether one of the file systems is encrypted by a customer managed key."""
        return bool(self.efs or self.s3_files or (self.fsx and self.fsx.deployment == "persistent-2"))


class Encryption(Section):
    """Existing KMS keys by purpose. They are used, and never changed, tagged or deleted; their key policies must allow
    it."""

    secrets: KeyArn | None = None
    """Key of the Secrets of Kubernetes. Default: a new key."""
    logs: KeyArn | None = None
    """Key of the log groups. Default: a new key."""
    file_systems: KeyArn | None = None
    """Key of EFS, S3 Files and FSx `persistent-2`. Default: a new key, if the cluster has one of these."""
    registry: KeyArn | None = None
    """Key of the image repositories. Default: a new key."""
    bucket: KeyArn | None = None
    """Key of the bucket. Default: a new key, which is kept with the bucket."""
    disks: KeyArn | None = None
    """Key of the disks of nodes and of volumes (EBS). Default: the account's default key for EBS."""

    @property
    def keys(self) -> dict[str, str]:
        """The existing keys, by purpose."""
        return {purpose: arn for purpose in type(self).model_fields if (arn := getattr(self, purpose))}


class Budget(Section):
    """An alarm on the monthly costs of the account."""

    limit: Annotated[StrictInt, Field(ge=1)]
    """Monthly limit in US dollars."""
    email: Annotated[Word, matching(r"[^@\s]+@[^@\s]+\.[^@\s]+", "an e-mail address", "")]
    """E-mail address that is notified at 80 % of the limit, and when the forecast exceeds the limit."""


class State(Section):
    """S3 location of the Terraform state."""

    bucket: BucketName
    """Name of an existing bucket with versioning, because the state is the only list of the created resources."""
    prefix: Annotated[Line, matching(r"[\w./-]*[\w.-]", "a prefix of a bucket", "write for example windlass")] = (
        "windlass"
    )
    """Prefix of the state's object, PREFIX/NAME.tfstate. Default `windlass`."""
    region: Region | None = None
    """Region of the bucket. Default: the region of the cluster."""


class Cluster(Document):
    """An EKS cluster for training."""

    name: ClusterName
    """Name of the cluster, and prefix of the names of all its resources."""
    region: Region
    """AWS region."""
    zones: Annotated[tuple[Zone, ...], OnlyList] = ()
    """Availability zones, at least two. Default: three zones of the region, or the zones of `network.subnets`."""
    kubernetes: Version = "1.35"
    """Kubernetes version. Default `1.35`."""
    network: Network = Field(default_factory=Network)
    """Settings of the VPC. Default: a new VPC, 10.40.0.0/16, with one NAT gateway."""
    access: Access = Field(default_factory=Access)
    """Who may use the cluster. Default: only its creator."""
    iam: Iam = Field(default_factory=Iam)
    """Roles that are created in the account. Default: without a permissions boundary, and with the path `/`."""
    namespace: Namespace = "training"
    """Namespace for runs. Default `training`."""
    system: SystemNodes = Field(default_factory=SystemNodes)
    """Nodes for operators. Default: 2 to 4 nodes of type m7i.large."""
    gpus: Annotated[tuple[GpuPool, ...], OnlyList] = ()
    """Node pools for training. Default: none."""
    storage: Storage = Field(default_factory=Storage)
    """Storage that pods read and write. Default: only the bucket."""
    encryption: Encryption = Field(default_factory=Encryption)
    """KMS keys. Default: a new key for each purpose, and the account's default key for EBS."""
    repositories: Annotated[tuple[RepositoryName, ...], OnlyList] = ()
    """Image repositories (ECR). Default: one repository with the name of the cluster."""
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
    """Components to install in the cluster. Default: all that Windlass supports."""
    image_mirror: ImageMirror | None = None
    """Registry, or registry and prefix, with copies of the components' images under their whole names, such as
    `MIRROR/registry.k8s.io/jobset/jobset`. Default: none; nodes pull from the registries of the projects."""
    addons: Mapping[Addon, AddonVersion] = Field(default_factory=dict)
    """Versions of EKS add-ons. Default: EKS's defaults for the version of Kubernetes, and the newest EFS driver, chosen
    when the cluster is made or `kubernetes` changes, and kept by later commands."""
    sagemaker: StrictBool = False
    """Whether to create a role for SageMaker training jobs that read and write the bucket. Default false."""
    log_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731] = 365
    """Days for which control plane logs are kept. Default 365."""
    budget: Budget | None = None
    """An alarm on the monthly costs of the account. Default: none."""
    tags: Mapping[TagKey, TagValue] = Field(default_factory=dict)
    """Tags of all resources, for cost reports. Default: only Windlass's own tags."""
    state: State | None = None
    """S3 location of the Terraform state. Default: the cluster's folder on this machine, which other machines cannot
    read."""

    @field_validator("zones")
    @classmethod
    def _several(cls, zones: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        region = info.data.get("region")
        if zones and (len(zones) < 2 or len(set(zones)) != len(zones)):
            raise refuse(f"expected two different zones at least, found {', '.join(zones)}", "EKS needs two")
        if elsewhere := [zone for zone in zones if region and zone[:-1] != region]:
            raise refuse(f"{', '.join(elsewhere)} is not in {region}")
        return zones

    @field_validator("network")
    @classmethod
    def _zones_of_subnets(cls, network: Network, info: ValidationInfo) -> Network:
        if network.vpc and info.data.get("zones"):
            raise refuse(f"the subnets in {network.vpc} are in zones of their own", "leave out zones")
        return network

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

    @field_validator("encryption")
    @classmethod
    def _used(cls, encryption: Encryption, info: ValidationInfo) -> Encryption:
        region, storage = info.data.get("region"), info.data.get("storage")
        for purpose, arn in encryption.keys.items():
            if region and arn.split(":")[3] != region:
                raise refuse(f"{purpose}: {arn} is not in {region}", "services use keys of their own region alone")
        if encryption.file_systems and storage and not storage.needs_key:
            raise refuse(
                "file_systems: no file system of this cluster uses a key of its own",
                "EFS, S3 Files and FSx persistent-2 do, scratch-2 does not; leave it out",
            )
        return encryption

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

    @field_validator("addons")
    @classmethod
    def _installed(cls, addons: Mapping[str, str], info: ValidationInfo) -> Mapping[str, str]:
        storage = info.data.get("storage")
        optional = (
            {}
            if storage is None
            else {
                "aws-efs-csi-driver": storage.efs is not None or storage.s3_files,
                "aws-fsx-csi-driver": storage.fsx is not None,
                "aws-mountpoint-s3-csi-driver": storage.mountpoint,
            }
        )
        if absent := [name for name in addons if not optional.get(name, True)]:
            raise refuse(f"{absent[0]} is not installed, because storage has no such file system", "leave it out")
        return addons

    @property
    def endpoint_services(self) -> tuple[str, ...]:
        """AWS services of the interface endpoints that Terraform creates; empty unless a new VPC has no NAT gateway."""
        return () if self.network.vpc or self.network.nat != "none" else self.called_services

    @property
    def called_services(self) -> tuple[str, ...]:
        """AWS services that nodes, add-ons and components call from the VPC, except S3, as in names of endpoints."""
        storage = self.storage
        return (
            *("ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "sts"),
            *(("sqs", "ssm") if "karpenter" in self.components else ()),
            *(("elasticloadbalancing",) if "aws-load-balancer-controller" in self.components else ()),
            *(("elasticfilesystem",) if storage.efs is not None or storage.s3_files else ()),
            *(("fsx",) if storage.fsx is not None else ()),
        )

    @property
    def existing(self) -> frozenset[str]:
        """Ids and ARNs of objects of others that the cluster uses: the permissions boundary, KMS keys and AMIs."""
        keys = self.encryption.keys.values()
        found = {self.iam.permissions_boundary, *keys, *(arn.rpartition("/")[2] for arn in keys), *self.amis}
        return frozenset(one for one in found if one)

    @property
    def amis(self) -> tuple[str, ...]:
        """AMIs of system nodes and pools, as written."""
        return tuple(ami for ami in (self.system.ami, *(pool.ami for pool in self.gpus)) if ami)

    @property
    def ami_parameters(self) -> tuple[str, ...]:
        """Names of the Systems Manager parameters of AMIs, without their version."""
        amis = {ami.partition(":")[0] for ami in self.amis if ami.startswith("/")}
        return tuple(sorted(amis))

    @property
    def new_keys(self) -> tuple[str, ...]:
        """Purposes for which a new KMS key is created, at the price of one key each."""
        purposes = ("secrets", "logs", "registry", "bucket", *(["file_systems"] if self.storage.needs_key else []))
        return tuple(purpose for purpose in purposes if purpose not in self.encryption.keys)

    @property
    def node_groups(self) -> tuple[GpuPool, ...]:
        """Pools that are managed node groups."""
        return tuple(pool for pool in self.gpus if pool.provision == "node-group")

    @property
    def karpenter_pools(self) -> tuple[GpuPool, ...]:
        """Pools whose nodes are started by Karpenter."""
        return tuple(pool for pool in self.gpus if pool.provision == "karpenter")
