"""Results of checks on a machine or a cluster, and of its set-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    level: Level
    """`fail`: no run can go well; `warn`: some runs cannot."""
    found: str
    fix: str = ""
    """What to do about it; empty where nothing needs to be done."""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """What the set-up of a target did with one object."""

    kind: str
    """Such as `ServiceAccount`."""
    name: str
    change: Literal["created", "changed", "kept", "removed", "absent"]
    """`kept`: it was as it should be; `absent`: there was none to remove."""
