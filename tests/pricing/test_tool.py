"""`tools/prices.py` regenerates the tables from files that a maintainer has fetched."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import windlass.pricing
from windlass.pricing import refreshed
from windlass.pricing.price import Price
from windlass.pricing.refreshed import RegionPrices

DATA = Path(windlass.pricing.__file__).parent / "data"
TOOL = Path(__file__).parents[2] / "tools" / "prices.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    found = importlib.util.spec_from_file_location("prices_tool", TOOL)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as lines:
        return list(csv.DictReader(lines))


def test_fetched_prices_replace_prices_of_the_table_with_their_source(tool: ModuleType, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(DATA, data)
    fetched = {
        "ec2.g5.xlarge": Price(1.1, "hour", "", "2027-01-01", "us-east-1"),
        "fsx.persistent-2-1000": Price(0.6, "GB-month", "", "2027-01-01", "us-east-1"),
    }
    file = refreshed.write(tmp_path / "home", RegionPrices("us-east-1", "2027-01-01", "AWS price list", fetched), "")
    tool.write_figures(file, data)
    found = {(row["region"], row["name"]): row for row in rows(data / "prices.csv")}
    assert (found["us-east-1", "ec2.g5.xlarge"]["usd"], found["us-east-1", "ec2.g5.2xlarge"]["usd"]) == ("1.1", "1.212")
    sources = {row["source"]: row for row in rows(data / "sources.csv")}
    assert sources[found["us-east-1", "fsx.persistent-2-1000"]["source"]] == {
        "source": "aws-us-east-1-2027-01-01",
        "date": "2027-01-01",
        "text": "AWS price list",
    }
    assert set(sources) == {row["source"] for row in found.values()}
    assert list(found) == sorted(found)


def test_type_table_is_generated_from_ec2_descriptions(tool: ModuleType, tmp_path: Path) -> None:
    card = {"BaselineBandwidthInGbps": 12.5, "PeakBandwidthInGbps": 25.0}
    described: dict[str, Any] = {
        "VCpuInfo": {"DefaultVCpus": 8, "DefaultCores": 4},
        "MemoryInfo": {"SizeInMiB": 32768},
        "ProcessorInfo": {"SupportedArchitectures": ["i386", "x86_64"]},
        "GpuInfo": {"Gpus": [{"Count": 1, "Name": "T4", "Manufacturer": "NVIDIA", "MemoryInfo": {"SizeInMiB": 16384}}]},
        "InstanceStorageInfo": {"TotalSizeInGB": 225, "NvmeSupport": "required"},
        "NetworkInfo": {
            "NetworkPerformance": "Up to 25 Gigabit",
            "EfaSupported": False,
            "MaximumNetworkCards": 1,
            "NetworkCards": [card],
        },
    }
    path = tmp_path / tool.TYPES
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps({"x1.large": described}).encode()))
    (tmp_path / "data").mkdir()
    tool.write_types(tmp_path, tmp_path / "data")
    [row] = rows(tmp_path / "data" / "instance_types.csv")
    assert list(row.values()) == [
        "x1.large", "8", "4", "32768", "x86_64", "gpu:nvidia", "1", "T4", "16384", "", "1", "12.5", "25", "225",
    ]  # fmt: skip


@pytest.mark.parametrize(("stated", "gbps"), [("3200 Gigabit", 3200), ("16x 200 Gigabit", 3200), ("Moderate", 12.5)])
def test_bandwidth_of_a_type_is_as_described_by_ec2(tool: ModuleType, stated: str, gbps: float) -> None:
    cards = [{"BaselineBandwidthInGbps": 12.5}]
    assert tool.gbps({"NetworkPerformance": stated, "NetworkCards": cards}, "BaselineBandwidthInGbps") == gbps
