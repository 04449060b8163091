"""Plans show list prices of instance types."""

from __future__ import annotations

from windlass.plan.price import list_price
from windlass.pricing.price import Price, SpotRange
from windlass.pricing.table import Table, embedded

REGION = "us-east-1"
ENDS = [Price(usd, "hour", "a test", "2026-11-01", REGION) for usd in (1.9, 2.6)]
FETCHED = embedded().merged(Table(spot={(REGION, "g5.12xlarge"): SpotRange(ENDS[0], ENDS[1], 7)}))


def test_list_price_names_source_and_date() -> None:
    assert list_price("g5.12xlarge", REGION, embedded()) == (
        5.672,
        "list price of g5.12xlarge in us-east-1, on demand, as of 2026-02-09",
    )


def test_a_spot_price_is_the_highest_of_the_range() -> None:
    assert list_price("g5.12xlarge", REGION, FETCHED, is_spot=True) == (
        2.6,
        "highest spot price of g5.12xlarge in us-east-1 in 7 days, as of 2026-11-01",
    )
    assert list_price("g5.12xlarge", REGION, embedded(), is_spot=True) is None


def test_unlisted_instance_type_has_no_price() -> None:
    assert list_price("ml.g5.12xlarge", REGION, embedded()) is None
    assert list_price("g5.12xlarge", "eu-central-1", embedded()) is None
    assert list_price(None, REGION, embedded()) is None
    assert list_price("g5.12xlarge", None, embedded()) is None
    assert list_price("g5.12xlarge", REGION, None) is None
