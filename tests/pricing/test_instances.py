"""Facts of instance types are read from the embedded table."""

from __future__ import annotations

import pytest

from windlass.pricing.instances import instance_type, instance_types, near_misses


def test_a_type_with_gpus_and_adapters() -> None:
    found = instance_type("p5.48xlarge")
    assert found is not None
    assert (found.vcpus, found.cores, found.memory_mib, found.architecture) == (192, 96, 2 << 20, "x86_64")
    assert (found.gpus, found.gpu_model, found.gpu_memory_mib) == (8, "H100", 80 << 10)
    assert (found.efa_interfaces, found.network_cards, found.network_gbps) == (32, 32, 3200)
    assert (found.nvme_gb, found.family, found.neuron_devices) == (30400, "p5", 0)


@pytest.mark.parametrize(
    ("name", "efa", "gbps"),
    [
        ("g5.xlarge", 0, 2.5),
        ("g5.12xlarge", 1, 40),
        ("g6e.24xlarge", 2, 200),
        ("p4d.24xlarge", 4, 400),
        ("p6-b200.48xlarge", 8, 3200),
        ("trn1.32xlarge", 8, 800),
        ("m7i.large", 0, 0.781),
    ],
)
def test_network_adapters_and_bandwidths_are_read(name: str, efa: int, gbps: float) -> None:
    found = instance_type(name)
    assert found is not None
    assert (found.efa_interfaces, found.network_gbps) == (efa, gbps)


def test_neuron_devices_are_not_gpus() -> None:
    found = instance_type("trn2.48xlarge")
    assert found is not None
    assert (found.gpus, found.gpu_model, found.neuron_devices, found.neuron_model) == (0, "", 16, "Trainium2")


def test_fractional_gpu_counts_as_one_with_its_own_memory() -> None:
    found = instance_type("g6f.large")
    assert found is not None
    assert (found.gpus, found.gpu_model, found.gpu_memory_mib) == (1, "L4", 2861)


def test_arm_types_and_sagemaker_names_are_read() -> None:
    arm, of_sagemaker = instance_type("m7g.large"), instance_type("ml.g5.xlarge")
    assert arm is not None
    assert arm.architecture == "arm64"
    assert of_sagemaker == instance_type("g5.xlarge")


@pytest.mark.parametrize(
    "name", ["", "g5", "g5.", "g5.xlarge,4", "name", "G5.XLARGE", "g5.xlarge\n", "ml.", "p5.48xlargé"]
)
def test_invalid_instance_type_names_are_unknown(name: str) -> None:
    assert instance_type(name) is None


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("g5.12xlrge", "g5.12xlarge"),
        ("p5.48xl", "p5.48xlarge"),
        ("P5.48XLARGE", "p5.48xlarge"),
        ("ml.g5.xlareg", "g5.xlarge"),
        ("m7.large", "m7i.large"),
    ],
)
def test_misspelled_type_suggests_the_nearest_name(typo: str, meant: str) -> None:
    assert meant.split(".")[1] in near_misses(typo)
    assert near_misses(typo).startswith("did you mean ")


def test_unrelated_name_gets_no_suggestion() -> None:
    assert near_misses("zzzzzzzzzzzz") == ""


def test_all_instance_types_can_be_read() -> None:
    found = instance_types()
    assert len(found) > 1000
    assert len({one.name for one in found}) == len(found)
    assert {one.name for one in instance_types("g5.")} == {one.name for one in found if one.family == "g5"}
