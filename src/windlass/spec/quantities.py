"""Parses resource quantities of Kubernetes (`500m`, `16Gi`, `2e3`) into numbers, cores and bytes."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_QUANTITY: Final = re.compile(r"\s*\+?([0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,2}))?([numkMGTPE]|[KMGTPE]i)?\s*")
_FACTORS: Final = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{letter: Decimal(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Decimal(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}
_LONGEST: Final = 40


def exact(given: str | int | float | None) -> Decimal | None:
    """Parses a quantity as a decimal number; None if the quantity is invalid."""
    match = _QUANTITY.fullmatch(str(given)) if given is not None and len(str(given)) <= _LONGEST else None
    if match is None:
        return None
    number, exponent, unit = match.groups()
    return Decimal(number) * Decimal(10) ** int(exponent or 0) * _FACTORS[unit or ""]


def amount(given: str | int | float | None) -> float:
    """Parses a quantity reported by a cluster as a number; 0 if the quantity is invalid."""
    return float(exact(given) or 0)


def whole(given: str | int | float | None) -> int | None:
    """Parses a quantity of whole units, such as GPUs; None if the quantity is invalid or a fraction."""
    found = exact(given)
    return int(found) if found is not None and found == found.to_integral_value() else None


def cores(given: str | int | float | None) -> float | None:
    """Parses a quantity as CPU cores; None if the quantity is invalid."""
    found = exact(given)
    return None if found is None else float(found)


def size(given: str | int | float | None) -> int | None:
    """Parses a quantity as bytes, rounded up; None if the quantity is invalid."""
    found = exact(given)
    return None if found is None else int(found.to_integral_value(rounding="ROUND_CEILING"))
