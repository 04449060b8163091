"""Turns the places of ranks into the command line of a foreign launcher that asks for them: mpirun or torchrun. Pure.

Neither is given the script: they start `worker/guest.py`, which asks the node for the rank (see `worker/hosted.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from string import Template
from typing import TYPE_CHECKING, Any, Final

from windlass.plan.placement import Place
from windlass.worker.remote import SHELL

if TYPE_CHECKING:  # the supervisor, which fills in, starts without what these import
    from windlass.engines.local.facts import Facts
    from windlass.spec.job import Job

RENDEZVOUS: Final = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
"""A node that is gone is noticed in 3 s instead of 15. With 2 attempts instead of 3, none that comes back is let in."""
AGENT_ENVIRONMENT: Final = {
    # Else the ranks use the agents' store, which outlives them, and may read there the address of a dead rank.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
AGENT_END_SECONDS: Final = 330.0
"""The agent of a node whose ranks are done waits for the other nodes: 300 s (its exit barrier), and some to end."""
MPI_END_SECONDS: Final = 30.0


def request(
    job: Job, facts: Facts, run_id: str, places: tuple[Place, ...], networks: Mapping[str, Any]
) -> dict[str, Any]:
    """What a node's request says of its launcher; empty where the node starts its ranks of itself.

    `networks` has the request of each host where mpirun is to reach into several networks.
    """
    python = facts.own_python if job.script_kind == "program" else facts.python
    # -I -S: the guest needs the standard library alone.
    guest = [python, "-I", "-S", f"{facts.package_root}/windlass/worker/guest.py"]
    if job.launcher == "mpi":
        return {
            "name": "mpirun",
            "argv": [*mpirun(facts, len(places), list(networks)), *guest],
            "env": {},
            "index": "OMPI_COMM_WORLD_RANK",
            "end_seconds": MPI_END_SECONDS,
            **({"networks": dict(networks)} if networks else {}),
        }
    if job.local.agent == "torchrun":
        return {
            "name": "torchrun",
            "argv": [*torchrun(job, facts.python, run_id, places), *guest],
            "env": AGENT_ENVIRONMENT,
            "index": "LOCAL_RANK",
            "end_seconds": AGENT_END_SECONDS,
        }
    return {}


def mpirun(facts: Facts, num_ranks: int, hosts: Sequence[str] = ()) -> list[str]:
    """Open MPI's launcher, for ranks that share this machine's cores and are bound to none.

    Its daemons on `hosts` are started by our own program in the place of ssh.
    """
    if hosts:
        each = num_ranks // len(hosts)
        where = [
            *("--host", ",".join(f"{host}:{each}" for host in hosts)),
            *("--map-by", f"ppr:{each}:node", "--oversubscribe"),
            *("--mca", "plm", "rsh", "--mca", "plm_rsh_agent", SHELL, "--mca", "plm_rsh_no_tree_spawn", "1"),
            # Each host seems to have a slot for every rank, but they share the cores of this machine.
            *(("--mca", "mpi_yield_when_idle", "1") if num_ranks > facts.num_cpus else ()),
        ]
    else:
        # With fewer slots than ranks, ranks that wait for a message let others have the core.
        where = ["--host", f"localhost:{min(num_ranks, facts.num_cpus)}", "--oversubscribe"]
    return [
        facts.launchers.get("mpirun") or "mpirun",
        *(["--allow-run-as-root"] if facts.is_root else []),
        "--noprefix",  # its own folders are not put in front of the ranks' PATH and LD_LIBRARY_PATH
        *where,
        # What it kills are guests: the ranks have their grace from the node, and need none of mpirun's second.
        *("--mca", "odls_base_sigkill_timeout", "0"),
        *("--bind-to", "none", "--stdin", "none", "-np", str(num_ranks)),
    ]


def torchrun(job: Job, python: str, run_id: str, places: tuple[Place, ...]) -> list[str]:
    """The agent of one node. What is known only when an attempt starts stands as `$NAME`: see `fill_in`."""
    return [
        *(python, "-m", "torch.distributed.run"),
        *("--nnodes", "$NUM_NODES", "--nproc-per-node", str(len(places))),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "$MASTER_ADDR:$RENDEZVOUS_PORT"),
        *("--rdzv-id", f"{run_id}.$ATTEMPT", "--rdzv-conf", f"is_host=$IS_HOST,{RENDEZVOUS}"),
        *("--local-addr", "$NODE_ADDR"),
        *("--max-restarts", "0"),  # the run's own policy restarts, with a fresh store and all nodes
        *("--shutdown-timeout", str(math.ceil(job.grace) + 1)),
        *("--log-dir", f"$ATTEMPT_DIR/agent-{places[0].node}"),
        "--no-python",
    ]


def fill_in(spec: Mapping[str, Any], rendezvous_port: int) -> dict[str, Any]:
    """The `launch` of a node's spec with the facts of the attempt in place of their names."""
    env, network = spec["env"], spec.get("network")
    values = {
        "MASTER_ADDR": env["MASTER_ADDR"],
        "RENDEZVOUS_PORT": str(rendezvous_port),
        "NUM_NODES": env["GROUP_WORLD_SIZE"],
        "IS_HOST": "true" if spec["ranks"][0]["env"]["NODE_RANK"] == "0" else "false",
        "NODE_ADDR": network["hosts"][network["host"]] if network else env["MASTER_ADDR"],
        "ATTEMPT": env["WINDLASS_ATTEMPT"],
        "ATTEMPT_DIR": spec["folder"],
    }
    return {**spec["launch"], "argv": [Template(word).safe_substitute(values) for word in spec["launch"]["argv"]]}
