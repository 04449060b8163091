"""IAM actions that Terraform needs for storage: buckets, repositories, EFS, FSx for Lustre, S3 Files, remote state."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.clusters.policies.statement import Conditions, Place, Statement, actions, both
from windlass.spec.cluster import Cluster, State

THROUGH_A_SERVICE: Conditions = {"Bool": {"aws:ViaAWSService": "true"}}


def statements(cluster: Cluster, place: Place) -> Iterator[Statement]:
    """Yields the statements for the storage that a cluster file requests."""
    yield from _bucket(place)
    yield from _repositories(place)
    if cluster.storage.efs is not None:
        yield from _efs(place)
    if cluster.storage.fsx is not None:
        yield from _fsx(place)
    if cluster.storage.s3_files:
        yield from _s3_files(place)
    if cluster.storage.efs is not None or cluster.storage.s3_files:
        yield from _mount_targets(place)
    if cluster.state is not None:
        yield from _state(cluster.state, place)


def _bucket(place: Place) -> Iterator[Statement]:
    read = ("GetAccelerateConfiguration", "GetBucketAcl", "GetBucketCORS", "GetBucketLogging",
            "GetBucketObjectLockConfiguration", "GetBucketPolicy", "GetBucketPublicAccessBlock",
            "GetBucketRequestPayment", "GetBucketTagging", "GetBucketVersioning", "GetBucketWebsite",
            "GetEncryptionConfiguration", "GetLifecycleConfiguration", "GetReplicationConfiguration", "ListBucket",
            "ListBucketVersions")  # fmt: skip
    write = (
        "CreateBucket",
        "DeleteBucket",
        "DeleteBucketPolicy",
        "PutBucketPolicy",
        "PutBucketPublicAccessBlock",
        "PutBucketTagging",
        "PutBucketVersioning",
        "PutEncryptionConfiguration",
        "PutLifecycleConfiguration",
    )
    yield Statement("OwnBucket", actions("s3", *read, *write), (place.bucket_arn,))
    yield Statement(
        "EmptyBucket",
        actions("s3", "DeleteObject", "DeleteObjectVersion"),
        (f"{place.bucket_arn}/*",),
        why="for windlass cluster down --delete-bucket; leave it out where results must not be deleted",
    )


def _repositories(place: Place) -> Iterator[Statement]:
    yield Statement(
        "OwnRepositories",
        actions(
            "ecr",
            "CreateRepository",
            "DeleteLifecyclePolicy",
            "DeleteRepository",
            "DescribeRepositories",
            "GetLifecyclePolicy",
            "ListTagsForResource",
            "PutLifecyclePolicy",
            "TagResource",
            "UntagResource",
        ),
        place.arns("ecr", *(f"repository/{name}" for name in place.repositories)),
    )


def _efs(place: Place) -> Iterator[Statement]:
    service = "elasticfilesystem"
    yield Statement("MakeEfs", actions(service, "CreateFileSystem"), conditions=both(place.new, place.here))
    things = place.arns(service, "access-point/*", "file-system/*")
    created = {"StringEquals": {f"{service}:CreateAction": ["CreateAccessPoint", "CreateFileSystem"]}}
    yield Statement("TagNewEfs", actions(service, "TagResource"), things, both(place.new, created))
    yield Statement(
        "ListEfs",
        actions(service, "DescribeAccessPoints", "DescribeFileSystems", "DescribeMountTargets"),
        conditions=place.here,
        why="they are looked for by their name before there is an id, so that all are listed",
    )
    yield Statement(
        "OwnEfs",
        actions(
            service, "CreateAccessPoint", "CreateMountTarget", "DeleteAccessPoint", "DeleteFileSystem",
            "DeleteFileSystemPolicy", "DeleteMountTarget", "DescribeFileSystemPolicy",
            "DescribeLifecycleConfiguration", "DescribeMountTargetSecurityGroups",
            "PutFileSystemPolicy", "PutLifecycleConfiguration", "TagResource", "UntagResource", "UpdateFileSystem",
        ),
        things, place.own,
    )  # fmt: skip


def _mount_targets(place: Place) -> Iterator[Statement]:
    kinds = ("network-interface", "security-group", "subnet")
    yield Statement(
        "InterfacesOfMountTargets",
        actions("ec2", "CreateNetworkInterface", "DeleteNetworkInterface", "ModifyNetworkInterfaceAttribute"),
        place.arns("ec2", *(f"{kind}/*" for kind in kinds)),
        THROUGH_A_SERVICE,
        why="a mount target is a network interface, which the file system makes by the caller's rights",
    )


def _fsx(place: Place) -> Iterator[Statement]:
    things = place.arns("fsx", "association/*/*", "file-system/*", "task/*")
    new, links = place.arns("fsx", "file-system/*"), place.arns("fsx", "association/*/*")
    yield Statement("MakeFsx", ("fsx:CreateFileSystem",), new, place.new)
    yield Statement("LinkFsx", ("fsx:CreateDataRepositoryAssociation",), links, place.new)
    yield Statement(
        "TagNewFsx",
        ("fsx:TagResource",),
        (*links, *new),
        place.new,
        why="AWS asks for it where tags are given on creation. A person with this right could tag, and so change, "
        "another file system of the region",
    )
    yield Statement(
        "ListFsx",
        actions("fsx", "DescribeDataRepositoryAssociations", "DescribeDataRepositoryTasks", "DescribeFileSystems"),
        conditions=place.here,
        why="descriptions of FSx cannot be bounded to resources",
    )
    yield Statement(
        "OwnFsx",
        actions(
            "fsx",
            "CreateDataRepositoryAssociation",
            "CreateDataRepositoryTask",
            "DeleteDataRepositoryAssociation",
            "DeleteFileSystem",
            "ListTagsForResource",
            "TagResource",
            "UntagResource",
            "UpdateDataRepositoryAssociation",
            "UpdateFileSystem",
        ),
        things,
        place.own,
    )
    yield Statement(
        "ExportFsx",
        actions("fsx", "CreateDataRepositoryTask"),
        place.arns("fsx", "task/*"),
        why="down exports what the bucket lacks; a task is new and has no tag",
    )
    yield Statement(
        "GroupsForFsx",
        ("ec2:GetSecurityGroupsForVpc",),
        place.arns("ec2", "vpc/*"),
        place.own,
        why="FSx checks the groups that it is given, by the caller's rights",
    )
    name = "s3.data-source.lustre.fsx.amazonaws.com"
    role = (place.iam(f"role/aws-service-role/{name}/AWSServiceRoleForFSxS3Access_*"),)
    why = "FSx makes a role of its own for each link to a bucket, by the caller's rights"
    yield Statement(
        "RoleOfFsxForTheBucket",
        ("iam:CreateServiceLinkedRole",),
        role,
        {"StringEquals": {"iam:AWSServiceName": name}},
        why=why,
    )
    yield Statement("RightsOfFsxOnTheBucket", actions("iam", "AttachRolePolicy", "PutRolePolicy"), role, why=why)


def _s3_files(place: Place) -> Iterator[Statement]:
    why = "S3 Files is made through the Cloud Control API, which calls it with the caller's rights"
    yield Statement(
        "CloudControl",
        actions(
            "cloudformation",
            "CreateResource",
            "DeleteResource",
            "DescribeType",
            "GetResource",
            "GetResourceRequestStatus",
            "UpdateResource",
        ),
        conditions=place.here,
        why="Cloud Control names no resource; what it does is bounded by the next statement",
    )
    yield Statement(
        "S3Files",
        actions(
            "s3files", "CreateFileSystem", "CreateMountTarget", "DeleteFileSystem", "DeleteMountTarget",
            "GetFileSystem", "GetMountTarget", "ListFileSystems", "ListMountTargets", "ListTagsForResource",
            "TagResource", "UntagResource", "UpdateMountTarget",
        ),
        place.arns("s3files", "file-system/*"), why=why,
    )  # fmt: skip


def _state(state: State, place: Place) -> Iterator[Statement]:
    bucket = f"arn:{place.partition}:s3:::{state.bucket}"
    key = f"{state.prefix.strip('/')}/{place.name}.tfstate"
    yield Statement("FindState", ("s3:ListBucket",), (bucket,))
    yield Statement(
        "OwnState",
        actions("s3", "DeleteObject", "GetObject", "PutObject"),
        (f"{bucket}/{key}", f"{bucket}/{key}.tflock"),
        why="the second object is the lock",
    )
