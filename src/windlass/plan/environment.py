"""Environment variables by which ranks find their number, the group sizes and each other, by launcher. Pure.

| launcher | variables of its ranks |
|---|---|
| `torchrun`, `pytorch`, `mpi` | those of torchrun (torch/distributed/elastic/agent/server/local_elastic_agent.py), plus
  `NODE_RANK`: scripts for torchrun work unchanged |
| `tensorflow` | `TF_CONFIG` (tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py) |
| `jax` | `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID`; since JAX itself reads only the first of
  them (jax/_src/distributed.py), also those by which it detects Open MPI (jax/_src/clusters/ompi_cluster.py) |
| `plain` | none, because a script that finds `RANK` assumes several ranks |

All ranks have the `WINDLASS_…` variables. `compose` defines the precedence of the sources of a variable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

RESUME_VARIABLE: Final = "WINDLASS_RESUME_FROM"
"""Variable with the checkpoint that the user has requested; `train/checkpoint` reads it."""
SERVICE_DIR: Final = "WINDLASS_SERVICE_DIR"
"""Variable with the folder of a service's credentials: the files `tls.crt`, `tls.key` and `token`, and others."""
SERVICE_PORT: Final = "WINDLASS_SERVICE_PORT"
"""Variable with the port of a service in a cluster. On this machine a service writes the file `port` instead."""
STATUS_VARIABLES: Final = ("KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN")
"""Variables with the address to which libraries of a Python rank may post progress; see `worker/statusserver.py`."""
STATUS_VARIABLES_OF_USERS: Final = (
    *STATUS_VARIABLES,
    "KUBEFLOW_TRAINER_SERVER_CA_CERT",
    "DISABLE_KUBEFLOW_INTEGRATION",
)
"""Variables with which a user sets where progress is posted, or disables posting."""
RANK_NUMBERS: Final = ("WINDLASS_RANK", "WINDLASS_LOCAL_RANK", "WINDLASS_NODE_RANK")
"""Variables with the numbers of a rank, set for every launcher."""
NUMBERS: Final = (*RANK_NUMBERS, "WINDLASS_WORLD_SIZE", "WINDLASS_LOCAL_WORLD_SIZE", "WINDLASS_NUM_NODES")
"""Variables with numbers of a rank and sizes of the group, which `run` may contain; see `arguments.py`."""
OF_TORCH: Final = frozenset(("torchrun", "pytorch", "mpi"))
"""Launchers whose ranks have the variables of torchrun."""
_OF_A_RUN: Final = re.compile(
    r"WINDLASS_(?!(HOME|MACHINE)$).*|(LOCAL_|NODE_|GROUP_|ROLE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|ROLE_NAME"
    r"|MASTER_(ADDR|PORT)|TORCHELASTIC_.*|TORCH_NCCL_ASYNC_ERROR_HANDLING|TF_CONFIG|OMPI_COMM_.*|OMPI_MCA_orte_hnp_uri"
    r"|PMIX_.*|JAX_(COORDINATOR_ADDRESS|NUM_PROCESSES|PROCESS_ID|LOCAL_DEVICE_IDS)|KUBEFLOW_TRAINER_SERVER_(URL|TOKEN)"
)
"""Matches variables that a rank inherits from its run and its launcher."""
RANK_PORT: Final = 21000
"""First listening port of ranks on nodes with separate networks, below the range of ephemeral ports."""


