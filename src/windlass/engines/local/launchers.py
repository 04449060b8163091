"""Command line of mpirun, the external launcher of ranks on this machine. Pure.

mpirun starts `worker/rank_proxy.py` in place of the script. The proxy requests a rank from the node's worker, see
`worker/external_launcher.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from windlass.worker.protocol import LauncherSpec, NetworkSpec
from windlass.worker.rsh_agent import SHELL

if TYPE_CHECKING:  # not imported at run time, so that the supervisor starts faster
    from windlass.engines.local.facts import Facts
    from windlass.spec.job import Job

MPI_END_SECONDS: Final = 30.0


def launcher(
    job: Job, facts: Facts, num_nodes: int, procs: int, networks: Sequence[NetworkSpec]
) -> tuple[LauncherSpec, ...]:
    """Returns the external launcher of the job; empty if the node's worker starts the ranks itself."""
    if job.launcher != "mpi":
        return ()
    python = facts.own_python if job.script_kind == "program" else facts.python
    # -I -S: the proxy needs only the standard library.
    proxy = (python, "-I", "-S", f"{facts.package_root}/windlass/worker/rank_proxy.py")
    reached = {network.host: network for network in networks} if num_nodes > 1 else {}
    argv = (*mpirun(facts, num_nodes * procs, list(reached)), *proxy)
    return (LauncherSpec("mpirun", argv, "OMPI_COMM_WORLD_RANK", MPI_END_SECONDS, networks=reached),)


def mpirun(facts: Facts, num_ranks: int, hosts: Sequence[str] = ()) -> list[str]:
    """Returns the mpirun command for ranks that share this machine's cores without binding.

    mpirun starts its daemons on `hosts` with `worker/rsh_agent.py` in place of ssh.
    """
    if hosts:
        each = num_ranks // len(hosts)
        where = [
            *("--host", ",".join(f"{host}:{each}" for host in hosts)),
            *("--map-by", f"ppr:{each}:node", "--oversubscribe"),
            *("--mca", "plm", "rsh", "--mca", "plm_rsh_agent", SHELL, "--mca", "plm_rsh_no_tree_spawn", "1"),
            # Each host is given a slot per rank, although all hosts share this machine's cores.
            *(("--mca", "mpi_yield_when_idle", "1") if num_ranks > facts.num_cpus else ()),
        ]
    else:
        # If there are more ranks than slots, waiting ranks yield the core.
        where = ["--host", f"localhost:{min(num_ranks, facts.num_cpus)}", "--oversubscribe"]
    return [
        facts.launchers.get("mpirun") or "mpirun",
        *(["--allow-run-as-root"] if facts.is_root else []),
        "--noprefix",  # this option keeps Open MPI's folders out of the ranks' PATH and LD_LIBRARY_PATH
        *where,
        # mpirun kills only rank proxies, without waiting. The worker applies the ranks' grace period.
        *("--mca", "odls_base_sigkill_timeout", "0"),
        *("--bind-to", "none", "--stdin", "none", "-np", str(num_ranks)),
    ]
