"""Counts the GPUs visible to a process, and divides the GPUs of a node among its JAX ranks."""

from __future__ import annotations

import os
import re
from typing import Mapping  # noqa: UP035 - the worker runs on Python 3.9 too

IDS = "JAX_LOCAL_DEVICE_IDS"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def of_jax(env: Mapping[str, str], folder: str = "/dev") -> dict[str, str]:
    """Returns the variable with the GPUs of a JAX rank; empty if the node has no GPUs, or the user has set the
    variable. A rank alone on its node gets all GPUs, because JAX by itself would assign only one.
    """
    if "JAX_PROCESS_ID" not in env or env.get(IDS):
        return {}
    procs, local_rank = int(env["WINDLASS_LOCAL_WORLD_SIZE"]), int(env["WINDLASS_LOCAL_RANK"])
    each = _num_gpus(env, folder) // procs
    if each == 0:
        return {}
    return {IDS: ",".join(str(number) for number in range(local_rank * each, (local_rank + 1) * each))}


def _num_gpus(env: Mapping[str, str], folder: str) -> int:
    """Returns the number of GPUs visible to a process with this environment."""
    if VISIBLE in env:
        return num_visible(env[VISIBLE])
    try:
        return sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir(folder))
    except OSError:
        return 0


def num_visible(named: str) -> int:
    """Returns the number of GPUs listed in a value of `CUDA_VISIBLE_DEVICES`."""
    found = []
    for one in named.split(","):
        if one.strip() in ("", "-1", "NoDevFiles"):  # CUDA ignores the list from here on
            break
        found.append(one.strip())
    return len(found) if len(set(found)) == len(found) else 0  # CUDA hides all GPUs if one is listed twice
