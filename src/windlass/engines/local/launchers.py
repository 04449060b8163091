"""The external launcher that starts ranks on this machine: mpirun. Pure.

It starts `worker/rank_proxy.py` in place of the script, which asks the node's worker for its rank, see
`worker/external_launcher.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from windlass.worker.protocol import LauncherSpec, NetworkSpec
from windlass.worker.rsh_agent import SHELL

if TYPE_CHECKING:  # the supervisor, which fills in, starts without what these import
    from windlass.engines.local.facts import Facts
    from windlass.spec.job import Job

MPI_END_SECONDS: Final = 30.0


def launcher(
    job: Job, facts: Facts, num_nodes: int, procs: int, networks: Sequence[NetworkSpec]
) -> tuple[LauncherSpec, ...]:
    """The launcher of the job; none where the node's worker starts the ranks itself."""
    if job.launcher != "mpi":
        return ()
    python = facts.own_python if job.script_kind == "program" else facts.python
    # -I -S: the proxy needs the standard library alone.
    proxy = (python, "-I", "-S", f"{facts.package_root}/windlass/worker/rank_proxy.py")
    reached = {network.host: network for network in networks} if num_nodes > 1 else {}
    argv = (*mpirun(facts, num_nodes * procs, list(reached)), *proxy)
    return (LauncherSpec("mpirun", argv, "OMPI_COMM_WORLD_RANK", MPI_END_SECONDS, networks=reached),)


def mpirun(facts: Facts, num_ranks: int, hosts: Sequence[str] = ()) -> list[str]:
    """Open MPI's launcher, for ranks that share this machine's cores and are not bound to any.

    Its daemons on `hosts` are started by `worker/rsh_agent.py` in place of ssh.
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
        # It kills only rank proxies: the node gives the ranks their grace, so mpirun need not wait a second.
        *("--mca", "odls_base_sigkill_timeout", "0"),
        *("--bind-to", "none", "--stdin", "none", "-np", str(num_ranks)),
    ]
