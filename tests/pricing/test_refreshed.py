"""Fetched prices are stored in a file, and the newer price wins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.errors import StoreError
from windlass.pricing import refreshed
from windlass.pricing.price import Price, SpotRange
from windlass.pricing.refreshed import RegionPrices
from windlass.pricing.table import Table, embedded


def price(usd: float, date: str, region: str = "us-east-1") -> Price:
    return Price(usd, "hour", "a test", date, region)


def part(region: str = "us-east-1", date: str = "2030-01-01", usd: float = 1.5) -> RegionPrices:
    spot = SpotRange(price(0.5, date, region), price(0.9, date, region), 7)
    return RegionPrices(region, date, "a test", {"ec2.g5.xlarge": price(usd, date, region)}, {"g5.xlarge": spot})


def test_written_prices_are_read_back(tmp_path: Path) -> None:
    path = refreshed.write(tmp_path / "home", part(), "history")
    assert path == tmp_path / "home" / "prices.json"
    found = refreshed.load(tmp_path / "home")
    assert found.on_demand("g5.xlarge", "us-east-1") == price(1.5, "2030-01-01")
    spot = found.spot_range("g5.xlarge", "us-east-1")
    assert spot is not None
    assert (spot.low.amount_usd, spot.high.amount_usd, spot.days, spot.low.source) == (0.5, 0.9, 7, "history")
    assert [one.name for one in path.parent.iterdir()] == ["prices.json"]  # no temporary file is left


def test_prices_are_stored_and_replaced_per_region(tmp_path: Path) -> None:
    refreshed.write(tmp_path, part("eu-west-1"), "")
    refreshed.write(tmp_path, part(), "")
    refreshed.write(tmp_path, part("eu-west-1", "2030-02-02", 2.5), "")
    found = refreshed.load(tmp_path)
    assert found.on_demand("g5.xlarge", "eu-west-1") == price(2.5, "2030-02-02", "eu-west-1")
    assert found.on_demand("g5.xlarge", "us-east-1") == price(1.5, "2030-01-01")


def test_newer_price_wins(tmp_path: Path) -> None:
    known = embedded().on_demand("g5.xlarge", "us-east-1")
    assert known is not None
    refreshed.write(tmp_path, part(date="2020-01-01"), "")
    assert refreshed.load(tmp_path).on_demand("g5.xlarge", "us-east-1") == known
    refreshed.write(tmp_path, part(date=known.date), "")
    assert refreshed.load(tmp_path).on_demand("g5.xlarge", "us-east-1") == price(1.5, known.date)


def test_prices_that_were_not_fetched_come_from_the_embedded_table(tmp_path: Path) -> None:
    refreshed.write(tmp_path, part(), "")
    found, known = refreshed.load(tmp_path), embedded()
    assert found.on_demand("p5.48xlarge", "us-east-1") == known.on_demand("p5.48xlarge", "us-east-1")
    assert refreshed.load(tmp_path / "other") is known


def test_newer_price_of_a_region_replaces_the_price_for_all_regions() -> None:
    everywhere = Table({("*", "kms.key"): price(1.0, "2026-01-01", "*")})
    older = everywhere.merged(Table({("r-1", "kms.key"): price(2.0, "2025-01-01", "r-1")}))
    newer = everywhere.merged(Table({("r-1", "kms.key"): price(3.0, "2027-01-01", "r-1")}))
    assert [one.charge("kms.key", "r-1").amount_usd for one in (older, newer)] == [1.0, 3.0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 2, "regions": {}}',
        '{"format": 1, "regions": {"us-east-1": {}}}',
        '{"format": 1, "regions": {"r": {"date": "d", "source": "s", "figures": {"ec2.x": ["free", "hour"]}}}}',
        '{"format": 1, "regions": {"r": 7}}',
        "[" * 100_000,
    ],
)
def test_broken_file_raises_an_error_with_a_fix(tmp_path: Path, text: str) -> None:
    (tmp_path / "prices.json").write_text(text)
    with pytest.raises(StoreError, match=r"prices\.json cannot be read") as broken:
        refreshed.load(tmp_path)
    assert "windlass prices update" in broken.value.hint


def test_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(StoreError, match=r"cannot be (read|written)"):
        refreshed.write(tmp_path / "home", part(), "")


def test_price_file_is_plain_json(tmp_path: Path) -> None:
    found = json.loads(refreshed.write(tmp_path, part(), "").read_text())
    assert found["regions"]["us-east-1"]["figures"] == {"ec2.g5.xlarge": [1.5, "hour"]}
