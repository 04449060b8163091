"""The GPUs of a node are divided among its JAX ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.worker.devices import IDS, of_jax


def rank(local: int, procs: int, **more: str) -> dict[str, str]:
    return {"JAX_PROCESS_ID": "5", "WINDLASS_LOCAL_RANK": str(local), "WINDLASS_LOCAL_WORLD_SIZE": str(procs), **more}


@pytest.mark.parametrize(
    ("env", "ids"),
    [
        (rank(0, 1), "0,1,2,3"),
        (rank(1, 2), "2,3"),
        (rank(3, 4), "3"),
        (rank(0, 8), None),
        (rank(1, 2, CUDA_VISIBLE_DEVICES="6,7"), "1"),
        (rank(0, 1, CUDA_VISIBLE_DEVICES=""), None),
        (rank(0, 1, JAX_LOCAL_DEVICE_IDS="2"), None),
        ({"WINDLASS_LOCAL_RANK": "0", "WINDLASS_LOCAL_WORLD_SIZE": "1"}, None),
    ],
)
def test_each_rank_gets_its_share_of_the_gpus(env: dict[str, str], ids: str | None, tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert of_jax(env, str(tmp_path)) == ({} if ids is None else {IDS: ids})


def test_machine_without_gpus_gets_no_variable(tmp_path: Path) -> None:
    assert of_jax(rank(0, 1), str(tmp_path / "none")) == {}
