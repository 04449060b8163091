"""Ranks that are expected to train alone are predicted from the imports of their script."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.plan.notes import lone_ranks
from windlass.spec.job import Job


def codes(*imports: str, env: tuple[str, ...] = (), no_gpus: str = "", **fields: Any) -> list[str]:
    job = Job(name="a", run="train.py", **{"nodes": 2, **fields})
    num_ranks = job.nodes.max * (1 if job.procs_per_node == "auto" else job.procs_per_node)
    return [note.code for note in lone_ranks(job, num_ranks, imports, env, no_gpus=no_gpus)]


@pytest.mark.parametrize("library", ["tensorflow", "jax"])
def test_a_library_with_a_launcher_of_its_name_is_told_of_its_peers_by_that_alone(library: str) -> None:
    assert codes(library, "numpy") == [f"{library}-alone"]
    assert codes(library, launcher=library) == []
    assert codes(library, nodes=1) == []
    assert codes(library, nodes=1, procs_per_node=2) == [f"{library}-alone"]
    assert codes(library, launcher="plain") == [], "they are meant to work alone"


@pytest.mark.parametrize("other", ["torch", "ray"])
def test_a_script_that_finds_its_peers_by_other_means_is_not_warned(other: str) -> None:
    assert codes("tensorflow", other) == []


@pytest.mark.parametrize("library", ["mpi4py", "horovod"])
def test_a_script_of_mpi_is_alone_under_another_launcher(library: str) -> None:
    assert codes(library, "torch") == ["mpi-alone"]
    assert codes(library, launcher="mpi") == codes(library, nodes=1) == []


def test_script_whose_user_sets_the_variables_is_not_warned() -> None:
    assert codes("tensorflow", env=("TF_CONFIG",)) == []


def test_accelerate_without_gpu_needs_use_cpu_variable() -> None:
    assert codes("accelerate", "torch", no_gpus="no GPU is here") == ["accelerate-alone"]
    assert codes("accelerate", "torch") == []
    assert codes("accelerate", "torch", no_gpus="no GPU is here", env=("ACCELERATE_USE_CPU",)) == []
