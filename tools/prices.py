"""Makes the tables in src/windlass/pricing/data from files that a maintainer has fetched.

    python tools/prices.py types FOLDER        facts of instance types, from an unpacked moto (pip download --no-deps)
    python tools/prices.py figures FILE.json   prices, from what `windlass prices update` has written

Figures of `prices.csv` that FILE.json lacks stay as they are, each with its own source and date.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from windlass.pricing.instances import COLUMNS

DATA = Path(__file__).resolve().parent.parent / "src" / "windlass" / "pricing" / "data"
TYPES = "moto/ec2/resources/instance_types.json.gz"


def main(argv: list[str]) -> int:
    """Write the table that the first word names, from the path that the second names."""
    if len(argv) != 2 or argv[0] not in ("types", "figures"):
        print(__doc__, file=sys.stderr)
        return 2
    (write_types if argv[0] == "types" else write_figures)(Path(argv[1]))
    return 0


def write_types(folder: Path, data: Path = DATA) -> None:
    """Facts of every instance type that the catalogue describes, one a line."""
    described = json.loads(gzip.decompress((folder / TYPES).read_bytes()))
    rows = [row_of(name, described[name]) for name in sorted(described)]
    write_table(data / "instance_types.csv", COLUMNS, rows)
    print(f"prices: {len(rows)} instance types")


def row_of(name: str, described: Mapping[str, Any]) -> list[object]:
    """One line of the table, from an entry of DescribeInstanceTypes."""
    network = described["NetworkInfo"]
    model, count, mib, kind = accelerator(described)
    return [
        name,
        described["VCpuInfo"]["DefaultVCpus"],
        described["VCpuInfo"].get("DefaultCores", ""),
        described["MemoryInfo"]["SizeInMiB"],
        described["ProcessorInfo"]["SupportedArchitectures"][-1],
        kind,
        count or "",
        model,
        mib or "",
        network.get("EfaInfo", {}).get("MaximumEfaInterfaces", "") if network.get("EfaSupported") else "",
        network.get("MaximumNetworkCards", ""),
        number(gbps(network, "BaselineBandwidthInGbps")),
        number(gbps(network, "PeakBandwidthInGbps")),
        nvme(described),
    ]


def accelerator(described: Mapping[str, Any]) -> tuple[str, int, int, str]:
    """Model, count, memory of one in MiB, and kind. A part of a GPU counts as one with its own memory."""
    for gpu in described.get("GpuInfo", {}).get("Gpus", []):
        count = gpu.get("LogicalGpuCount") or gpu["Count"]
        return gpu["Name"], count, gpu["MemoryInfo"]["SizeInMiB"], f"gpu:{gpu['Manufacturer'].lower()}"
    for device in described.get("NeuronInfo", {}).get("NeuronDevices", []):
        return device["Name"], device["Count"], device["MemoryInfo"]["SizeInMiB"], "neuron"
    return "", 0, 0, ""


def gbps(network: Mapping[str, Any], which: str) -> float:
    """Gbit/s of all cards: as the type is described (`3200 Gigabit`, `16x 200 Gigabit`), else the sum of its cards.

    Entries of cards count for less than the description for some types (p6-b200: 8 cards of 200 and 3200 in all).
    """
    found = re.fullmatch(r"(?:(\d+)x )?(\d+) Gigabit", network.get("NetworkPerformance", ""))
    if found:
        return float(found[1] or 1) * float(found[2])
    return float(sum(card.get(which, 0) for card in network.get("NetworkCards", [])))


def nvme(described: Mapping[str, Any]) -> object:
    """Gigabytes of local disks that are NVMe."""
    storage = described.get("InstanceStorageInfo", {})
    return storage.get("TotalSizeInGB", "") if storage.get("NvmeSupport", "unsupported") != "unsupported" else ""


def number(value: float) -> object:
    """A number without zeros that say nothing; empty where it is unknown."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if value else ""


def write_figures(file: Path, data: Path = DATA) -> None:
    """Put the figures of each region into the table, and their source beside them."""
    found = json.loads(file.read_text())["regions"]
    figures = {(row["region"], row["name"]): row for row in read_table(data / "prices.csv")}
    sources = {row["source"]: row for row in read_table(data / "sources.csv")}
    for region, part in found.items():
        key = f"aws-{region}-{part['date']}"
        sources[key] = {"source": key, "date": part["date"], "text": part["source"]}
        for name, (usd, unit) in part["figures"].items():
            figures[region, name] = {"region": region, "name": name, "usd": usd, "unit": unit, "source": key}
    used = {row["source"] for row in figures.values()}
    rows = [list(figures[key].values()) for key in sorted(figures)]
    write_table(data / "prices.csv", ["region", "name", "usd", "unit", "source"], rows)
    kept = [list(row.values()) for key, row in sources.items() if key in used]
    write_table(data / "sources.csv", ["source", "date", "text"], kept)
    print(f"prices: {len(rows)} figures")


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a table."""
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def write_table(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table anew."""
    with path.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
