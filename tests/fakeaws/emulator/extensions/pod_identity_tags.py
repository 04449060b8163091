"""Tags of pod identity associations, which ministack keeps and does not let change."""

from __future__ import annotations

from typing import Any

from ministack.services import eks


def extend() -> None:
    """Let TagResource, UntagResource and ListTagsForResource take the ARN of an association."""
    resolve = eks._resolve_tag_resource_arn

    def resolved(arn: str) -> Any:
        if ":podidentityassociation/" not in arn:
            return resolve(arn)
        for association in eks._pod_identity_associations.values():
            if association["associationArn"] == arn:
                eks._tags[arn] = association["tags"]  # one dictionary, so that descriptions have what is changed
                return arn, None
        return None, eks._tag_resource_not_found(arn)

    eks._resolve_tag_resource_arn = resolved
