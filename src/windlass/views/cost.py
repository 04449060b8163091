"""Cost of a run: output of `windlass cost`."""

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
    """Cost so far; null if the target has no price."""
    billed: Billed | None = None
    """Billed time reported by the target; null if it reports none."""
