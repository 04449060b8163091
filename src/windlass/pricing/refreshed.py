"""Reads and writes `prices.json`, the prices that `windlass prices update` fetched, by region and date."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from windlass.errors import StoreError
from windlass.pricing.price import Price, SpotRange
from windlass.pricing.table import Table, embedded

FILE: Final = "prices.json"
FORMAT: Final = 1
MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class RegionPrices:
    """The fetched prices of one region."""

    region: str
    date: str
    """ISO date of the fetch."""
    source: str
    figures: Mapping[str, Price] = field(default_factory=dict)
    """Prices by name, such as `ec2.g5.12xlarge`."""
    spot: Mapping[str, SpotRange] = field(default_factory=dict)
    """Spot prices by instance type."""


def load(home: Path) -> Table:
    """Returns the embedded table merged with newer prices fetched into `home`. Raises StoreError."""
    fetched = read(home)
    return embedded().merged(fetched) if fetched.prices or fetched.spot else embedded()


def read(home: Path) -> Table:
    """Returns the prices fetched into `home`; an empty table before the first fetch. Raises StoreError for a broken
    file.
    """
    parts = _regions(home / FILE)
    prices: dict[tuple[str, str], Price] = {}
    spot: dict[tuple[str, str], SpotRange] = {}
    try:
        for region, part in parts.items():
            date, source = str(part["date"]), str(part["source"])
            for name, (usd, unit) in part["figures"].items():
                prices[region, name] = Price(float(usd), str(unit), source, date, region)
            for name, (low, high, days) in part.get("spot", {}).items():
                ends = [Price(float(usd), "hour", str(part["spot_source"]), date, region) for usd in (low, high)]
                spot[region, name] = SpotRange(ends[0], ends[1], int(days))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(home / FILE, f"{type(error).__name__}: {error}") from error
    return Table(prices, spot)


def write(home: Path, fetched: RegionPrices, spot_source: str) -> Path:
    """Replaces the prices of a region atomically. Raises StoreError."""
    path = home / FILE
    parts = {
        **_regions(path),
        fetched.region: {
            "date": fetched.date,
            "source": fetched.source,
            "spot_source": spot_source,
            "figures": {name: [price.amount_usd, price.unit] for name, price in sorted(fetched.figures.items())},
            "spot": {
                name: [one.low.amount_usd, one.high.amount_usd, one.days] for name, one in sorted(fetched.spot.items())
            },
        },
    }
    text = json.dumps({"format": FORMAT, "regions": parts}, indent=0)
    try:
        home.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=home, prefix=f".{FILE}.")
        try:
            with os.fdopen(handle, "w") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def _regions(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _unreadable(path, f"larger than {MAX_BYTES >> 20} MiB")
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error
    if not isinstance(found, dict) or not isinstance(found.get("regions"), dict):
        raise _unreadable(path, "not a list of regions")
    if found.get("format") != FORMAT:
        raise _unreadable(path, f"format {found.get('format')!r}, expected {FORMAT}")
    return dict(found["regions"])


def _unreadable(path: Path, why: str) -> StoreError:
    return StoreError(f"{path} cannot be read: {why}", f"remove it: rm {path}; then: windlass prices update")
