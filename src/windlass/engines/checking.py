"""What a look at a machine or a cluster finds, one thing at a time."""

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
    """What to do about it; empty where nothing is to be done."""