def outside_of_runs(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Removes variables that a run has set from the environment of a rank, or of a process started by a rank.

    A run that a rank starts must not find the peers or checkpoints of the rank's own run.
    """
    if "WINDLASS_RUN_ID" not in environ:
        return environ
    return {name: value for name, value in environ.items() if not _OF_A_RUN.fullmatch(name)}


def secret_variable(name: str) -> str:
    """Returns the environment variable of a secret: `SLACK_URL` for `slack-url`."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def needs_rank_ports(launcher: str) -> bool:
    """Whether each rank must listen on a port that all other ranks know."""
    return launcher == "tensorflow"


def consecutive_ports(launcher: str, num_nodes: int, procs_per_node: int, attempt: int) -> tuple[int, ...]:
    """Returns the ports by rank, for nodes with separate networks; empty if the launcher needs none.

    Consecutive attempts use different ports, so that a rank that survives its attempt cannot join the next attempt.
    """
    if not needs_rank_ports(launcher):
        return ()
    first = RANK_PORT + attempt % 8 * procs_per_node
    return tuple(first + local for _ in range(num_nodes) for local in range(procs_per_node))


def contract(
    *,
    run_id: str,
    launcher: str,
    max_restarts: int,
    output_dir: str,
    checkpoint_dir: str,
    data: Mapping[str, str],
    checkpoint_every: float | str | None = None,
    checkpoint_keep: int | None = None,
) -> dict[str, str]:
    """Returns the variables that the script may rely on and that are the same in all attempts. `data` maps the names of
    data sets to their folders.

    `checkpoint_every` is a number of seconds, or `20 steps`; None if the script decides.
    """
    every = f"{checkpoint_every:.12g}" if isinstance(checkpoint_every, int | float) else checkpoint_every
    of_torch = {
        "ROLE_NAME": "default",
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    return {
        **(of_torch if launcher in OF_TORCH else {}),
        "WINDLASS_RUN_ID": run_id,
        "WINDLASS_OUTPUT_DIR": output_dir,
        "WINDLASS_CHECKPOINT_DIR": checkpoint_dir,
        **({} if checkpoint_keep is None else {"WINDLASS_CHECKPOINT_KEEP": str(checkpoint_keep)}),
        **({} if every is None else {"WINDLASS_CHECKPOINT_EVERY": every}),
        **{data_variable(name): folder for name, folder in data.items()},
    }


def of_attempt(launcher: str, number: int, addr: str, port: int, addresses: Sequence[str]) -> dict[str, str]:
    """Returns the variables that are known when an attempt starts: rendezvous address, and node addresses in order."""
    found = {
        "WINDLASS_ATTEMPT": str(number),
        "WINDLASS_HOSTS": ",".join(_reachable(addr, addresses)),
        "WINDLASS_MASTER_ADDR": addr,
        "WINDLASS_MASTER_PORT": str(port),
    }
    if launcher in OF_TORCH:
        found |= {"MASTER_ADDR": addr, "MASTER_PORT": str(port), "TORCHELASTIC_RESTART_COUNT": str(number - 1)}
    if launcher == "jax":
        found["JAX_COORDINATOR_ADDRESS"] = f"{addr}:{port}"
        found["OMPI_MCA_orte_hnp_uri"] = f"4096.0;tcp://{addr}:{port}"  # JAX only tests whether this variable exists
    return found


def of_group(launcher: str, num_nodes: int, procs_per_node: int) -> dict[str, str]:
    """Returns the variables with group sizes, which change if an elastic job continues on fewer or more nodes."""
    world_size = str(num_nodes * procs_per_node)
    found = {
        "WINDLASS_WORLD_SIZE": world_size,
        "WINDLASS_LOCAL_WORLD_SIZE": str(procs_per_node),
        "WINDLASS_NUM_NODES": str(num_nodes),
    }
    if launcher in OF_TORCH:
        found |= {
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": str(procs_per_node),
            "GROUP_WORLD_SIZE": str(num_nodes),
            "ROLE_WORLD_SIZE": world_size,
        }
    if launcher == "jax":
        found |= {"JAX_NUM_PROCESSES": world_size, "OMPI_COMM_WORLD_SIZE": world_size}
    return found


def of_rank(launcher: str, rank: int, local_rank: int, place: int) -> dict[str, str]:
    """Returns the variables of one rank; `place` is the position of its node among the members."""
    found = dict(zip(RANK_NUMBERS, map(str, (rank, local_rank, place)), strict=True))
    if launcher in OF_TORCH:
        found |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "ROLE_RANK": str(rank),
            "NODE_RANK": str(place),
            "GROUP_RANK": str(place),
        }
    if launcher == "jax":
        found |= {
            "JAX_PROCESS_ID": str(rank),
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        }
    return found


def of_rank_in_attempt(
    launcher: str, rank: int, procs_per_node: int, addresses: Sequence[str], ports: Sequence[int]
) -> dict[str, str]:
    """Returns the variables of one rank that are known when an attempt starts. `ports` are by rank.

    Raises ValueError if the launcher needs ports and the engine provides none, because ranks would then train alone.
    """
    if not needs_rank_ports(launcher):
        return {}
    if not ports:
        raise ValueError(f"launcher: {launcher} needs a port for each rank, which this engine does not reserve")
    workers = [f"{addresses[number // procs_per_node]}:{port}" for number, port in enumerate(ports)]
    task = {"type": "worker", "index": rank}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}


def known_at_start(launcher: str, *, is_python: bool, taken: Collection[str]) -> tuple[str, ...]:
    """Returns the names of variables whose values are known only when an attempt starts. `taken` are the names that the
    user has set already.
    """
    posts = is_python and not any(name in taken for name in STATUS_VARIABLES_OF_USERS)
    of_rank = ("TF_CONFIG",) if needs_rank_ports(launcher) else ()
    return (*sorted(of_attempt(launcher, 1, "", 0, ())), *of_rank, *(STATUS_VARIABLES if posts else ()))


def data_variable(name: str) -> str:
    """Returns the variable with a data set's folder: `WINDLASS_DATA_COCO_2017` for `coco-2017`."""
    return "WINDLASS_DATA_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def _reachable(addr: str, addresses: Sequence[str]) -> Sequence[str]:
    """Returns the addresses of the nodes; for a single node the master address, because the node's name may not
    resolve.
    """
    return (addr,) if len(addresses) == 1 else addresses
