"""An MPIJob (v2beta1) of mpi-operator, whose Launcher is a node like its Workers: there is no pod that only waits.

Node 0 is the Launcher. It runs mpirun, which reaches the Workers by ssh, with keys that the operator makes for the job;
each Worker runs an sshd, as the pods' own user, on a port that needs no rights. Of all that mpirun starts, in every pod
the node's own process makes the ranks (`worker/external_launcher.py`), as it does elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from windlass.compat import override
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.workloads.base import Manifest, Workload, WorkloadRequest
from windlass.engines.kubernetes.objects.workloads.pytorchjob import numbered
from windlass.worker.protocol import LauncherSpec

SSH: Final = f"{layout.ROOT}/ssh"
SSH_PORT: Final = 2222
END_SECONDS: Final = 30.0
HOSTFILE: Final = "/etc/mpi/hostfile"
"""Where the operator mounts the list of hosts. It names it to Open MPI 4 alone: 5 reads the variables of PRRTE."""
INDEX: Final = "OMPI_COMM_WORLD_LOCAL_RANK"
_SSH_OPTIONS: Final = (
    f"-p {SSH_PORT}",
    f"-i {SSH}/id_rsa",
    "-o StrictHostKeyChecking=no",
    "-o UserKnownHostsFile=/dev/null",
    "-o LogLevel=ERROR",
    "-o ConnectionAttempts=30",
)
_SSHD_OPTIONS: Final = (
    f"Port={SSH_PORT}",
    f"AuthorizedKeysFile={SSH}/authorized_keys",
    "PasswordAuthentication=no",
    "KbdInteractiveAuthentication=no",
    "UsePAM=no",
    "StrictModes=no",
    "PidFile=none",
    "PrintMotd=no",
)


class MPIJob(Workload):
    """The operator makes one headless Service, by which pods find each other, and the keys."""

    name, api, kind, plural = "mpijob", "kubeflow.org/v2beta1", "MPIJob", "mpijobs"
    replaces_pods = True
    no_ttl = "keeps its Workers: the cluster would remove its Launcher alone"

    @override
    def made(self, meta: Manifest, template: Manifest, asked: WorkloadRequest) -> list[Manifest]:
        replicas = {"Launcher": {"replicas": 1, "restartPolicy": "Never", "template": numbered(template, 0)}}
        if asked.num_nodes > 1:
            workers = {"replicas": asked.num_nodes - 1, "restartPolicy": "Never", "template": numbered(template, 1)}
            replicas["Worker"] = workers
        spec: Manifest = {
            "slotsPerWorker": asked.procs_per_node,
            "runLauncherAsWorker": True,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": SSH,
            # Nodes end on their own, and the end of the Launcher must not cut off their last log lines.
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "mpiReplicaSpecs": replicas,
        }
        return [{"apiVersion": self.api, "kind": self.kind, "metadata": meta, "spec": spec}]

    @override
    def host(self, name: str, subdomain: str, node: int) -> str:
        return f"{name}-launcher.{name}" if node == 0 else f"{name}-worker-{node - 1}.{name}"

    def resize(self, made: Manifest, num_nodes: int) -> None:
        """See `Workload`. The number of MPI ranks is fixed, and so is that of the nodes."""


def launchers(num_nodes: int, procs_per_node: int, proxy: Sequence[str]) -> tuple[LauncherSpec, ...]:
    """The launcher of the ranks, by place: mpirun on the first node, an sshd for it on the others."""
    argv = (
        "mpirun",
        "--noprefix",  # its own folders are not put in front of the ranks' PATH and LD_LIBRARY_PATH
        *("--map-by", f"ppr:{procs_per_node}:node", "--oversubscribe", "--bind-to", "none", "--stdin", "none"),
        *("--mca", "plm_rsh_args", " ".join(_SSH_OPTIONS), "--mca", "plm_rsh_no_tree_spawn", "1"),
        # What it kills are proxies: the ranks have their grace from the node, and need none of mpirun's second.
        *("--mca", "odls_base_sigkill_timeout", "0"),
        *("-np", str(num_nodes * procs_per_node)),
        *proxy,
    )
    # A single node needs no list of hosts, with its own name before it resolves.
    alone = {"OMPI_MCA_orte_default_hostfile": "none", "PRTE_MCA_prte_default_hostfile": "none"}
    env = alone if num_nodes == 1 else {"PRTE_MCA_prte_default_hostfile": HOSTFILE}
    mpirun = LauncherSpec("mpirun", argv, INDEX, END_SECONDS, env, port=SSH_PORT)
    sshd = LauncherSpec("sshd", _sshd(), INDEX, END_SECONDS, serves=True)
    return (mpirun, sshd) if num_nodes > 1 else (mpirun,)


def _sshd() -> tuple[str, ...]:
    """An sshd with a new host key; it authorizes only the job's key."""
    key = f"{layout.WORK}/ssh_host_key"
    options = " ".join(f"-o {option}" for option in (*_SSHD_OPTIONS, f"HostKey={key}"))
    make = f'test -f {key} || ssh-keygen -q -t ed25519 -N "" -f {key}'
    # It requires its absolute path, since it executes itself again.
    serve = f'exec "$(command -v sshd)" -D -e -f /dev/null {options}'
    return ("/bin/sh", "-c", f'PATH="$PATH:/usr/sbin:/usr/local/sbin"; {make} && {serve}')
