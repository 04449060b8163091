"""AWS tags: the tag that names the cluster of an object, and tags in the format of each service."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

OWNER: Final = "windlass.dev/cluster"
"""Tag on every object that Windlass creates; its value outweighs all other evidence of ownership."""

EXISTING_VPC: Final = "windlass.dev/existing-vpc"
"""Tag on an EKS cluster in a VPC that others own, so that an audit from any machine leaves the VPC to them."""


def flat(tags: object) -> dict[str, str]:
    """Converts the tags of any service to a dictionary, from a mapping or from pairs with differently named members."""
    if isinstance(tags, Mapping):
        return {str(key): str(value) for key, value in tags.items()}
    found: dict[str, str] = {}
    for one in tags if isinstance(tags, Collection) else ():
        key = one.get("Key", one.get("key", one.get("TagKey")))
        found[str(key)] = str(one.get("Value", one.get("value", one.get("TagValue", ""))))
    return found
