"""Each price of the embedded table has a source and a date; other prices are unknown."""

from __future__ import annotations

import csv
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

import windlass.pricing
from windlass.pricing.charges import CHARGES
from windlass.pricing.instances import instance_type
from windlass.pricing.price import HOURS_A_MONTH, Price, hourly, monthly
from windlass.pricing.table import EC2, embedded

DATA = Path(windlass.pricing.__file__).parent / "data"
UNITS = {"hour", "month", "GB-month", "IOPS-month", "MiBps-month", "GB", "1000 requests"}


@pytest.mark.parametrize(
    ("name", "usd"),
    [
        ("m7i.large", 0.1008),
        ("t3.medium", 0.0416),
        ("g5.12xlarge", 5.672),
        ("g6e.48xlarge", 30.13118),
        ("p4d.24xlarge", 21.957642),
        ("p5.48xlarge", 55.04),
        ("trn1.32xlarge", 21.5),
    ],
)
def test_instances_have_prices(name: str, usd: float) -> None:
    price = embedded().on_demand(name, "us-east-1")
    assert price is not None
    assert (price.amount_usd, price.unit, price.date, price.region) == (usd, "hour", "2026-02-09", "us-east-1")
    assert "karpenter-provider-aws" in price.source


def test_price_without_a_source_is_unknown() -> None:
    assert embedded().on_demand("g5.12xlarge", "eu-central-1") is None
    assert embedded().on_demand("ml.g5.12xlarge", "us-east-1") is None
    assert embedded().on_demand("g99.large", "us-east-1") is None
    assert embedded().charge("fsx.persistent-2-1000", "us-east-1") is None
    assert embedded().charge("nat.gateway", "eu-central-1") is None
    assert embedded().spot_range("g5.12xlarge", "us-east-1") is None


def test_price_for_all_regions_applies_in_each_region() -> None:
    price = embedded().charge("eks.control-plane", "sa-east-1")
    assert price is not None
    assert (price.amount_usd, price.region) == (0.1, "*")
    assert embedded().charge("eks.control-plane", "cn-north-1") is None, "AWS China bills other amounts, in CNY"


def test_every_price_has_a_unit_a_source_and_a_date() -> None:
    for (_, name), price in embedded().prices.items():
        assert price.unit in UNITS, name
        assert price.amount_usd > 0, name
        assert len(price.source) > 20, name
        assert date(2020, 1, 1) < date.fromisoformat(price.date) < date(2027, 1, 1), name
        assert name.startswith(EC2) or name in CHARGES, name


def test_every_priced_type_has_facts_and_every_source_is_used() -> None:
    for name in embedded().instance_types("us-east-1"):
        assert instance_type(name) is not None, name
    with (DATA / "prices.csv").open() as lines:
        used = {row["source"] for row in csv.DictReader(lines)}
    with (DATA / "sources.csv").open() as lines:
        assert {row["source"] for row in csv.DictReader(lines)} == used


def test_larger_sizes_of_a_family_cost_more_for_more_cores() -> None:
    """A price that was copied incorrectly would break the order within its family."""
    by_family: dict[str, list[tuple[int, float, str]]] = {}
    for name in embedded().instance_types("us-east-1"):
        price, facts = embedded().on_demand(name, "us-east-1"), instance_type(name)
        assert price is not None
        assert facts is not None
        if not facts.gpus:
            by_family.setdefault(facts.family, []).append((facts.vcpus, price.amount_usd, name))
    for sizes in by_family.values():
        per_core = [usd / vcpus for vcpus, usd, _ in sorted(sizes) if vcpus > 2]
        assert max(per_core, default=1) <= 1.05 * min(per_core, default=1) or sizes[0][2].startswith(("inf", "trn"))


def test_month_has_730_hours() -> None:
    per_hour, per_gb = Price(0.1, "hour", "", "", ""), Price(0.08, "GB-month", "", "", "")
    assert HOURS_A_MONTH == 730
    assert monthly(per_hour, 2) == pytest.approx(146.0)
    assert hourly(per_hour, 2) == pytest.approx(0.2)
    assert monthly(per_gb, 100) == pytest.approx(8.0)
    assert hourly(per_gb, 730) == pytest.approx(0.08)
    assert monthly(Price(1.0, "month", "", "", "")) == pytest.approx(1.0)
    assert monthly(Price(0.05, "GB", "", "", ""), 3) is None


def test_price_data_is_small() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 200_000


def test_price_lookup_imports_no_heavy_module() -> None:
    program = (
        "import sys\n"
        "import windlass.errors\n"
        "before = set(sys.modules)\n"
        "from windlass.pricing.table import embedded\n"
        "from windlass.pricing.instances import instance_type\n"
        "assert embedded().on_demand('p5.48xlarge', 'us-east-1') and instance_type('p5.48xlarge')\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "assert not loaded & {'pydantic', 'boto3', 'botocore', 'click', 'rich', 'json'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_second_lookup_reads_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    first = embedded().on_demand("p5.48xlarge", "us-east-1")
    monkeypatch.setattr("windlass.pricing.table._rows", lambda name: pytest.fail(f"{name} is read again"))
    assert embedded().on_demand("p5.48xlarge", "us-east-1") == first
