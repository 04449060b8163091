"""Rows of `faults.py`, and the actions that they apply to a run on a cluster."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import objects, operated
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import wait_for

from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.runs.logs import RunLogs

PATIENCE_SECONDS = 600.0
"""Time limit in seconds: a pod may start slowly while many tests run."""


@dataclass
class Scene:
    """The cluster, namespace and run of a row."""

    cluster: Cluster
    namespace: str
    run_id: str = ""
    engine: KubernetesEngine | None = None
    registry: str = ""
    """Address of a registry, as reached from the cluster's nodes."""
    mends: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Cleanup actions."""

    @property
    def bed(self) -> Bed:
        assert isinstance(self.cluster, Bed)
        return self.cluster

    def kubectl(self, *words: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, *words)

    def make(self, *objects: Any) -> None:
        self.cluster.apply(*objects, namespace=self.namespace)

    def log(self) -> str:
        assert self.engine is not None
        return "\n".join(line.text for line in RunLogs(self.engine.store.run_dir(self.run_id)).read())

    def wait_for_line(self, text: str = "ready", times: int = 1) -> None:
        wait_for(lambda: self.log().count(text) >= times, f"{text} in the log", PATIENCE_SECONDS)

    def pods(self) -> list[dict[str, Any]]:
        found = json.loads(self.kubectl("get", "pods", "-l", f"windlass.dev/run={self.run_id}", "-o", "json"))["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def machine(self, node: int) -> str:
        return str(self.pods()[node]["spec"]["nodeName"])


Act = Callable[[Scene], object]


@dataclass(frozen=True)
class Fault:
    """One row: a fault with its expected verdict."""

    name: str
    """The fault in the words of a user."""
    verdict: str
    """Code of the expected verdict."""
    words: tuple[str, ...] = ()
    """Texts that summary, evidence or fix must contain."""
    script: str = "print('ready', flush=True)\nimport time\ntime.sleep(600)\n"
    job: Mapping[str, Any] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)
    before: Act | None = None
    """Action before planning."""
    between: Act | None = None
    """Action between planning and submission."""
    act: Act | None = None
    """Action after submission."""
    ends: bool = False
    """Whether the run must end before `why` is called; otherwise it continues or waits."""
    breaks: bool = False
    """Whether the fault breaks the cluster itself, so that the row needs an exclusive cluster."""
    phase: str = ""
    """Phase that the run must be in when `why` is called."""
    operator: str = ""
    """Operator that must run in the cluster in addition to JobSet."""


# -- objects ----------------------------------------------------------------------------------------------------------


def quota(**hard: str) -> dict[str, Any]:
    amounts = {name.replace("_", "."): amount for name, amount in hard.items()}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": {"hard": amounts}}


def limit_range(**limits: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "narrow"},
        "spec": {"limits": [{"type": "Container", **limits}]},
    }


def made(*objects: Any) -> Act:
    return lambda scene: scene.make(*objects)


def queue(**of_cluster_queue: Any) -> Act:
    """Creates a queue `narrow` in the namespace with capacity for one processor; its cluster-wide objects are removed
    afterwards.
    """

    def act(scene: Scene) -> None:
        flavor, cluster_queue, local = operated.queue("narrow", scene.namespace, "1")
        labels = of_cluster_queue.pop("node_selector", {})
        flavor["spec"] |= {"nodeLabels": labels} if labels else {}
        cluster_queue["spec"] |= of_cluster_queue
        scene.make(flavor, cluster_queue, local)
        for kind in ("clusterqueue", "resourceflavor"):
            scene.mends.callback(scene.cluster.kubectl, "delete", kind, scene.namespace, "--wait=false")

    return act


def pool(*instance_types: str, sold_out: str = "", without_class: bool = False, **more: Any) -> Act:
    """Creates a NodePool `gpus` with these types; the pool and its nodes are removed afterwards."""

    def act(scene: Scene) -> None:
        scene.mends.enter_context(operated.pooled(scene.bed, "gpus", *instance_types, **more))
        scene.bed.sell_out(*sold_out.split())
        scene.mends.callback(scene.bed.sell_out)
        if without_class:
            scene.cluster.kubectl("delete", "kwoknodeclass", "gpus")

    return act


# -- acts -------------------------------------------------------------------------------------------------------------


def make_a_policy(scene: Scene) -> None:
    """Creates an administrator's admission policy for the pods of this namespace, which applies with a delay."""
    name = f"images-{scene.namespace}"
    meta, api = {"name": name}, "admissionregistration.k8s.io/v1"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    rule = {
        "expression": "object.spec.containers.all(c, c.image.startsWith('ours/'))",
        "message": "only images of ours may run here",
    }
    spaces = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}}}
    scene.make(
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": meta,
            "spec": {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": rules}, "validations": [rule]},
        },
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": meta,
            "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": spaces},
        },
    )
    for kind in ("validatingadmissionpolicy", "validatingadmissionpolicybinding"):
        scene.mends.callback(scene.cluster.kubectl, "delete", kind, name)
    pod = json.dumps(objects.pod(scene.cluster, "probe", objects.SLEEP))
    words = ("-n", scene.namespace, "create", "--dry-run=server", "-f", "-")

    def holds() -> bool:
        try:
            scene.cluster.kubectl(*words, stdin=pod)
        except subprocess.CalledProcessError as error:
            return "only images of ours" in error.stderr
        return False

    wait_for(holds, "the policy to hold", PATIENCE_SECONDS)


