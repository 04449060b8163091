"""Before a run, nodes that cannot run its pods and objects that are missing are reported with what to write."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.reading.preflight.pod_needs import node_notes, read_nodes, reference_notes
from windlass.engines.kubernetes.reading.preflight.refusals import Author
from windlass.plan.notes import Note

AUTHOR = Author("lab", has_job=True)
DEDICATED = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
EFA = "vpc.amazonaws.com/efa"
READY = {"type": "Ready", "status": "True"}


def node(name: str = "a", *taints: dict[str, str], zone: str = "a", **has: str) -> dict[str, Any]:
    status = {"allocatable": {"cpu": "8", "memory": "32Gi", **has}, "conditions": [READY]}
    return {"metadata": {"name": name, "labels": {"zone": zone}}, "spec": {"taints": list(taints)}, "status": status}


def spec(limits: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "node", "resources": {"limits": limits or {}}}], **fields}


def said(notes: Any) -> list[tuple[str, str]]:
    found: list[Note] = list(notes)
    return [(note.code, note.message.removeprefix("ranks: ")) for note in found]


@pytest.mark.parametrize(
    ("pod", "nodes", "wanted"),
    [
        (spec(), [node()], []),
        (spec(), [], []),
        (spec(nodeSelector={"zone": "b"}), [node()], [("node-labels-missing", "no node has the labels zone=b")]),
        (spec({EFA: "4"}), [node(), node("b")],
         [("resource-missing", f"4 {EFA} requested, and none of 2 nodes has any")]),
        (spec({EFA: "4"}), [node(**{EFA: "1"})],
         [("resource-missing", f"4 {EFA} requested, and the largest node has 1")]),
        (spec({"hugepages-2Mi": "1Gi"}), [node(**{"hugepages-2Mi": "0"})],
         [("resource-missing", "1Gi hugepages-2Mi requested, and none of 1 nodes has any")]),
        (spec({"memory": "64Gi"}), [node()],
         [("resource-missing", "64Gi memory requested, and the largest node has 32Gi")]),
        (spec({"ephemeral-storage": "1Ti"}), [node()], []),
        (spec({EFA: "1"}), [node(), node("b", DEDICATED, **{EFA: "1"})],
         [("taint-not-tolerated", "each of 1 nodes that fit has a taint that they do not tolerate: "
           "dedicated=training:NoSchedule")]),
        (spec(), [node("a", DEDICATED), node("b")], []),
        (spec(tolerations=[{"key": "dedicated", "operator": "Exists"}]), [node("a", DEDICATED)], []),
        (spec(), [node("a", CORDONED)],
         [("taint-not-tolerated", "each of 1 nodes that fit has a taint that they do not tolerate: a temporary one")]),
    ],
)  # fmt: skip
def test_what_no_node_has_is_reported(pod: Any, nodes: list[Any], wanted: list[tuple[str, str]]) -> None:
    assert said(node_notes("ranks", pod, nodes, AUTHOR)) == wanted


def test_note_on_a_taint_has_the_toleration_to_write() -> None:
    [note] = node_notes("ranks", spec(), [node("a", DEDICATED)], AUTHOR)
    option = "tolerations: [dedicated=training:NoSchedule]"
    assert note.fix == f"kubernetes: {{{option}}} in the job, or {option} in target lab"
    [cordoned] = node_notes("ranks", spec(), [node("a", CORDONED)], AUTHOR)
    assert cordoned.fix == "kubectl get nodes"
    gpu = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
    [note] = node_notes("ranks", spec(), [node("a", gpu)], AUTHOR)
    assert note.fix.endswith("ranks that request GPUs tolerate nvidia.com/gpu")


def test_nodes_that_are_not_seen_give_no_notes(server: ObjectServer, client: Client) -> None:
    server.put("Node", "a", status={"conditions": [READY]})
    server.put("Node", "b", status={"conditions": []})
    assert [one["metadata"]["name"] for one in read_nodes(client)] == ["a"]
    server.forbidden.add("nodes")
    assert read_nodes(client) == []


def env(kind: str, name: str, key: str, **more: Any) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {kind: {"name": name, "key": key, **more}}}


@pytest.mark.parametrize(
    ("container", "volumes", "wanted"),
    [
        ({"envFrom": [{"configMapRef": {"name": "nccl"}}]}, [], []),
        ({"envFrom": [{"configMapRef": {"name": "other"}}]}, [], ["ConfigMap other is not in the namespace"]),
        ({"env": [env("secretKeyRef", "login", "token")]}, [], []),
        ({"env": [env("secretKeyRef", "login", "key")]}, [], ["Secret login has no key key"]),
        ({"env": [env("secretKeyRef", "gone", "key", optional=True)]}, [], []),
        ({"env": [env("configMapKeyRef", "nccl", "topology")]}, [], ["ConfigMap nccl has no key topology"]),
        ({}, [{"configMap": {"name": "topology"}}], ["ConfigMap topology is not in the namespace"]),
        ({}, [{"configMap": {"name": "nccl", "items": [{"key": "x", "path": "x"}]}}], ["ConfigMap nccl has no key x"]),
        ({}, [{"secret": {"secretName": "gone"}}], ["Secret gone is not in the namespace"]),
        ({}, [{"projected": {"sources": [{"secret": {"name": "gone"}}]}}], ["Secret gone is not in the namespace"]),
        (
            {},
            [{"persistentVolumeClaim": {"claimName": "d"}}],
            ["PersistentVolumeClaim d is not in the namespace"],
        ),
        ({}, [{"persistentVolumeClaim": {"claimName": "made"}}], []),
        ({}, [{"configMap": {"name": "r-1"}}, {"configMap": {"name": "r-1-code-0"}}], []),
    ],
)
def test_missing_objects_and_keys_are_reported(
    server: ObjectServer, client: Client, container: Any, volumes: Any, wanted: list[str]
) -> None:
    server.put("ConfigMap", "nccl", data={"NCCL_DEBUG": "INFO"})
    server.put("Secret", "login", data={"token": "eA=="})
    pod = {"containers": [{"name": "node", **container}], "volumes": [{"name": "v", **one} for one in volumes]}
    made = {("PersistentVolumeClaim", "made")}
    notes = list(reference_notes(client, "ranks", pod, "r-1", made))
    assert [text for _, text in said(notes)] == wanted
    assert all(note.blocks and "eA==" not in note.fix for note in notes)
    server.forbidden |= {"configmaps", "secrets", "persistentvolumeclaims"}
    assert list(reference_notes(client, "ranks", pod, "r-1", made)) == []


def test_scheduler_that_has_scheduled_no_pod_is_a_warning(server: ObjectServer, client: Client) -> None:
    pod = spec(schedulerName="volcano")
    [note] = reference_notes(client, "ranks", pod, "r-1", ())
    assert (note.code, note.blocks) == ("scheduler-unseen", False)
    server.put("Pod", "other", spec={"schedulerName": "volcano"})
    assert list(reference_notes(client, "ranks", pod, "r-1", ())) == []
