"""Reasons for policy actions that no recorded life cycle in the emulator called; test_life.py compares both.

recorded.json contains the calls of: up, status, a change of everything that can change in place, recovery after a kill,
down with the bucket, audit.
"""

from __future__ import annotations

from typing import Final

from windlass.clusters.policies.statement import actions

_CHANGES: Final = "a change of the cluster file that the recorded life does not make"
_FSX: Final = "FSx is left out of the recorded life, for provider 5.100 waits ten minutes at its end; tested by itself"
_THROUGH: Final = "a service of AWS calls it with the caller's rights, and the emulated one does not"
_CLOUD_CONTROL: Final = "S3 Files is not in the emulator"
_STATE: Final = "for a state in a bucket; the recorded life has a local one; tested by itself"
_LAUNCH: Final = "EKS tries a launch template with the caller's rights, and the emulated one does not"

UNSEEN: Final[dict[str, str]] = {
    "ec2:RunInstances": _LAUNCH,
    **dict.fromkeys(
        actions("ec2", "CreateNetworkInterface", "DeleteNetworkInterface", "GetSecurityGroupsForVpc",
                "ModifyNetworkInterfaceAttribute"), _THROUGH,
    ),
    "iam:CreateServiceLinkedRole": _THROUGH,
    **dict.fromkeys(
        actions("kms", "CreateGrant", "Decrypt", "GenerateDataKeyWithoutPlaintext", "RetireGrant"), _THROUGH
    ),
    **dict.fromkeys(
        actions("fsx", "CreateDataRepositoryAssociation", "CreateDataRepositoryTask", "CreateFileSystem",
                "DeleteDataRepositoryAssociation", "DeleteFileSystem", "DescribeDataRepositoryAssociations",
                "DescribeDataRepositoryTasks", "DescribeFileSystems", "ListTagsForResource", "TagResource",
                "UntagResource", "UpdateDataRepositoryAssociation", "UpdateFileSystem"), _FSX,
    ),
    **dict.fromkeys(
        actions("s3files", "CreateFileSystem", "CreateMountTarget", "DeleteFileSystem", "DeleteMountTarget",
                "GetFileSystem", "GetMountTarget", "ListFileSystems", "ListMountTargets", "ListTagsForResource",
                "TagResource", "UntagResource", "UpdateMountTarget"), _CLOUD_CONTROL,
    ),
    **dict.fromkeys(
        actions("cloudformation", "CreateResource", "DeleteResource", "DescribeType", "GetResource",
                "GetResourceRequestStatus", "UpdateResource"), _CLOUD_CONTROL,
    ),
    **dict.fromkeys(actions("s3", "GetObject", "PutObject"), _STATE),
    "ec2:DisassociateAddress": "when an address is still in use while it is released, which the emulated one never is",
    "s3:DeleteObjectVersion": "AWS checks it where a batch of versions is deleted, and the emulator s3:DeleteObject",
    "ec2:DescribeNetworkInterfaces": "when a subnet or a group is still in use, to name what uses it",
    "ec2:ModifyVpcEndpoint": f"zones are added: {_CHANGES}",
    "eks:UpdateAddon": f"a newer version of the EFS driver: {_CHANGES}",
    **dict.fromkeys(
        actions("kms", "CancelKeyDeletion", "EnableKey"),
        "the key of a kept bucket waits for its deletion, which no recorded life does; tested by itself",
    ),
    "kms:PutKeyPolicy": f"FSx is added or removed: {_CHANGES}",
}  # fmt: skip
"""Reason for each action that is not called."""
