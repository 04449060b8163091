"""Terraform resource types that recovery can find in AWS."""

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
"""Finder of each resource type."""
LISTERS: Final[Mapping[str, Lister]] = {**network.LISTERS, **identity.LISTERS, **storage.LISTERS}
"""Lister of each resource type whose names are not unique in AWS."""
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
"""Types that create no AWS object: they adopt a default object of the VPC, or exist only in the state."""
COMPLETE_BY_NAME: Final = frozenset({"aws_sqs_queue"})
"""Types without a status whose creation is complete after a single call; afterwards Terraform only waits for
consistency."""
