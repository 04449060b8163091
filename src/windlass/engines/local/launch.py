"""Turns the places of ranks into the command line of a foreign launcher that asks for them: mpirun or torchrun. Pure.

Neither is given the script: they start `worker/guest.py`, which asks the node for the rank (see `worker/hosted.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from windlass.plan.launch import torchrun_request
from windlass.plan.placement import Place
from windlass.worker.remote import SHELL

if TYPE_CHECKING:  # the supervisor, which fills in, starts without what these import
    from windlass.engines.local.facts import Facts
    from windlass.spec.job import Job

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
        return torchrun_request(
            python=facts.python, guest=guest, run_id=run_id, node=places[0].node, procs_per_node=len(places),
            grace_seconds=job.grace,
        )  # fmt: skip
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
