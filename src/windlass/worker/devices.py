"""Counts the GPUs that a process sees, and assigns those of a node to its ranks of JAX."""

from __future__ import annotations

import os
import re
from typing import Mapping  # noqa: UP035 - the worker runs on Python 3.9 too

IDS = "JAX_LOCAL_DEVICE_IDS"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def of_jax(env: Mapping[str, str], folder: str = "/dev") -> dict[str, str]:
    """The share of a rank with this environment: all GPUs where it is alone on its node, which JAX, as it finds several
    processes, would not give it. Nothing where there are none, or the user has chosen."""
    if "JAX_PROCESS_ID" not in env or env.get(IDS):
        return {}
    procs, local_rank = int(env["WINDLASS_LOCAL_WORLD_SIZE"]), int(env["WINDLASS_LOCAL_RANK"])
    each = _num_gpus(env, folder) // procs
    if each == 0:
        return {}
    return {IDS: ",".join(str(number) for number in range(local_rank * each, (local_rank + 1) * each))}


def _num_gpus(env: Mapping[str, str], folder: str) -> int:
    """GPUs that a process of this environment sees."""
    if VISIBLE in env:
        return num_visible(env[VISIBLE])
    try:
        return sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir(folder))
    except OSError:
        return 0


def num_visible(named: str) -> int:
    """GPUs that a value of `CUDA_VISIBLE_DEVICES` names."""
    found = []
    for one in named.split(","):
        if one.strip() in ("", "-1", "NoDevFiles"):  # CUDA reads no further
            break
        found.append(one.strip())
    return len(found) if len(set(found)) == len(found) else 0  # with one of them twice, none is visible
