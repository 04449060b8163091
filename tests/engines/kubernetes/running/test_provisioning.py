"""Provisioning of nodes is read from Karpenter's objects and from events of Cluster Autoscaler.

The objects are written by hand, as karpenter 1.14 and cluster-autoscaler 1.34 create them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.engines.kubernetes.planning.test_plan import CLUSTER, FACTS, TARGET, planned
from tests.engines.kubernetes.reading.preflight.test_checks import found, served

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects.node_pools import labels_made, match
from windlass.engines.kubernetes.objects.observations import NodeClaimStatus
from windlass.engines.kubernetes.reading import claims, karpenter
from windlass.engines.kubernetes.running import deletion
from windlass.engines.kubernetes.running.provisioning_watch import ProvisioningWatch
from windlass.runs.events import Event, NodeProvisioning

Object = dict[str, Any]
TYPE = "node.kubernetes.io/instance-type"
NOW = 1_767_225_700.0
"""100 s after the start of 2026, in Unix seconds."""
START = "2026-01-01T00:00:00Z"


def spec(gpus: int = 4, **more: Any) -> Object:
    amounts = {"nvidia.com/gpu": str(gpus)}
    return {"containers": [{"resources": {"requests": amounts, "limits": amounts}}], **more}


def pool(name: str = "gpus", *types: str, requirements: list[Object] | None = None, **more: Any) -> Object:
    asked = [{"key": TYPE, "operator": "In", "values": list(types)}] if types else []
    its = {"requirements": [*asked, *(requirements or [])], "taints": more.pop("taints", [])}
    template = {"metadata": {"labels": more.pop("labels", {})}, "spec": its}
    status = more.pop("status", {})
    return {"metadata": {"name": name}, "spec": {"template": template, **more}, "status": status}


def claim(name: str = "gpus-7x2kq", *conditions: tuple[str, str, str], **status: Any) -> Object:
    """Returns a NodeClaim; conditions are type, status and reason, each 10 s after the previous one."""
    labels = {"karpenter.sh/nodepool": name.rpartition("-")[0]}
    if conditions and conditions[0][1] == "True":
        labels |= {TYPE: "g5.12xlarge", "topology.kubernetes.io/zone": "bed-a", "karpenter.sh/capacity-type": "spot"}
    told = [
        {"type": kind, "status": state, "reason": reason, "lastTransitionTime": f"2026-01-01T00:00:{10 * at:02}Z"}
        for at, (kind, state, reason) in enumerate(conditions, 1)
    ]
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": START},
        "status": {"conditions": told, **status},
    }


def event(
    reason: str, message: str, name: str = "r-1-0-x", kind: str = "Pod", *, at: int = 1, by: str = "karpenter"
) -> Object:
    about, meta = {"kind": kind, "name": name}, {"name": "e"}
    return {
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "metadata": meta,
        "lastTimestamp": f"2026-01-01T00:00:{at:02}Z",
        "source": {"component": by},
    }


POD: Object = {"metadata": {"name": "r-1-0-x", "creationTimestamp": START}, "status": {}}
NOMINATED = event("Nominated", "Pod should schedule on: nodeclaim/gpus-7x2kq")
DONE = (("Launched", "True", "Launched"), ("Registered", "True", "Registered"))


# -- pools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "wanted", "words"),
    [
        (pool("gpus", "g5.12xlarge"), spec(nodeSelector={TYPE: "p5.48xlarge"}), "g5.12xlarge, not p5.48xlarge"),
        (pool(taints=[{"key": "team", "value": "vision", "effect": "NoSchedule"}]), spec(), "team=vision:NoSchedule"),
        (pool(), spec(nodeSelector={"team": "vision"}), "do not have team vision"),
        (pool(labels={"team": "audio"}), spec(nodeSelector={"team": "vision"}), "team audio, not vision"),
        (
            pool(requirements=[{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]),
            spec(nodeSelector={"karpenter.sh/capacity-type": "spot"}),
            "on-demand, not spot",
        ),
        (
            pool(requirements=[{"key": "karpenter.k8s.aws/instance-gpu-count", "operator": "Gt", "values": ["4"]}]),
            spec(nodeSelector={"karpenter.k8s.aws/instance-gpu-count": "4"}),
            "instance-gpu-count 4",
        ),
    ],
)
def test_pool_that_does_not_match_has_a_reason(made: Object, wanted: Object, words: str) -> None:
    [mismatch] = match(made, wanted).mismatch
    assert words in mismatch


@pytest.mark.parametrize(
    ("made", "wanted", "types"),
    [
        (pool("gpus", "g5.12xlarge", "g5.xlarge"), spec(), ("g5.12xlarge", "g5.xlarge")),
        (pool("gpus", "g5.12xlarge", "g5.xlarge"), spec(nodeSelector={TYPE: "g5.xlarge"}), ("g5.xlarge",)),
        (pool(), spec(nodeSelector={TYPE: "p5.48xlarge"}), ()),
        (pool(), spec(nodeSelector={"topology.kubernetes.io/zone": "a", "karpenter.sh/nodepool": "gpus"}), ()),
        (pool(labels={"team": "vision"}), spec(nodeSelector={"team": "vision"}), ()),
        (
            pool(taints=[{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]),
            spec(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]),
            (),
        ),
        (pool(taints=[{"key": "soft", "effect": "PreferNoSchedule"}]), spec(), ()),
        (pool(limits={"nvidia.com/gpu": "2"}), spec(), ()),
    ],
)
def test_pool_matches_by_labels_instance_types_and_taints(made: Object, wanted: Object, types: tuple[str, ...]) -> None:
    seen = match(made, wanted)
    assert (seen.mismatch, seen.types) == ((), types)


def test_what_a_pool_reports_of_itself_is_shown() -> None:
    status = {
        "resources": {"nvidia.com/gpu": "6"},
        "conditions": [{"type": "Ready", "status": "False", "reason": "NodeClassNotReady"}],
    }
    seen = match(pool(limits={"nvidia.com/gpu": "8"}, status=status), spec())
    assert (seen.limits, seen.not_ready) == (("6 of 8 nvidia.com/gpu",), "NodeClassNotReady")


def test_gpu_types_of_nodes_to_provision_are_known() -> None:
    name = "karpenter.k8s.aws/instance-gpu-name"
    made = pool(requirements=[{"key": name, "operator": "In", "values": ["a100", "t4"]}])
    assert labels_made([made], [name]) == {(name, "a100"), (name, "t4")}


# -- plan and check ---------------------------------------------------------------------------------------------------


def planned_with(*pools: Object, **fields: Any) -> Any:
    cluster = replace(CLUSTER, node_pools=pools)
    target = TARGET.model_copy(update={"prices": {"g5.12xlarge": 5.5}})
    return planned(replace(FACTS, cluster=cluster), target, resources={"gpus": 4}, nodes=2, procs_per_node=1, **fields)


def test_the_plan_names_the_pools_that_match_with_types_and_prices() -> None:
    capacity = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}
    family = {"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["p4d"]}
    made = planned_with(
        pool("cpus", taints=[{"key": "team", "effect": "NoSchedule"}]),
        pool("gpus", "g5.12xlarge", requirements=[capacity]),
        pool("more", requirements=[family]),
    )
    [step] = [step for step in made.steps if step.kind == "machines"]
    assert "NodePool gpus makes g5.12xlarge (5.5 USD an hour), spot" in step.summary
    assert "NodePool more makes karpenter.k8s.aws/instance-family in p4d" in step.summary
    assert "cpus" not in step.summary
    assert [note.code for note in made.notes if note.code == "machines-none"] == []
    assert made.price is None


def test_job_that_only_one_type_can_serve_has_its_price() -> None:
    made = planned_with(pool("gpus", "g5.12xlarge"))
    assert made.price is not None
    assert made.price.per_hour == 11.0


def test_plan_warns_if_no_pool_matches_and_is_not_refused() -> None:
    made = planned_with(pool("gpus", "g5.xlarge", taints=[{"key": "team", "effect": "NoSchedule"}]))
    [note] = [note for note in made.notes if note.code == "machines-none"]
    assert "NodePool gpus: its nodes have the taint team:NoSchedule" in note.message
    assert not note.blocks
    assert [step for step in made.steps if step.kind == "machines"] == []


ENDLESS: Object = {"expireAfter": "Never"}


@pytest.mark.parametrize(
    ("node", "disruption", "words"),
    [
        (
            {"expireAfter": "336h", "terminationGracePeriod": "24h0m0s"},
            {},
            "336h after its launch it is drained (expireAfter), and 24h later (terminationGracePeriod) pods",
        ),
        ({"expireAfter": "720h"}, {}, "720h after its launch (expireAfter) a node takes no more pods"),
        ({"expireAfter": "Never", "terminationGracePeriod": "1h"}, {}, "drifts from its NodePool"),
        (ENDLESS, {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s"}, "0s after its last"),
        (ENDLESS, {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "30s"}, "30s after its last pod"),
    ],
)
def test_plan_warns_of_pools_that_end_pods_in_spite_of_do_not_disrupt(
    node: Object, disruption: Object, words: str
) -> None:
    made = pool("gpus", "g5.12xlarge", disruption=disruption)
    made["spec"]["template"]["spec"] |= node
    [note] = [note for note in planned_with(made, restarts=3).notes if note.code == "machines-disrupted"]
    assert words in note.message
    assert "NodePool gpus" in note.message
    assert not note.blocks


@pytest.mark.parametrize(
    ("disruption", "fields", "taints"),
    [
        ({"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "300s"}, {"restarts": 3}, []),
        ({"consolidationPolicy": "Balanced", "consolidateAfter": "Never"}, {"restarts": 3}, []),
        ({"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s"}, {}, []),
        (
            {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s"},
            {"restarts": 3},
            [{"key": "team", "effect": "NoSchedule"}],
        ),
    ],
)
def test_pools_that_keep_the_nodes_of_a_run_give_no_warning(
    disruption: Object, fields: Object, taints: list[Object]
) -> None:
    made = pool("gpus", "g5.12xlarge", disruption=disruption, taints=taints)
    made["spec"]["template"]["spec"] |= ENDLESS
    assert "machines-disrupted" not in [note.code for note in planned_with(made, **fields).notes]


def test_check_lists_the_provisioners_of_nodes() -> None:
    karpenter = served("batch/v1", "karpenter.sh/v1")
    made = pool("gpus", "g5.12xlarge", limits={"nvidia.com/gpu": "8"}, status={"resources": {"nvidia.com/gpu": "4"}})
    told = found(groups=karpenter, pools={"items": [made]})
    assert told["machines"].found == "Karpenter makes: gpus (g5.12xlarge; 4 of 8 nvidia.com/gpu)"
    assert "Karpenter v1" in told["operators"].found
    assert found(groups=karpenter, pools={"items": []})["machines"].level == "warn"
    refused = Refused("the cluster refused: nodepools is forbidden", "", status=403)
    assert "NodePools" in found(groups=karpenter, pools=refused)["not seen"].found


STATUS = """
time: 2026-01-01 00:00:00 +0000 UTC
autoscalerStatus: Running
clusterWide:
  health: {status: Healthy}
