"""An MPIJob (v2beta1) of mpi-operator, whose Launcher trains like its Workers, so that no pod only waits.

Node 0 is the Launcher. It runs mpirun, which connects to the Workers by ssh, with keys that the operator creates for
the job. Each Worker runs an sshd as the pods' user, on an unprivileged port. mpirun starts only proxies: in every pod,
the node's own process starts the ranks (`worker/external_launcher.py`), as for other workload kinds.
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
"""Path of the host file that the operator mounts. The operator passes it to Open MPI 4 only; Open MPI 5 reads PRRTE
variables."""
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
    """MPIJob, whose operator creates the ssh keys and a headless Service through which the pods connect to each
    other.
    """

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
            # Pods end by themselves; the end of the Launcher must not cut off the Workers' last log lines.
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "mpiReplicaSpecs": replicas,
        }
        return [{"apiVersion": self.api, "kind": self.kind, "metadata": meta, "spec": spec}]

    @override
    def host(self, name: str, subdomain: str, node: int) -> str:
        return f"{name}-launcher.{name}" if node == 0 else f"{name}-worker-{node - 1}.{name}"

    def resize(self, made: Manifest, num_nodes: int) -> None:
        """Does nothing: the number of MPI ranks is fixed, and so is the number of nodes."""


def launchers(num_nodes: int, procs_per_node: int, proxy: Sequence[str]) -> tuple[LauncherSpec, ...]:
    """Returns the launchers of the ranks, by place: mpirun on the first node, and sshd on the others."""
    argv = (
        "mpirun",
        "--noprefix",  # mpirun does not put its own folders in front of the ranks' PATH and LD_LIBRARY_PATH.
        *("--map-by", f"ppr:{procs_per_node}:node", "--oversubscribe", "--bind-to", "none", "--stdin", "none"),
        *("--mca", "plm_rsh_args", " ".join(_SSH_OPTIONS), "--mca", "plm_rsh_no_tree_spawn", "1"),
        # mpirun kills only proxies: ranks get their grace period from the node, so mpirun's extra second is not needed.
        *("--mca", "odls_base_sigkill_timeout", "0"),
        *("-np", str(num_nodes * procs_per_node)),
        *proxy,
    )
    # A single node needs no host file. Its entry would be the node's own name, which may not resolve yet.
    alone = {"OMPI_MCA_orte_default_hostfile": "none", "PRTE_MCA_prte_default_hostfile": "none"}
    env = alone if num_nodes == 1 else {"PRTE_MCA_prte_default_hostfile": HOSTFILE}
    mpirun = LauncherSpec("mpirun", argv, INDEX, END_SECONDS, env, port=SSH_PORT)
    sshd = LauncherSpec("sshd", _sshd(), INDEX, END_SECONDS, serves=True)
    return (mpirun, sshd) if num_nodes > 1 else (mpirun,)


def _sshd() -> tuple[str, ...]:
    """Returns the command of an sshd with a new host key, which accepts only the job's key."""
    key = f"{layout.WORK}/ssh_host_key"
    options = " ".join(f"-o {option}" for option in (*_SSHD_OPTIONS, f"HostKey={key}"))
    make = f'test -f {key} || ssh-keygen -q -t ed25519 -N "" -f {key}'
    # sshd requires an absolute path, since it executes itself again.
    serve = f'exec "$(command -v sshd)" -D -e -f /dev/null {options}'
    return ("/bin/sh", "-c", f'PATH="$PATH:/usr/sbin:/usr/local/sbin"; {make} && {serve}')
