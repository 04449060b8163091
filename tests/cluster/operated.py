"""Objects that the tests of the operators create: the same small training as each operator's kind."""

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
"""Port of sshd that a non-root user may listen on."""
HOME = "/home/trainer"
RUNTIME = "digits"
FROM_TORCHRUN = """
import os
os.environ |= {name: os.environ["PET_" + given] for name, given in (
    ("RANK", "NODE_RANK"), ("MASTER_ADDR", "MASTER_ADDR"), ("MASTER_PORT", "MASTER_PORT"))}
"""
"""Converts the variables of torchrun to those of torch, since one process per node needs no torchrun."""
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
    # The operator's key is the host key too: a separate one would have to be created, or be part of the image.
    "-o",
    f"HostKey={HOME}/.ssh/id_rsa",
    "-o",
    "PidFile=none",
    "-o",
    "UsePAM=no",
    # The files of a Secret belong to root and are readable by all.
    "-o",
    "StrictModes=no",
]
SSH = f"-p {SSH_PORT} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"


def pytorchjob(cluster: Cluster, name: str) -> Object:
    """Returns a PyTorchJob with a master and a worker."""
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
    """Returns the runtime of the TrainJobs in this namespace."""
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
    """Returns a TrainJob with two nodes of that runtime."""
    runtime = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": RUNTIME}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": runtime, "trainer": {"numNodes": 2, "numProcPerNode": 1}},
    }


def mpijob(cluster: Cluster, name: str) -> Object:
    """Returns an MPIJob with a launcher and two workers that it reaches over sshd, each as a non-root user."""
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
    """Returns a queue of a namespace with this many processors; its cluster-wide objects have the namespace's name."""
    room = {"name": namespace, "resources": [{"name": "cpu", "nominalQuota": cpu}]}
    group = {"coveredResources": ["cpu"], "flavors": [room]}
    return [
        flavor(namespace),
        _kueue("ClusterQueue", namespace, {"namespaceSelector": {}, "resourceGroups": [group]}),
        _kueue("LocalQueue", name, {"clusterQueue": namespace}),
    ]


def flavor(name: str, node_selector: dict[str, str] | None = None) -> Object:
    """Returns a flavor for nodes with these labels, by default for every node."""
    return _kueue("ResourceFlavor", name, {"nodeLabels": node_selector} if node_selector else {})


def _kueue(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def queued_job(cluster: Cluster, name: str, queue_name: str, program: str, cpu: str) -> Object:
    """Returns a Job that waits until its queue has capacity."""
    made = job(cluster, name, program, container={"resources": {"requests": {"cpu": cpu}}})
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue_name}
    made["spec"]["suspend"] = True
    return made


def until_collected(cluster: Cluster, namespace: str, queue_name: str) -> None:
    """Waits until the cluster's garbage collector deletes the Workload of a deleted Job.

    The collector looks for new kinds every 30 s. Until then Workloads keep their quota, and all are deleted at once,
    after which Kueue 0.15 may leave a Workload pending in spite of free quota. In a cluster in use, Kueue was installed
    long before.
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
    """Returns a Karpenter NodePool with these instance types, and the class that it refers to; its empty nodes are
    deleted.

    `name` is part of the nodes' names, which must fit into a label: use a few letters. `delay` is the time between the
    launch of a node and its registration.
    """
    types = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(instance_types)}
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": name}
    its: Object = {"nodeClassRef": reference, "requirements": [types], **({"taints": taints} if taints else {})}
    template = {"metadata": {"labels": labels or {}}, "spec": its}
    # By default at most a tenth of the nodes, rounded up, may be deleted at a time: two nodes would be deleted one by
    # one.
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
    """Creates such a pool for the duration of a test, and waits until its nodes are deleted."""
    made = {"apiVersion": "v1", "kind": "List", "items": node_pool(name, *instance_types, **more)}
    bed.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    try:
        yield
    finally:
        bed.kubectl("delete", "nodepool", name)
        wait_for(lambda: not _made_for(bed, name), f"the nodes of {name} to go", 240)


def _made_for(bed: Bed, pool: str) -> list[Object]:
    """Returns the NodeClaims and nodes of a pool."""
    kinds = ("/apis/karpenter.sh/v1/nodeclaims", "/api/v1/nodes")
    return [
        each for kind in kinds for each in bed.api.get(f"{kind}?labelSelector=karpenter.sh/nodepool={pool}")["items"]
    ]


def hungry(cluster: Cluster, namespace: str, gpus: int) -> list[Object]:
    """Returns the two training pods, each with more GPUs than the test cluster's own nodes have."""
    made = indexed_job(cluster, "digits", namespace)
    made["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {GPU: str(gpus)}}
    return [headless("digits", {"job-name": "digits"}), made]
