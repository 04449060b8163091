"""Numbers the ranks of nodes × processes and gives each the environment that its script is promised.

The names and values are those of torchrun (torch/distributed/elastic/agent/server/local_elastic_agent.py), plus
`NODE_RANK` and Windlass's own. A script that runs under torchrun finds here what it finds there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank runs."""

    rank: int
    local_rank: int
    node: int


STATUS_VARIABLES = ("KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN")
"""Where a Python rank's libraries may report by themselves; see `worker/statusserver.py`."""
STATUS_VARIABLES_OF_USERS = (*STATUS_VARIABLES, "KUBEFLOW_TRAINER_SERVER_CA_CERT", "DISABLE_KUBEFLOW_INTEGRATION")
"""Who has set one of these has decided already where reports go, or that there are none."""


def place(num_nodes: int, procs_per_node: int) -> tuple[tuple[Place, ...], ...]:
    """Ranks of each node, consecutive within it: node 0 has 0 … procs_per_node − 1. Raises ValueError below 1."""
    if num_nodes < 1 or procs_per_node < 1:
        raise ValueError(f"a job has at least one rank, not {num_nodes} × {procs_per_node}")
    return tuple(
        tuple(Place(node * procs_per_node + local, local, node) for local in range(procs_per_node))
        for node in range(num_nodes)
    )


def job_environment(
    *, run_id: str, num_nodes: int, procs_per_node: int, max_restarts: int, output_dir: str, checkpoint_dir: str,
    data: Mapping[str, str], checkpoint_every: float | str | None = None, checkpoint_keep: int | None = None,
) -> dict[str, str]:  # fmt: skip
    """What every rank of the job has alike. `data` maps the names of data sets to their folders.

    `checkpoint_every` is a number of seconds, or `20 steps`; None where the script decides.
    """
    keep = {} if checkpoint_keep is None else {"WINDLASS_CHECKPOINT_KEEP": str(checkpoint_keep)}
    every = f"{checkpoint_every:.12g}" if isinstance(checkpoint_every, int | float) else checkpoint_every
    if every is not None:
        keep["WINDLASS_CHECKPOINT_EVERY"] = every
    return {
        **group_environment(num_nodes, procs_per_node),
        "ROLE_NAME": "default",
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "WINDLASS_RUN_ID": run_id,
        "WINDLASS_OUTPUT_DIR": output_dir,
        "WINDLASS_CHECKPOINT_DIR": checkpoint_dir,
        **keep,
        **{data_variable(name): folder for name, folder in data.items()},
    }


def group_environment(num_nodes: int, procs_per_node: int) -> dict[str, str]:
    """How many ranks there are: what changes when an elastic job goes on with fewer nodes, or more."""
    world_size = num_nodes * procs_per_node
    return {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(procs_per_node),
        "GROUP_WORLD_SIZE": str(num_nodes),
        "ROLE_WORLD_SIZE": str(world_size),
    }


def rank_environment(place: Place) -> dict[str, str]:
    """What is one rank's own."""
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "ROLE_RANK": str(place.rank),
        "NODE_RANK": str(place.node),
        "GROUP_RANK": str(place.node),
    }


def attempt_environment(attempt: int, master_addr: str, master_port: int) -> dict[str, str]:
    """What is known only when an attempt starts: its number, from 1, and where its ranks meet."""
    return {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt - 1),
        "WINDLASS_ATTEMPT": str(attempt),
    }


def known_at_start(*, is_python: bool, taken: Collection[str]) -> tuple[str, ...]:
    """Names of the variables that an attempt gives to its ranks. `taken` are those that the user has set already."""
    is_told = is_python and not any(name in taken for name in STATUS_VARIABLES_OF_USERS)
    return (*attempt_environment(1, "", 0), *(STATUS_VARIABLES if is_told else ()))


def data_variable(name: str) -> str:
    """The variable that holds a data set's folder: `coco-2017` → `WINDLASS_DATA_COCO_2017`."""
    return "WINDLASS_DATA_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
