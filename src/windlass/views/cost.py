"""The cost of a run, as `windlass cost` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.runs.ledger import Billed, Cost, Ledger
from windlass.runs.phase import Phase


@dataclass(frozen=True, slots=True)
class CostReport:
    """The cost of a run."""

    id: str
    phase: Phase
    ledger: Ledger
    cost: Cost | None
    """Null where the target has no price."""
    billed: Billed | None = None
    """Null where the target reports nothing of that."""
