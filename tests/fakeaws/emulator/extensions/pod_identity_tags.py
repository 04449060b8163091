"""Tags of pod identity associations, which ministack stores but cannot change."""

from __future__ import annotations

from typing import Any

from ministack.services import eks


def extend() -> None:
    """Lets TagResource, UntagResource and ListTagsForResource accept the ARN of an association."""
    resolve = eks._resolve_tag_resource_arn

    def resolved(arn: str) -> Any:
        if ":podidentityassociation/" not in arn:
            return resolve(arn)
        for association in eks._pod_identity_associations.values():
            if association["associationArn"] == arn:
                eks._tags[arn] = association["tags"]  # shares one dictionary, so descriptions show changed tags
                return arn, None
        return None, eks._tag_resource_not_found(arn)

    eks._resolve_tag_resource_arn = resolved
