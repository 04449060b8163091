"""Times of the API server, conditions of an object, and quantities as text: one function for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

Json = Mapping[str, Any]
UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6}
_BINARY_UNITS: Final = {"Gi": 2.0**30, "Mi": 2.0**20}


def quantity_text(resource: str, value: float) -> str:
    """A number as Kubernetes writes quantities of a resource: 0.8 of `cpu` → `800m`, 2147483648 of `memory` → `2Gi`."""
    if resource == "cpu" and value != int(value):
        return f"{round(value * 1000)}m"
    if resource in ("memory", "ephemeral-storage"):
        for unit, num_bytes in _BINARY_UNITS.items():
            if value >= num_bytes:
                return f"{value / num_bytes:.4g}{unit}"
    return f"{value:g}"


def seconds_of(timestamp: str | None, default: float) -> float:
    """A time of the API server in Unix seconds; the default for what is none."""
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except ValueError:
        return default


def duration(text: str) -> float | None:
    """Seconds of a duration of Go, such as `1m2.5s`; None where it is none."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|µs|us|h|m|s)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text.rstrip("."):
        return None
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def condition(found: Json, kind: str) -> Json:
    """One of an object's conditions; empty where it does not have it. A new definition has `null` for all of them."""
    return next((one for one in found.get("status", {}).get("conditions") or () if one["type"] == kind), {})


def is_on_silent_node(pod: Json) -> bool:
    """Whether the node of a pod that ran does not answer: then the cluster sets `Ready` to False, and gives no reason.

    The kubelet gives one, such as for a container beside ours that is not ready.
    """
    found = condition(pod, "Ready")
    return found.get("status") == "False" and not found.get("reason")


def is_true(found: Json, kind: str) -> bool:
    """Whether one of an object's conditions holds."""
    return condition(found, kind).get("status") == "True"


def event_time(event: Json) -> str:
    """When an event was last reported; as text it sorts."""
    series = (event.get("series") or {}).get("lastObservedTime")
    last = series or event.get("lastTimestamp") or event.get("eventTime")
    return str(last or event["metadata"].get("creationTimestamp") or "")
