"""Result of an account check, and the fix that Windlass offers for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from windlass.errors import WindlassError

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A fix for a finding that Windlass can carry out with the user's consent."""

    question: str
    """Question to the user, such as `Request 384 vCPUs of …?`."""
    act: Callable[[], Finding]
    """Carries out the fix and returns a new finding. Raises AwsError."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    level: Level
    """`fail`: the cluster cannot be created or used. `warn`: a part of the cluster cannot, or the check gave no
    result."""
    found: str
    fix: str = ""
    offer: Offer | None = None


def unknown(name: str, error: WindlassError) -> Finding:
    """Returns a warning for a check that gave no result, neither failure nor success."""
    return Finding(name, "warn", f"unknown: {error.message}", error.hint)
