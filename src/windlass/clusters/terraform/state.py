"""Parses a state as printed by `terraform state pull` (version 4) into resources with addresses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.clusters.terraform.errors import TerraformError


@dataclass(frozen=True, slots=True)
class StateResource:
    """One instance of a resource in the state."""

    address: str
    type: str
    mode: str
    """`managed` or `data`."""
    id: str
    is_tainted: bool
    values: Mapping[str, Any] = field(repr=False)
    """All attributes, including sensitive ones: must not be printed."""


def state_resources(text: str) -> list[StateResource]:
    """Parses the resources of a state. An empty text, which stands for a state that was never written, has none.

    Raises TerraformError if the text is not a state of version 4.
    """
    if not text.strip():
        return []
    try:
        found = json.loads(text)
        if found["version"] != 4:
            raise TerraformError(f"the state has version {found['version']}, and Windlass reads version 4")
        return [one for resource in found.get("resources") or () for one in _instances(resource)]
    except (ValueError, KeyError, TypeError) as error:
        raise TerraformError(f"the state cannot be read: {error!r}") from error


def _instances(resource: Mapping[str, Any]) -> Iterator[StateResource]:
    mode = resource["mode"]
    parts = [resource.get("module"), "data" if mode == "data" else None, resource["type"], resource["name"]]
    base = ".".join(part for part in parts if part)
    for one in resource["instances"]:
        if one.get("deposed"):
            continue
        key = one.get("index_key")
        values = one.get("attributes") or {}
        yield StateResource(
            address=base if key is None else f"{base}[{json.dumps(key)}]",
            type=resource["type"],
            mode=mode,
            id=str(values.get("id") or ""),
            is_tainted=one.get("status") == "tainted",
            values=values,
        )
