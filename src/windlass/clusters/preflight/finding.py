"""What a check of an account has found, and what Windlass can do about it where the user agrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from windlass.errors import WindlassError

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that Windlass can do about a finding; it is done after the user has agreed."""

    question: str
    """Such as `Request 384 vCPUs of …?`."""
    act: Callable[[], Finding]
    """Does it, and gives what has come of it. Raises AwsError."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: Level
    """`fail`: the cluster cannot be made or used; `warn`: a part of it cannot, or it is unknown."""
    found: str
    fix: str = ""
    offer: Offer | None = None


def unknown(name: str, error: WindlassError) -> Finding:
    """What could not be asked for: no failure of the cluster, and no success."""
    return Finding(name, "warn", f"unknown: {error.message}", error.hint)