def removed(kind: str, name: str) -> Act:
    return lambda scene: scene.kubectl("delete", kind, name, "--wait=true")


def delete_a_pod(scene: Scene) -> None:
    scene.wait_for_line()
    scene.kubectl("delete", "pod", scene.pods()[0]["metadata"]["name"], "--wait=false")


def delete_the_job(scene: Scene) -> None:
    scene.wait_for_line()
    scene.kubectl("delete", "job", f"{scene.run_id}-1", "--wait=false")


def evict_a_pod(scene: Scene) -> None:
    """Evicts a pod like `kubectl drain`."""
    scene.wait_for_line()
    name = scene.pods()[0]["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": scene.namespace}}
    path = f"/api/v1/namespaces/{scene.namespace}/pods/{name}/eviction"
    scene.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))


def set_a_deadline(scene: Scene) -> None:
    scene.wait_for_line()
    scene.kubectl("patch", "job", f"{scene.run_id}-1", "-p", json.dumps({"spec": {"activeDeadlineSeconds": 1}}))


def want_its_machine(scene: Scene) -> None:
    """Creates a pod of higher priority that requests all GPUs of the node."""
    scene.wait_for_line()
    name = f"urgent-{scene.namespace}"
    scene.make(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 100000}
    )
    scene.mends.callback(scene.cluster.kubectl, "delete", "priorityclass", name)
    pod = objects.pod(
        scene.cluster,
        "urgent",
        objects.SLEEP,
        priorityClassName=name,
        nodeSelector={"kubernetes.io/hostname": scene.machine(0)},
        container={"resources": {"limits": {"nvidia.com/gpu": "2"}}},
    )
    scene.make(pod)


def queue_in_use(scene: Scene) -> None:
    """Creates a queue most of whose quota is used by another job."""
    queue()(scene)
    scene.make(operated.queued_job(scene.cluster, "other", "narrow", objects.SLEEP, "800m"))
    wait_for(
        lambda: "false" in scene.kubectl("get", "job", "other", "-o", "jsonpath={.spec.suspend}"),
        "the other job to be admitted",
        PATIENCE_SECONDS,
    )


def want_its_quota(scene: Scene) -> None:
    """Submits a job of higher priority to the same queue."""
    scene.wait_for_line()
    name = f"urgent-{scene.namespace}"
    scene.make(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    )
    scene.mends.callback(scene.cluster.kubectl, "delete", "priorityclass", name)
    job = operated.queued_job(scene.cluster, "urgent", "narrow", objects.SLEEP, "800m")
    job["spec"]["template"]["spec"]["priorityClassName"] = name
    scene.make(job)


def stop_its_queue(scene: Scene) -> None:
    scene.wait_for_line()
    policy = json.dumps({"spec": {"stopPolicy": "HoldAndDrain"}})
    scene.cluster.kubectl("patch", "clusterqueue", scene.namespace, "--type", "merge", "-p", policy)


def deactivate_it(scene: Scene) -> None:
    """Deactivates a Workload, like an administrator who does not want a job to be admitted."""
    words = ("get", "workloads.kueue.x-k8s.io", "-o", "jsonpath={.items[*].metadata.name}")
    wait_for(lambda: scene.kubectl(*words), "Kueue's record of the run", PATIENCE_SECONDS)
    for name in scene.kubectl(*words).split():
        if scene.run_id in name:
            off = json.dumps({"spec": {"active": False}})
            scene.kubectl("patch", "workloads.kueue.x-k8s.io", name, "--type", "merge", "-p", off)


def stopped_program(name: str) -> Act:
    def act(scene: Scene) -> None:
        scene.bed.stop_program(name)
        scene.mends.callback(scene.bed.start_program, name)

    return act


def silent_api(scene: Scene) -> None:
    scene.wait_for_line()
    scene.bed.freeze("kube-apiserver")
    scene.mends.callback(scene.bed.thaw, "kube-apiserver")


def dead_api(scene: Scene) -> None:
    scene.wait_for_line()
    scene.bed.kill_api_server()
    scene.mends.callback(scene.bed.start_api_server)


def power_cut(scene: Scene) -> None:
    scene.wait_for_line(times=2)
    machine = scene.machine(1)
    scene.bed.kill_node(machine)
    scene.mends.callback(scene.bed.start_node, machine)
    scene.bed.wait_for_node(machine, ready=False)


def write_script(folder: Path, row: Fault) -> None:
    (folder / "train.py").write_text(row.script)
