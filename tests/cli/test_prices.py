"""`prices` lists prices, and fetches them from an emulated price list."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.cli.conftest import Call, loaded_by
from tests.cli.test_json import hold
from tests.fakeaws.pricing import PriceListServer, emulated_prices, fill

REGION = "eu-central-1"


@pytest.fixture(autouse=True)
def _no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PriceListServer]:
    with emulated_prices() as plane:
        fill(plane, REGION, "EUC1-", time.time())
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        for name in ("AWS_ENDPOINT_URL_PRICING", "AWS_ENDPOINT_URL_EC2"):
            monkeypatch.setenv(name, plane.url)
        yield plane


def test_instances_with_accelerators_and_services_are_listed(windlass: Call) -> None:
    said = windlass("prices", "list")
    assert said.code == 0
    assert "g5.12xlarge" in said.out
    assert "4 × A10G 22 GiB" in said.out
    assert "nat.gateway" in said.out
    assert "m7i.large" not in said.out
    assert "2026-02-09: on-demand prices of Linux in us-east-1 as karpenter-provider-aws lists them" in said.out
    hold("prices-list", windlass("prices", "list", "-o", "json").json)


def test_types_and_families_are_listed_by_name(windlass: Call) -> None:
    found = windlass("prices", "list", "m7i.large", "g6", "-o", "json").json
    hold("prices-list", found)
    assert [one["type"] for one in found["instances"]][:3] == ["m7i.large", "g6.xlarge", "g6.2xlarge"]
    assert found["charges"] == []
    price = found["instances"][0]["on_demand"]
    assert (price["amount_usd"], price["unit"], price["date"]) == (0.1008, "hour", "2026-02-09")
    assert "karpenter-provider-aws" in price["source"]


def test_unknown_prices_are_shown_with_a_fix(windlass: Call) -> None:
    said = windlass("prices", "list", "g5.xlarge", "ml.g5.xlarge", "--region", REGION)
    assert "What is unknown is fetched by: windlass prices update --region eu-central-1" in said.out
    assert "SageMaker's prices are not listed" in said.out
    found = windlass("prices", "list", "ml.g5.xlarge", "-o", "json").json["instances"][0]
    assert (found["on_demand"], found["spot"], found["gpus"]) == (None, None, 1)
    assert found["unknown"].startswith("SageMaker's prices are not listed")


def test_region_defaults_to_the_configured_one(windlass: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    assert windlass("prices", "list", "g5.xlarge", "-o", "json").json["region"] == "eu-west-3"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert windlass("prices", "list", "g5.xlarge", "-o", "json").json["region"] == "eu-west-1"


@pytest.mark.parametrize(
    ("typo", "hint"),
    [
        ("g5.12xlrge", "did you mean g5.12xlarge?"),
        ("nonsense", "write for example g5.12xlarge"),
    ],
)
def test_unknown_type_is_refused_with_a_suggestion(typo: str, hint: str, windlass: Call) -> None:
    refused = windlass("prices", "list", typo)
    assert refused.code == 2
    assert f"{typo} is not an instance type that is known" in refused.err
    assert hint in refused.err


def test_emulated_update_is_kept_and_listed(windlass: Call, server: PriceListServer, home: Path) -> None:
    done = windlass("prices", "update", "--region", REGION, "-o", "json")
    assert done.code == 0
    hold("prices-update", done.json)
    [region] = done.json["regions"]
    assert (region["region"], region["num_instances"], region["num_spot"], region["problem"]) == (REGION, 3, 1, "")
    assert done.json["path"] == str(home / "prices.json")
    assert f"fetching prices of {REGION}" in done.err
    found = windlass("prices", "list", "g5.12xlarge", "--region", REGION, "-o", "json").json["instances"][0]
    assert found["on_demand"]["amount_usd"] == 7.09
    assert (found["spot"]["low_usd"], found["spot"]["high_usd"], found["spot"]["days"]) == (1.9, 2.6, 7)
    assert "1.9 – 2.6" in windlass("prices", "list", "g5.12xlarge", "--region", REGION).out


def test_emulated_update_says_what_stays_unknown(windlass: Call, server: PriceListServer) -> None:
    server.refused["DescribeSpotPriceHistory"] = ("UnauthorizedOperation", "You are not authorized")
    said = windlass("prices", "update", "--region", REGION)
    assert said.code == 0
    assert "eu-central-1: 3 instance types, 23 other prices" in said.out
    assert "no spot prices: ec2:DescribeSpotPriceHistory was refused: UnauthorizedOperation" in said.out
    assert "still unknown: " in said.out
    assert "fsx.persistent-2-1000" in said.out


def test_emulated_refused_update_changes_nothing(windlass: Call, server: PriceListServer, home: Path) -> None:
    windlass("prices", "update", "--region", REGION)
    before = (home / "prices.json").read_bytes()
    server.refused["GetProducts"] = ("AccessDeniedException", "User: ada is not authorized")
    refused = windlass("prices", "update", "--region", REGION)
    assert refused.code == 1
    assert "allow pricing:GetProducts to this login" in refused.err
    assert (home / "prices.json").read_bytes() == before


def test_invalid_region_is_an_error(windlass: Call, server: PriceListServer) -> None:
    refused = windlass("prices", "update", "--region", "eu central")
    assert refused.code == 1
    assert "AWS prices cannot be read in eu central" in refused.err


def test_a_list_imports_no_boto3(environ: Mapping[str, str]) -> None:
    loaded = loaded_by("prices", "list", "g5.xlarge", environ=environ)
    assert not loaded & {"boto3", "botocore", "rich"}
