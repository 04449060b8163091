"""What a run has cost: what `windlass cost` prints."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.runs.ledger import Billed, Cost, Ledger
from windlass.runs.phase import Phase


@dataclass(frozen=True, slots=True)
class CostReport:
    """What a run has cost."""

    id: str
    phase: Phase
    ledger: Ledger
    cost: Cost | None
    """Null where the target has no price."""
    billed: Billed | None = None
    """Null where the target reports nothing of that."""
