"""An MPIJob (v2beta1) of mpi-operator, whose Launcher is a node like its Workers: there is no pod that only waits.

Node 0 is the Launcher. It runs mpirun, which reaches the Workers by ssh, with keys that the operator makes for the job;
each Worker runs an sshd, as the pods' own user, on a port that needs no rights. Of all that mpirun starts, in every pod
the node's own process makes the ranks (`worker/hosted.py`), as it does elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

from windlass.engines.kubernetes import layout
from windlass.engines.kubernetes.ways.base import Asked, Manifest, Way
from windlass.engines.kubernetes.ways.pytorchjob import numbered

SSH: Final = f"{layout.ROOT}/ssh"
SSH_PORT: Final = 2222
END_SECONDS: Final = 30.0
_SSH_OPTIONS: Final = (
    f"-p {SSH_PORT}", f"-i {SSH}/id_rsa", "-o StrictHostKeyChecking=no", "-o UserKnownHostsFile=/dev/null",
    "-o LogLevel=ERROR", "-o ConnectionAttempts=30",
)  # fmt: skip
_SSHD_OPTIONS: Final = (
    f"Port={SSH_PORT}", f"AuthorizedKeysFile={SSH}/authorized_keys", "PasswordAuthentication=no",
    "KbdInteractiveAuthentication=no", "UsePAM=no", "StrictModes=no", "PidFile=none", "PrintMotd=no",
)  # fmt: skip


class MPIJob(Way):
    """The operator makes one headless Service, by which pods find each other, and the keys."""

    name, api, kind, plural = "mpijob", "kubeflow.org/v2beta1", "MPIJob", "mpijobs"
    replaces_pods = True
    no_ttl = "keeps its Workers: the cluster would remove its Launcher alone"

    def made(self, meta: Manifest, template: Manifest, asked: Asked) -> list[Manifest]:
        """See `Way`."""
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
            # Nodes end by themselves, and say last words that a Launcher's end is not to cut off.
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "mpiReplicaSpecs": replicas,
        }
        return [{"apiVersion": self.api, "kind": self.kind, "metadata": meta, "spec": spec}]

    def host(self, name: str, subdomain: str, node: int) -> str:
        """See `Way`."""
        return f"{name}-launcher.{name}" if node == 0 else f"{name}-worker-{node - 1}.{name}"

    def resize(self, made: Manifest, num_nodes: int) -> None:
        """See `Way`. The ranks of MPI cannot come and go: a job stays as large as it was made."""


def launch_request(node: int, num_nodes: int, procs_per_node: int, guest: list[str]) -> dict[str, Any]:
    """What a node's request says of what starts its ranks: mpirun on the first, a way in for it on the others."""
    common = {"env": {}, "index": "OMPI_COMM_WORLD_LOCAL_RANK", "end_seconds": END_SECONDS}
    if node:
        return {"name": "sshd", "argv": _sshd(), **common, "serves": True}
    argv = [
        "mpirun",
        "--noprefix",  # its own folders are not put in front of the ranks' PATH and LD_LIBRARY_PATH
        *("--map-by", f"ppr:{procs_per_node}:node", "--oversubscribe", "--bind-to", "none", "--stdin", "none"),
        *("--mca", "plm_rsh_args", " ".join(_SSH_OPTIONS), "--mca", "plm_rsh_no_tree_spawn", "1"),
        # What it kills are guests: the ranks have their grace from the node, and need none of mpirun's second.
        *("--mca", "odls_base_sigkill_timeout", "0"),
        *("-np", str(num_nodes * procs_per_node)),
        *guest,
    ]
    # Alone it needs no list of hosts, in which its own name stands before the cluster knows it.
    env = {"OMPI_MCA_orte_default_hostfile": "none"} if num_nodes == 1 else {}
    return {"name": "mpirun", "argv": argv, **common, "env": env, "port": SSH_PORT}


def _sshd() -> list[str]:
    """A server of one's own, with a key of the host made a moment before: the job's key says who may come in."""
    key = f"{layout.WORK}/ssh_host_key"
    options = " ".join(f"-o {option}" for option in (*_SSHD_OPTIONS, f"HostKey={key}"))
    make = f'test -f {key} || ssh-keygen -q -t ed25519 -N "" -f {key}'
    # It wants to be called by its whole path, to call itself again.
    serve = f'exec "$(command -v sshd)" -D -e -f /dev/null {options}'
    return ["/bin/sh", "-c", f'PATH="$PATH:/usr/sbin:/usr/local/sbin"; {make} && {serve}']
