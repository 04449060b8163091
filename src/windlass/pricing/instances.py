"""Facts of EC2 instance types (vCPUs, memory, GPUs, network, local disks) from the embedded table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from windlass.errors import near

COLUMNS: Final = (
    "name", "vcpus", "cores", "memory_mib", "architecture", "accelerator", "count", "model", "accelerator_mib",
    "efa_interfaces", "network_cards", "network_gbps", "network_peak_gbps", "nvme_gb",
)  # fmt: skip
"""Columns of `data/instance_types.csv`; an empty cell is 0, or unknown for the network."""
SAGEMAKER: Final = "ml."
"""Prefix of SageMaker's instance types, which have the hardware of the EC2 type without the prefix, at another
price."""


@dataclass(frozen=True, slots=True)
class InstanceType:
    """Facts of an instance type, as in EC2's DescribeInstanceTypes."""

    name: str
    """Name, such as `g5.12xlarge`."""
    vcpus: int
    cores: int
    """Number of processor cores; 0 if it is not published."""
    memory_mib: int
    architecture: str
    """Processor architecture, `x86_64` or `arm64`."""
    gpus: int
    """Number of GPUs; 1 for a type with a fraction of a GPU."""
    gpu_model: str
    """GPU model, such as `A10G`; empty without GPUs."""
    gpu_memory_mib: int
    """Memory of one GPU in MiB."""
    neuron_devices: int
    """Number of Trainium or Inferentia devices."""
    neuron_model: str
    """Model of the devices, such as `Trainium2`; empty without devices."""
    efa_interfaces: int
    """Maximum number of Elastic Fabric Adapters; 0 for a type that supports none."""
    network_cards: int
    """Number of network cards; each card supports at most one Elastic Fabric Adapter (EFA)."""
    network_gbps: float | None
    """Sustained Gbit/s of all network cards; None if it is not published."""
    network_peak_gbps: float | None
    """Burst Gbit/s of all network cards; None if it is not published."""
    nvme_gb: int
    """Gigabytes of local NVMe disks; 0 without such disks."""

    @property
    def family(self) -> str:
        """Instance family, such as `g5` of `g5.12xlarge`."""
        return self.name.partition(".")[0]


def instance_type(name: str) -> InstanceType | None:
    """Returns the facts of a type, with or without `ml.` before its name; None if the table lacks the type."""
    plain = name.removeprefix(SAGEMAKER)
    if not plain or not plain.isascii() or any(letter in ",\n\r" for letter in plain):
        return None
    text = _table()
    start = text.find(f"\n{plain},")
    return _parse(text[start + 1 : text.index("\n", start + 1)]) if start >= 0 else None


def instance_types(prefix: str = "") -> list[InstanceType]:
    """Returns all types whose names begin with `prefix`, by name."""
    return [_parse(line) for line in _table().splitlines()[1:] if line.startswith(prefix)]


def vcpus_of(name: str) -> int:
    """Returns the number of vCPUs of an instance type; 0 if unknown."""
    found = instance_type(name)
    return found.vcpus if found is not None else 0


def cores_of(name: str) -> int:
    """Returns the number of processor cores of an instance type; 0 if unknown."""
    found = instance_type(name)
    return found.cores if found is not None else 0


def efa_of(name: str) -> int:
    """Returns the maximum number of Elastic Fabric Adapters of an instance type; 0 if unknown."""
    found = instance_type(name)
    return found.efa_interfaces if found is not None else 0


def near_misses(name: str) -> str:
    """Returns a suggestion such as `did you mean g5.12xlarge?` for an unknown type; empty if no type is similar."""
    plain = name.removeprefix(SAGEMAKER)
    names = [line.partition(",")[0] for line in _table().splitlines()[1:]]
    family = [known for known in names if known.startswith(f"{plain.partition('.')[0]}.")]
    return near(plain, family) or near(plain, names)


@cache
def _table() -> str:
    return (Path(__file__).parent / "data" / "instance_types.csv").read_text("utf-8")


def _parse(line: str) -> InstanceType:
    cell = dict(zip(COLUMNS, line.split(","), strict=True))
    kind = cell["accelerator"].partition(":")[0]
    count, mib = int(cell["count"] or 0), int(cell["accelerator_mib"] or 0)
    gpu, neuron = kind == "gpu", kind == "neuron"
    return InstanceType(
        name=cell["name"],
        vcpus=int(cell["vcpus"]),
        cores=int(cell["cores"] or 0),
        memory_mib=int(cell["memory_mib"]),
        architecture=cell["architecture"],
        gpus=count if gpu else 0,
        gpu_model=cell["model"] if gpu else "",
        gpu_memory_mib=mib if gpu else 0,
        neuron_devices=count if neuron else 0,
        neuron_model=cell["model"] if neuron else "",
        efa_interfaces=int(cell["efa_interfaces"] or 0),
        network_cards=int(cell["network_cards"] or 0),
        network_gbps=float(cell["network_gbps"]) if cell["network_gbps"] else None,
        network_peak_gbps=float(cell["network_peak_gbps"]) if cell["network_peak_gbps"] else None,
        nvme_gb=int(cell["nvme_gb"] or 0),
    )
