"""Results of checks of a machine or cluster, and of `windlass target setup`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    level: Level
    """`fail`: no run can succeed; `warn`: some runs cannot."""
    found: str
    fix: str = ""
    """How to correct what was found; empty if nothing is wrong."""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """The change that `windlass target setup` made to one object."""

    kind: str
    """Kubernetes kind, such as `ServiceAccount`."""
    name: str
    change: Literal["created", "changed", "kept", "removed", "absent"]
    """`kept`: the object needed no change; `absent`: there was no object to remove."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The checks of one target."""

    checks: Iterable[Check]
    """Results in order; a lazy iterable runs each check as it is read."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further data for `-o json`: address of the target, missing rights, network measurements."""
