"""The types of Terraform resources that recovery can find in AWS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from windlass.clusters.recovery import identity, network, services, storage
from windlass.clusters.recovery.search import Finder, Lister

FINDERS: Final[Mapping[str, Finder]] = {
    **network.FINDERS,
    **identity.FINDERS,
    **storage.FINDERS,
    **services.FINDERS,
}
"""By type: finds what exists for planned attributes."""
LISTERS: Final[Mapping[str, Lister]] = {**network.LISTERS, **identity.LISTERS, **storage.LISTERS}
"""By type: lists all with the cluster's tag, for types whose names AWS does not keep unique."""
WITHOUT_OBJECT: Final = frozenset(
    {
        "aws_default_security_group",
        "aws_default_route_table",
        "aws_default_network_acl",
        "terraform_data",
        "random_id",
        "null_resource",
        "aws_iam_role_policies_exclusive",
        "aws_iam_role_policy_attachments_exclusive",
    }
)
"""Types whose creation makes nothing in AWS: they adopt what the VPC brings along, or are only in the state."""
COMPLETE_BY_NAME: Final = frozenset({"aws_sqs_queue"})
"""Types without a status that one call creates completely: Terraform waits after it for the answer to be consistent."""
