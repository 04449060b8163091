"""Tags of AWS: the one that names the cluster which an object belongs to, and tags in each form of AWS's services."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

OWNER: Final = "windlass.dev/cluster"
"""Set on all that Windlass makes; its value settles the question."""


def flat(tags: object) -> dict[str, str]:
    """Tags of any service as a dictionary: lists of pairs with differently named members, or a mapping."""
    if isinstance(tags, Mapping):
        return {str(key): str(value) for key, value in tags.items()}
    found: dict[str, str] = {}
    for one in tags if isinstance(tags, Collection) else ():
        key = one.get("Key", one.get("key", one.get("TagKey")))
        found[str(key)] = str(one.get("Value", one.get("value", one.get("TagValue", ""))))
    return found