nodeGroups:
- name: gpu-asg
  health:
    status: Healthy
    nodeCounts: {registered: {total: 1, ready: 1}}
    minSize: 0
    maxSize: 4
  scaleUp:
    status: Backoff
    backoffInfo: {errorCode: OutOfResources, errorMessage: no capacity of p4d.24xlarge}
"""


def test_the_check_lists_the_groups_of_cluster_autoscaler() -> None:
    status = karpenter.parsed_status({"data": {"status": STATUS}})
    check = found(autoscaler={"status": status})["machines"]
    assert check.level == "warn"
    assert check.found == (
        "Cluster Autoscaler is Running: gpu-asg (1 nodes, 0 to 4); gpu-asg is in backoff: no capacity of p4d.24xlarge"
    )
    assert karpenter.parsed_status({"data": {"status": "Cluster-autoscaler status at 2023:\nCluster-wide:"}}) is None


# -- machines that come -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conditions", "state", "reason", "seconds"),
    [
        ((), "asked", "", 100.0),
        ((("Launched", "Unknown", "LaunchFailed"),), "asked", "LaunchFailed", 100.0),
        ((("Launched", "True", "Launched"), ("Registered", "Unknown", "AwaitingReconciliation")), "launched", "", 90.0),
        ((*DONE, ("Initialized", "Unknown", "NodeNotReady")), "registered", "NodeNotReady", 80.0),
        ((*DONE, ("Initialized", "True", "Initialized")), "initialized", "", 70.0),
    ],
)
def test_state_of_a_node_claim_follows_its_conditions(conditions: Any, state: str, reason: str, seconds: float) -> None:
    seen = claims.claim_status(claim("gpus-7x2kq", *conditions), (), NOW)
    assert (seen.state, seen.reason, seen.seconds, seen.pool) == (state, reason, seconds, "gpus")


def test_each_state_of_a_node_claim_has_its_time() -> None:
    made = claim("gpus-7x2kq", *DONE, ("Initialized", "True", "Initialized"), nodeName="n7")
    steps = claims.steps(made, (), NOW)
    assert [(one.state, one.seconds) for one in steps] == [
        ("asked", 100.0),
        ("launched", 90.0),
        ("registered", 80.0),
        ("initialized", 70.0),
    ]
    assert [one.instance_type for one in steps[:2]] == ["", "g5.12xlarge"]
    assert [one.machine for one in steps] == ["", "", "n7", "n7"]


def look(
    events: list[Object],
    found: list[Object] | None = None,
    known: tuple[NodeClaimStatus, ...] = (),
    of_claims: list[Object] | None = None,
) -> Any:
    lists = {"claims": found, "of claims": of_claims}
    answers = {name: items for name, items in lists.items() if items is not None}
    return claims.provisioned([POD], events, answers, [], known, NOW)


def test_nominated_pod_has_a_node_that_is_being_provisioned() -> None:
    seen, said = look([NOMINATED], [claim("gpus-7x2kq", *DONE), claim("others-abcde", *DONE)])
    assert [(one.name, one.state, one.instance_type) for one in seen] == [("gpus-7x2kq", "registered", "g5.12xlarge")]
    assert said == []


def test_nomination_is_known_without_permission_to_list_node_claims() -> None:
    seen, _ = look([NOMINATED])
    assert [(one.name, one.state) for one in seen] == [("gpus-7x2kq", "asked")]


def test_deleted_node_claim_is_gone_for_the_reason_of_its_event() -> None:
    failed = event(
        "InsufficientCapacityError", "NodeClaim gpus-7x2kq event: no capacity is left", "gpus-7x2kq", "NodeClaim", at=3
    )
    seen, said = look([NOMINATED], [claim("others-abcde")], of_claims=[failed])
    assert [(one.name, one.state) for one in seen] == [("gpus-7x2kq", "gone")]
    assert [(one.kind, one.message) for one in said] == [("NodeClaim", "no capacity is left")]


def test_the_claim_of_a_node_that_a_pod_is_placed_on_is_one_of_its_nodes() -> None:
    placed = {**POD, "spec": {"nodeName": "n7"}}
    made = claim("gpus-7x2kq", *DONE, nodeName="n7")
    seen, _ = claims.provisioned([placed], [], {"claims": [made]}, [], (), NOW)
    assert [(one.name, one.state, one.machine) for one in seen] == [("gpus-7x2kq", "registered", "n7")]


def test_a_node_that_was_ready_before_a_pod_is_not_provisioned_for_it() -> None:
    placed = {"metadata": {"name": "r-1-0-x", "creationTimestamp": "2026-01-01T00:00:50Z"}, "spec": {"nodeName": "n7"}}
    ready = claim("gpus-7x2kq", *DONE, ("Initialized", "True", "Initialized"), nodeName="n7")
    assert claims.provisioned([placed], [], {"claims": [ready]}, [], (), NOW)[0] == ()


def test_newest_provisioning_event_of_a_pod_counts_and_scheduler_events_do_not() -> None:
    refused = event("FailedScheduling", "Failed to schedule pod, did not tolerate a=b:NoSchedule", at=5)
    schedulers = event("FailedScheduling", "0/2 nodes are available", at=9, by="default-scheduler")
    _, said = look([NOMINATED, refused, schedulers])
    assert [one.message for one in said] == ["Failed to schedule pod, did not tolerate a=b:NoSchedule"]
    _, said = look([refused, event("Nominated", "Pod should schedule on: nodeclaim/gpus-a, node/x", at=7)])
    assert said == []


def test_growing_group_of_cluster_autoscaler_is_a_node_being_provisioned() -> None:
    grows = event("TriggeredScaleUp", "pod triggered scale-up: [{gpu-asg 0->2 (max: 4)}]", by="cluster-autoscaler")
    seen, _ = look([grows])
    assert [(one.name, one.pool, one.message) for one in seen] == [("gpu-asg 0->2", "gpu-asg", "of at most 4")]
    assert claims.still_there(seen) == ()


# -- the record -------------------------------------------------------------------------------------------------------


def later(known: Sequence[NodeClaimStatus], *there: Object) -> list[tuple[NodeProvisioning, float]]:
    """Returns the recorded events with their times, for the known nodes and the NodeClaims that exist now."""
    watch = ProvisioningWatch(cast("Client", None), known)
    watch.take((), (), {"claims": there}, NOW)
    return [(cast("NodeProvisioning", event.entry), event.at) for event in deletion.counted(watch)]


def test_record_contains_provisioned_nodes_and_their_deletion() -> None:
    first = claims.claim_status(claim("gpus-7x2kq", *DONE, nodeName="n7"), (), NOW)
    events = [
        Event(1, 1.0, "attempt", {}),
        claims.event_of(first).event(2, 2.0),
        Event(3, 9.0, "attempt", {}),
        Event(4, 10.0, "machine", {"name": "gpus-b", "state": "initialized"}),
    ]
    assert [one.name for one in claims.recorded(events, 30.0)] == ["gpus-b"]
    every = claims.recorded(events, 30.0, every_attempt=True)
    assert [(one.name, one.seconds) for one in every] == [("gpus-7x2kq", 28.0), ("gpus-b", 20.0)]
    told = later(every, claim("gpus-b", *DONE, ("Initialized", "True", "Initialized")))
    assert [(one.name, one.machine, one.state, one.left) for one, _ in told] == [("gpus-7x2kq", "n7", "gone", 1)]
    after = [*events, told[0][0].event(5, 11.0)]
    assert [one.name for one in claims.still_there(claims.recorded(after, 30.0, every_attempt=True))] == ["gpus-b"]
    assert [one.left for one, _ in later(every)] == [1, 0]


def test_node_states_after_the_end_of_a_run_are_recorded_with_their_times() -> None:
    launched = claims.claim_status(claim("gpus-7x2kq", DONE[0]), (), NOW)
    whole = claim("gpus-7x2kq", *DONE, ("Initialized", "True", "Initialized"), nodeName="n7")
    told = later([launched], whole)
    assert [(event.state, event.machine) for event, _ in told] == [("registered", "n7"), ("initialized", "n7")]
    assert told[1][1] - told[0][1] == pytest.approx(10.0, abs=1.0)
    assert later([claims.claim_status(whole, (), NOW)], whole) == []


def test_late_node_has_the_reason_of_its_delay() -> None:
    made = claim("gpus-7x2kq", *DONE, ("Initialized", "Unknown", "NodeNotReady"))
    assert claims.event_of(claims.claim_status(made, (), NOW - 60)).reason == ""
    assert claims.event_of(claims.claim_status(made, (), NOW)).reason == "NodeNotReady"
