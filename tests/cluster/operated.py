"""The objects that the tests of the operators send: the same small training, in the shape of each operator's kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.bed.node import GPU
from tests.cluster.objects import ALL_REDUCE, SLEEP, Object, headless, indexed_job, job, pod_spec

SSH_PORT = 2222
"""A user who is not root may listen there."""
HOME = "/home/trainer"
RUNTIME = "digits"
FROM_TORCHRUN = """
import os
os.environ |= {name: os.environ["PET_" + given] for name, given in (
    ("RANK", "NODE_RANK"), ("MASTER_ADDR", "MASTER_ADDR"), ("MASTER_PORT", "MASTER_PORT"))}
"""
"""What torchrun reads, as what torch reads: one process on each node needs no torchrun."""
MPI_SUM = """
import os
from mpi4py import MPI
print("user", os.getuid(), "sum", float(MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank() + 1)))
"""
SSHD = [
    "/usr/sbin/sshd",
    "-De",
    "-f",
    "/dev/null",
    "-p",
    str(SSH_PORT),
    # The operator's key serves as the host's too: one of its own would have to be made, or lie in the image.
    "-o",
    f"HostKey={HOME}/.ssh/id_rsa",
    "-o",
    "PidFile=none",
    "-o",
    "UsePAM=no",
    # The files of a Secret are root's, and open to all.
    "-o",
    "StrictModes=no",
]
SSH = f"-p {SSH_PORT} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"


def pytorchjob(cluster: Cluster, name: str) -> Object:
    """A master and a worker."""
    spec = pod_spec(cluster, ALL_REDUCE, container={"name": "pytorch"})
    del spec["restartPolicy"]
    replica = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": spec}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}},
    }


def training_runtime(cluster: Cluster) -> Object:
    """What TrainJobs of this namespace are made of."""
    spec = pod_spec(cluster, FROM_TORCHRUN + ALL_REDUCE, container={"name": "node"})
    template = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": spec}},
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": RUNTIME},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": template}]}},
        },
    }


def trainjob(name: str) -> Object:
    """Two nodes of that runtime."""
    runtime = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": RUNTIME}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": runtime, "trainer": {"numNodes": 2, "numProcPerNode": 1}},
    }


def mpijob(cluster: Cluster, name: str) -> Object:
    """A launcher, and two workers that it reaches by sshd, each as a user that is not root."""
    command = ["mpirun", "--oversubscribe", "--mca", "plm_rsh_args", SSH, "-np", "2", cluster.python, "-uc", MPI_SUM]
    heard = {"readinessProbe": {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 1}}
    launcher = pod_spec(cluster, "", container={"command": command})
    worker = pod_spec(cluster, "", container={"command": SSHD, **heard})
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {
            "slotsPerWorker": 1,
            "sshAuthMountPath": f"{HOME}/.ssh",
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"backoffLimit": 0, "cleanPodPolicy": "Running"},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": {"spec": launcher}},
                "Worker": {"replicas": 2, "template": {"spec": worker}},
            },
        },
    }


def queue(name: str, namespace: str, cpu: str) -> list[Object]:
    """A queue of a namespace with so many processors; what belongs to the whole cluster has the namespace's name."""
    room = {"name": namespace, "resources": [{"name": "cpu", "nominalQuota": cpu}]}
    group = {"coveredResources": ["cpu"], "flavors": [room]}
    return [
        flavor(namespace),
        _kueue("ClusterQueue", namespace, {"namespaceSelector": {}, "resourceGroups": [group]}),
        _kueue("LocalQueue", name, {"clusterQueue": namespace}),
    ]


def flavor(name: str, node_labels: dict[str, str] | None = None) -> Object:
    """Quota that is good for machines with these labels; without any, for every machine."""
    return _kueue("ResourceFlavor", name, {"nodeLabels": node_labels} if node_labels else {})


def _kueue(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def queued_job(cluster: Cluster, name: str, queue_name: str, program: str, cpu: str) -> Object:
    """A Job that waits until its queue has room."""
    made = job(cluster, name, program, container={"resources": {"requests": {"cpu": cpu}}})
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue_name}
    made["spec"]["suspend"] = True
    return made


def until_collected(cluster: Cluster, namespace: str, queue_name: str) -> None:
    """Wait until the garbage collector of the cluster deletes the Workload of a Job that is gone.

    It looks for new kinds every 30 s. Until then Workloads keep their quota, and all are deleted in one moment, after
    which Kueue 0.15 may leave a Workload pending that there is room for. On a cluster in use Kueue is older than that.
    """
    cluster.apply(queued_job(cluster, "collected", queue_name, SLEEP, "10m"), namespace=namespace)

    def workloads() -> str:
        return cluster.kubectl("get", "workloads.kueue.x-k8s.io", "-n", namespace, "-o", "name")

    wait_for(workloads, "the Workload of a Job")
    cluster.kubectl("delete", "job", "collected", "-n", namespace, "--wait=false")
    wait_for(lambda: not workloads(), "the Workload of a deleted Job to be deleted")


def node_pool(
    name: str,
    *instance_types: str,
    labels: dict[str, str] | None = None,
    taints: list[Object] | None = None,
    delay: str = "",
    **spec: Any,
) -> list[Object]:
    """A pool of Karpenter's, of nodes with these types, and the class that it refers to; they go when empty.

    `name` is part of the nodes' names, which have to fit into a label: a few letters. `delay` is how long its machines
    take from their launch until they are in the cluster.
    """
    types = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(instance_types)}
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": name}
    its: Object = {"nodeClassRef": reference, "requirements": [types], **({"taints": taints} if taints else {})}
    template = {"metadata": {"labels": labels or {}}, "spec": its}
    # By default a tenth of the nodes, rounded up, may go at a time: with two it would be one after the other.
    disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1s", "budgets": [{"nodes": "100%"}]}
    return [
        {
            "apiVersion": "karpenter.kwok.sh/v1alpha1",
            "kind": "KWOKNodeClass",
            "metadata": {"name": name},
            "spec": {"nodeRegistrationDelay": delay} if delay else {},
        },
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": name},
            "spec": {"template": template, "disruption": disruption, **spec},
        },
    ]


@contextmanager
def pooled(bed: Bed, name: str, *instance_types: str, **more: Any) -> Iterator[None]:
    """Such a pool for as long as a test wants it; nothing that Karpenter has made for it is left afterwards."""
    made = {"apiVersion": "v1", "kind": "List", "items": node_pool(name, *instance_types, **more)}
    bed.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    try:
        yield
    finally:
        bed.kubectl("delete", "nodepool", name)
        wait_for(lambda: not _made_for(bed, name), f"the nodes of {name} to go", 240)


def _made_for(bed: Bed, pool: str) -> list[Object]:
    """The claims and the nodes of a pool."""
    kinds = ("/apis/karpenter.sh/v1/nodeclaims", "/api/v1/nodes")
    return [
        each for kind in kinds for each in bed.api.get(f"{kind}?labelSelector=karpenter.sh/nodepool={pool}")["items"]
    ]


def hungry(cluster: Cluster, namespace: str, gpus: int) -> list[Object]:
    """The two pods that train, each with more GPUs than the bed's own nodes have."""
    made = indexed_job(cluster, "digits", namespace)
    made["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {GPU: str(gpus)}}
    return [headless("digits", {"job-name": "digits"}), made]
