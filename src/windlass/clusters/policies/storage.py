"""IAM actions that Terraform needs for storage: buckets, repositories, EFS, FSx for Lustre, S3 Files, remote state."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.clusters.policies.statement import ArnScope, Conditions, Statement, actions, both
from windlass.spec.cluster import Cluster, State

THROUGH_A_SERVICE: Conditions = {"Bool": {"aws:ViaAWSService": "true"}}


def statements(cluster: Cluster, scope: ArnScope) -> Iterator[Statement]:
    """Yields the statements for the storage that a cluster file requests."""
    yield from _bucket(scope)
    yield from _repositories(scope)
    if cluster.storage.efs is not None:
        yield from _efs(scope)
    if cluster.storage.fsx is not None:
        yield from _fsx(scope)
    if cluster.storage.s3_files:
        yield from _s3_files(scope)
    if cluster.storage.efs is not None or cluster.storage.s3_files:
        yield from _mount_targets(scope)
    if cluster.state is not None:
        yield from _state(cluster.state, scope)


def _bucket(scope: ArnScope) -> Iterator[Statement]:
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
    yield Statement("OwnBucket", actions("s3", *read, *write), (scope.bucket_arn,))
    yield Statement(
        "EmptyBucket",
        actions("s3", "DeleteObject", "DeleteObjectVersion"),
        (f"{scope.bucket_arn}/*",),
        why="for windlass cluster down --delete-bucket; omit it if results must not be deleted",
    )


def _repositories(scope: ArnScope) -> Iterator[Statement]:
    yield Statement(
        "OwnRepositories",
        actions(
            "ecr",
            "CreateRepository",
            "DeleteLifecyclePolicy",
            "DeleteRepository",
            "DescribeImages",
            "DescribeRepositories",
            "GetLifecyclePolicy",
            "ListTagsForResource",
            "PutLifecyclePolicy",
            "TagResource",
            "UntagResource",
        ),
        scope.arns("ecr", *(f"repository/{name}" for name in scope.repositories)),
    )


def _efs(scope: ArnScope) -> Iterator[Statement]:
    service = "elasticfilesystem"
    yield Statement("MakeEfs", actions(service, "CreateFileSystem"), conditions=both(scope.new, scope.here))
    things = scope.arns(service, "access-point/*", "file-system/*")
    created = {"StringEquals": {f"{service}:CreateAction": ["CreateAccessPoint", "CreateFileSystem"]}}
    yield Statement("TagNewEfs", actions(service, "TagResource"), things, both(scope.new, created))
    yield Statement(
        "ListEfs",
        actions(service, "DescribeAccessPoints", "DescribeFileSystems", "DescribeMountTargets"),
        conditions=scope.here,
        why="they are searched by name before their id is known, so all are listed",
    )
    yield Statement(
        "OwnEfs",
        actions(
            service, "CreateAccessPoint", "CreateMountTarget", "DeleteAccessPoint", "DeleteFileSystem",
            "DeleteFileSystemPolicy", "DeleteMountTarget", "DescribeFileSystemPolicy",
            "DescribeLifecycleConfiguration", "DescribeMountTargetSecurityGroups",
            "PutFileSystemPolicy", "PutLifecycleConfiguration", "TagResource", "UntagResource", "UpdateFileSystem",
        ),
        things, scope.own,
    )  # fmt: skip


def _mount_targets(scope: ArnScope) -> Iterator[Statement]:
    kinds = ("network-interface", "security-group")
    yield Statement(
        "InterfacesOfMountTargets",
        actions("ec2", "CreateNetworkInterface", "DeleteNetworkInterface", "ModifyNetworkInterfaceAttribute"),
        (*scope.arns("ec2", *(f"{kind}/*" for kind in kinds)), scope.subnets_arn),
        THROUGH_A_SERVICE,
        why="a mount target is a network interface, which EFS creates with the caller's permissions",
    )


def _fsx(scope: ArnScope) -> Iterator[Statement]:
    things = scope.arns("fsx", "association/*/*", "file-system/*", "task/*")
    new, links = scope.arns("fsx", "file-system/*"), scope.arns("fsx", "association/*/*")
    yield Statement("MakeFsx", ("fsx:CreateFileSystem",), new, scope.new)
    yield Statement("LinkFsx", ("fsx:CreateDataRepositoryAssociation",), links, scope.new)
    yield Statement(
        "TagNewFsx",
        ("fsx:TagResource",),
        (*links, *new),
        scope.new,
        why="AWS requires it for tags on creation. A user with this permission could tag, and so change, "
        "another file system of the region",
    )
    yield Statement(
        "ListFsx",
        actions("fsx", "DescribeDataRepositoryAssociations", "DescribeDataRepositoryTasks", "DescribeFileSystems"),
        conditions=scope.here,
        why="FSx Describe actions cannot be limited to resources",
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
        scope.own,
    )
    yield Statement(
        "ExportFsx",
        actions("fsx", "CreateDataRepositoryTask"),
        scope.arns("fsx", "task/*"),
        why="down exports files that are not in the bucket; a new task has no tag",
    )
    yield Statement(
        "GroupsForFsx",
        ("ec2:GetSecurityGroupsForVpc",),
        (scope.vpc_arn,) if scope.vpc else scope.arns("ec2", "vpc/*"),
        {} if scope.vpc else scope.own,
        why="FSx checks security groups with the caller's permissions",
    )
    name = "s3.data-source.lustre.fsx.amazonaws.com"
    role = (scope.iam(f"role/aws-service-role/{name}/AWSServiceRoleForFSxS3Access_*"),)
    why = "FSx makes a role of its own for each link to a bucket, by the caller's rights"
    yield Statement(
        "RoleOfFsxForTheBucket",
        ("iam:CreateServiceLinkedRole",),
        role,
        {"StringEquals": {"iam:AWSServiceName": name}},
        why=why,
    )
    yield Statement("RightsOfFsxOnTheBucket", actions("iam", "AttachRolePolicy", "PutRolePolicy"), role, why=why)


def _s3_files(scope: ArnScope) -> Iterator[Statement]:
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
        conditions=scope.here,
        why="Cloud Control does not support resources; the next statement limits its actions",
    )
    yield Statement(
        "S3Files",
        actions(
            "s3files", "CreateFileSystem", "CreateMountTarget", "DeleteFileSystem", "DeleteMountTarget",
            "GetFileSystem", "GetMountTarget", "ListFileSystems", "ListMountTargets", "ListTagsForResource",
            "TagResource", "UntagResource", "UpdateMountTarget",
        ),
        scope.arns("s3files", "file-system/*"), why=why,
    )  # fmt: skip


def _state(state: State, scope: ArnScope) -> Iterator[Statement]:
    bucket = f"arn:{scope.partition}:s3:::{state.bucket}"
    key = f"{state.prefix.strip('/')}/{scope.name}.tfstate"
    yield Statement("FindState", ("s3:ListBucket",), (bucket,))
    yield Statement(
        "OwnState",
        actions("s3", "DeleteObject", "GetObject", "PutObject"),
        (f"{bucket}/{key}", f"{bucket}/{key}.tflock"),
        why="the second object is the lock",
    )
