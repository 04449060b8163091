"""Objects that the tests of the test cluster create, as small as pod security `restricted` allows."""

from __future__ import annotations

from typing import Any

from tests.cluster.bed.cluster import Cluster

Object = dict[str, Any]
ALL_REDUCE = """
import os, socket, time
import torch, torch.distributed as dist
try:
    import windlass
except ImportError:
    pass
else:
    raise SystemExit("the image has windlass, which no image of a user has")
while True:
    try:
        socket.gethostbyname(os.environ["MASTER_ADDR"])
        break
    except OSError:
        time.sleep(0.1)
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=2)
mine = torch.tensor([float(os.environ["RANK"]) + 1])
dist.all_reduce(mine)
print("user", os.getuid(), "sum", mine.item())
store = dist.distributed_c10d._get_default_store()
store.set("ended/" + os.environ["RANK"], "yes")
if os.environ["RANK"] == "0":
    store.wait(["ended/1"])  # it serves the store: a rank that has not read all of it yet would fail
"""
SLEEP = "import time; time.sleep(3600)"


def pod_spec(cluster: Cluster, program: str, **fields: Any) -> Object:
    """Returns the spec of a pod that runs a Python program and ends at once on SIGTERM."""
    container = {
        "name": "main",
        "image": cluster.image,
        "command": [cluster.python, "-uc", program],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **fields.pop("container", {}),
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        **fields,
    }


def pod(cluster: Cluster, name: str, program: str, **fields: Any) -> Object:
    spec = pod_spec(cluster, program, **fields)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def job(cluster: Cluster, name: str, program: str, **fields: Any) -> Object:
    """Returns a Job with one pod that runs once."""
    spec = {"backoffLimit": 0, "template": {"spec": pod_spec(cluster, program, **fields)}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def headless(name: str, selector: dict[str, str]) -> Object:
    """Returns a headless Service that resolves its pods' names even before they are ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def environment(master: str, index_label: str) -> Object:
    """Returns the variables that torch needs; the rank comes from the index label of the controller."""
    rank = {"fieldRef": {"fieldPath": f"metadata.annotations['{index_label}']"}}
    variables = [{"name": "RANK", "valueFrom": rank}, {"name": "MASTER_ADDR", "value": master}]
    return {"env": [*variables, {"name": "MASTER_PORT", "value": "29500"}]}


def spread(labels: dict[str, str]) -> list[Object]:
    """Returns constraints that place pods with these labels on different nodes."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": labels},
        }
    ]


def indexed_job(cluster: Cluster, name: str, namespace: str) -> Object:
    """Returns a Job of two pods, one on each node, that find each other by name."""
    spec = pod_spec(
        cluster,
        ALL_REDUCE,
        subdomain=name,
        topologySpreadConstraints=spread({"job-name": name}),
        container=environment(
            f"{name}-0.{name}.{namespace}.svc.cluster.local", "batch.kubernetes.io/job-completion-index"
        ),
    )
    indexed = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**indexed, "template": {"spec": spec}},
    }


def jobset(cluster: Cluster, name: str) -> Object:
    """Returns a JobSet with the same two pods, and the Service that JobSet creates."""
    spec = pod_spec(
        cluster,
        ALL_REDUCE,
        container=environment(f"{name}-node-0-0.{name}", "batch.kubernetes.io/job-completion-index"),
    )
    indexed = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0}
    replicated = {"name": "node", "replicas": 1, "template": {"spec": {**indexed, "template": {"spec": spec}}}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [replicated]},
    }


def claim(name: str) -> Object:
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "bed", "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
