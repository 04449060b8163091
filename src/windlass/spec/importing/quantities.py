"""Turns quantities of Kubernetes (`500m`, `16Gi`, `2e3`) into numbers, and durations of others into seconds."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_QUANTITY: Final = re.compile(r"\s*\+?([0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,2}))?([numkMGTPE]|[KMGTPE]i)?\s*")
_FACTORS: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    **{f"{letter}i": Decimal(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}
_LONGEST: Final = 40


def amount(given: str | int | float | None) -> Decimal | None:
    """A quantity as a number; None for what is none."""
    match = _QUANTITY.fullmatch(str(given)) if given is not None and len(str(given)) <= _LONGEST else None
    if match is None:
        return None
    number, exponent, unit = match.groups()
    return Decimal(number) * Decimal(10) ** int(exponent or 0) * _FACTORS.get(unit or "", Decimal(1))


def whole(given: str | int | float | None) -> int | None:
    """A quantity of things that come whole; None for what is none."""
    found = amount(given)
    return int(found) if found is not None and found == found.to_integral_value() else None


def cores(given: str | int | float | None) -> float | None:
    """Processor cores of a quantity."""
    found = amount(given)
    return None if found is None else float(found)


def size(given: str | int | float | None) -> int | None:
    """Bytes of a quantity, a part of one rounded up."""
    found = amount(given)
    return None if found is None else int(found.to_integral_value(rounding="ROUND_CEILING"))
