"""Parses and formats values of the API server: quantities, times, durations and conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

Json = Mapping[str, Any]
UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6}
_BINARY_UNITS: Final = {"Gi": 2.0**30, "Mi": 2.0**20}


def quantity_text(resource: str, value: float) -> str:
    """Formats a number as a Kubernetes quantity: 0.8 of `cpu` becomes `800m`, 2147483648 of `memory` becomes `2Gi`."""
    if resource == "cpu" and value != int(value):
        return f"{round(value * 1000)}m"
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        for unit, num_bytes in _BINARY_UNITS.items():
            if value >= num_bytes:
                return f"{value / num_bytes:.4g}{unit}"
    return f"{value:g}"


def seconds_of(timestamp: str | None, default: float) -> float:
    """Converts a timestamp of the API server to Unix seconds; returns the default if it is missing or invalid."""
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except ValueError:
        return default


def duration(text: str) -> float | None:
    """Converts a Go duration such as `1m2.5s` to seconds; returns None if the text is no duration."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|µs|us|h|m|s)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text.rstrip("."):
        return None
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def condition(found: Json, kind: str) -> Json:
    """Returns the condition of type `kind` of an object; empty if it has none. New objects may have no conditions."""
    return next((one for one in found.get("status", {}).get("conditions") or () if one["type"] == kind), {})


def is_on_silent_node(pod: Json) -> bool:
    """Whether the pod's node has stopped responding: the node controller sets the condition `Ready` to False without a
    reason, and a kubelet always gives a reason.
    """
    found = condition(pod, "Ready")
    return found.get("status") == "False" and not found.get("reason")


def is_true(found: Json, kind: str) -> bool:
    """Whether the condition of this type is `True`."""
    return condition(found, kind).get("status") == "True"


def event_time(event: Json) -> str:
    """Returns when an event was last reported, as a timestamp whose alphabetical order is chronological."""
    series = (event.get("series") or {}).get("lastObservedTime")
    last = series or event.get("lastTimestamp") or event.get("eventTime")
    return str(last or event["metadata"].get("creationTimestamp") or "")
