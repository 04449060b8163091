"""Rules on machines that do not exist yet: what Karpenter and Cluster Autoscaler say made by hand, as they write it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.diagnose.test_cluster import why

from windlass.diagnose.observations import (
    ClusterSeen,
    ComingSeen,
    ObjectSaid,
    PodSeen,
    PoolSeen,
    QueueSeen,
    Refusal,
    ScalingSeen,
)
from windlass.diagnose.rules.machines import REFUSED, STUCK
from windlass.diagnose.verdict import Verdict
from windlass.runs.record import Phase

PODS = (PodSeen(0, "r-1-0-x", "queued", "Unschedulable", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."),
        PodSeen(1, "r-1-1-y", "running"))  # fmt: skip
POOL = PoolSeen("gpus", ("p4d.24xlarge",), ("g5.12xlarge", "p4d.24xlarge"), ("spot", "on-demand"))
NO_NETWORK = "KubeletNotReady: container runtime network not ready: cni plugin not initialized"
COMING = ComingSeen(
    "gpus-7x2kq", "gpus", "registered", "g5.12xlarge", "bed-a", "spot", "ip-10-0-0-7", "NodeNotReady", NO_NETWORK, 200.0
)
END = ', requirements=karpenter.sh/capacity-type In [spot], resources=min={"cpu":"1"}, max={"cpu":"1"}'
NO_TYPE = (
    "Failed to schedule pod, incompatible requirements, key node.kubernetes.io/instance-type, "
    "node.kubernetes.io/instance-type In [p5.48xlarge] not in node.kubernetes.io/instance-type In [g5.12xlarge]"
)


def said(message: str, reason: str = "FailedScheduling") -> ObjectSaid:
    return ObjectSaid("Pod", "r-1-0-x", reason, message)


def waits(*told: ObjectSaid, phase: Phase = Phase.QUEUED, **scaling: Any) -> Verdict:
    return why(ClusterSeen(PODS, told, scaling=ScalingSeen(**scaling)), phase)


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (NO_TYPE, "instance-type-missing", ("p5.48xlarge", "not in node.kubernetes.io/instance-type In [g5.12xlarge]")),
        (f"Failed to schedule pod, no instance type met all requirements{END}", "instance-type-missing", ()),
        ("Failed to schedule pod, nodepool requirements filtered out all available instance types",
         "instance-type-missing", ()),
        (f"Failed to schedule pod, no instance type has enough resources{END}", "machines-too-small",
         ("3 nvidia.com/gpu", "resources.gpus")),
        ("Failed to schedule pod, no instance type which met the scheduling requirements and the required offering "
         f"had the required resources{END}", "machines-too-small", ()),
        ('Failed to schedule pod, incompatible requirements, label "team" does not have known values',
         "machines-of-other-kind", ("team",)),
        ("Failed to schedule pod, did not tolerate taint (taint=team=vision:NoSchedule)", "taint-not-tolerated",
         ("team=vision:NoSchedule",)),
        ('Failed to schedule pod, incompatible with nodepool "gpus", daemonset overhead={"pods":"0"}, did not tolerate '
         "team=vision:NoSchedule", "taint-not-tolerated", ("team=vision:NoSchedule",)),
        ("Failed to schedule pod, all available instance types exceed limits for nodepool (NodePool=gpus)",
         "pool-limit", ("NodePool gpus may make no more machines", "spec.limits")),
        ('Failed to schedule pod, all available instance types exceed limits for nodepool: "gpus"', "pool-limit",
         ("NodePool gpus may make no more machines",)),
        ("Failed to schedule pod, node limits have been exhausted for nodepool (NodePool=gpus)", "pool-limit", ()),
        (f"Failed to schedule pod, no instance type has the required offering{END}", "no-capacity", ()),
        ("Failed to schedule pod, no instance type which met the scheduling requirements and had enough resources, "
         f"had a required offering{END}", "no-capacity", ()),
    ],
)  # fmt: skip
def test_each_sentence_of_karpenter_is_a_verdict(message: str, code: str, words: tuple[str, ...]) -> None:
    verdict = waits(said(message))
    told = "\n".join([verdict.summary, *verdict.evidence, verdict.fix])
    assert verdict.code == code, verdict
    assert verdict.fix
    assert [word for word in words if word not in told] == []
    assert "requirements=" not in verdict.summary


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("pod didn't trigger scale-up: 1 max node group size reached, 2 Insufficient nvidia.com/gpu", "pool-limit"),
        ("pod didn't trigger scale-up: 3 Insufficient nvidia.com/gpu", "machines-too-small"),
        ("pod didn't trigger scale-up: 2 node(s) didn't match Pod's node affinity/selector", "machines-of-other-kind"),
        ("pod didn't trigger scale-up: 1 node(s) had untolerated taint {team: vision}, 1 Insufficient cpu",
         "taint-not-tolerated"),
        ("pod didn't trigger scale-up: 1 in backoff after failed scale-up, 1 Insufficient cpu", "no-capacity"),
        # As cluster-autoscaler 1.34.5 said them in a cluster with three groups, one of them with a taint.
        ("pod didn't trigger scale-up: 2 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s)",
         "taint-not-tolerated"),
        ("pod didn't trigger scale-up: 1 node(s) had untolerated taint(s), 1 Insufficient nvidia.com/gpu, 1 max node "
         "group size reached", "pool-limit"),
    ],
)  # fmt: skip
def test_each_reason_of_cluster_autoscaler_is_a_verdict(message: str, code: str) -> None:
    assert waits(said(message, "NotTriggerScaleUp")).code == code


def test_of_several_pools_the_one_counts_that_is_nearest() -> None:
    message = NO_TYPE + "; all available instance types exceed limits for nodepool (NodePool=large)"
    verdict = waits(said(message))
    assert (verdict.code, "NodePool large" in verdict.summary) == ("pool-limit", True)


def test_what_pools_show_is_taken_where_nothing_was_said_yet() -> None:
    refused = replace(POOL, refusals=(Refusal("taint", "its machines have the taint a=b:NoSchedule"),))
    assert waits(pools=(refused,)).code == "taint-not-tolerated"
    assert waits(pools=(refused, POOL)).code == "machines-pending"
    assert waits(pools=(refused, POOL), has_room=True).code == "unschedulable"
    assert waits(pools=()).code == "unschedulable"


def test_a_machine_that_is_there_and_in_use_is_waited_for() -> None:
    small = replace(POOL, refusals=(Refusal("small", "none of m5.large has 3 nvidia.com/gpu"),))
    assert waits(pools=(small,), has_room=True).code == "unschedulable"
    assert waits(pools=(small,)).code == "machines-too-small"


def test_no_capacity_names_what_else_would_fit() -> None:
    failed = ObjectSaid("NodeClaim", "gpus-7x2kq", "InsufficientCapacityError", "no capacity is left of g5.12xlarge")
    verdict = waits(failed, pools=(replace(POOL, besides=POOL.named),))
    assert verdict.code == "no-capacity"
    assert "p4d.24xlarge may fit too" in verdict.fix
    assert "g5.12xlarge" not in verdict.fix


def test_a_refusal_before_the_machine_that_comes_now_is_no_cause() -> None:
    failed = ObjectSaid("NodeClaim", "gpus-1", "InsufficientCapacityError", "no capacity is left of p4d.24xlarge")
    assert waits(failed, pools=(POOL,), coming=(replace(COMING, seconds=9.0),)).code == "machine-coming"


@pytest.mark.parametrize(
    ("state", "reason", "seconds", "code", "words"),
    [
        ("asked", "", 2.0, "machine-coming", "nothing is wrong so far"),
        ("launched", "", 40.0, "machine-coming", "launched 40 s ago"),
        ("registered", "NodeNotReady", 40.0, "machine-coming", "g5.12xlarge, spot, bed-a, of NodePool gpus"),
        ("registered", "NodeNotReady", 200.0, "machine-not-ready", "cni plugin not initialized, 200 s after it came"),
        ("registered", "ResourceNotRegistered", 200.0, "machine-not-ready", "device plugin"),
        ("registered", "StartupTaintsExist", 200.0, "machine-not-ready", "startupTaints"),
        ("launched", "NodeNotFound", 200.0, "machine-not-registered", "has not joined the cluster"),
        ("asked", "LaunchFailed", 200.0, "machine-not-launched", "NodeClass"),
    ],
)  # fmt: skip
def test_how_far_a_machine_is_decides(state: str, reason: str, seconds: float, code: str, words: str) -> None:
    one = replace(COMING, state=state, reason=reason, seconds=seconds)
    verdict = waits(pools=(POOL,), coming=(one,), phase=Phase.PROVISIONING)
    assert verdict.code == code
    assert words in "\n".join([verdict.summary, *verdict.evidence, verdict.fix])


def test_what_is_said_of_a_pod_that_runs_is_of_no_interest() -> None:
    other = ObjectSaid("Pod", "r-1-1-y", "FailedScheduling", NO_TYPE)
    assert waits(other).code == "unschedulable"


def test_a_queue_that_holds_the_run_back_comes_first() -> None:
    seen = ClusterSeen(PODS, (said(NO_TYPE),), is_suspended=True, queue=QueueSeen("waiting", "WaitingForQuota"))
    assert why(seen).code == "queue-quota"


def test_a_run_whose_objects_are_gone_is_told_from_its_record() -> None:
    cluster = ClusterSeen((PODS[0],), (said(NO_TYPE),))
    assert why(cluster, Phase.FAILED, exit_code=124, reason="timeout").code == "instance-type-missing"


def test_every_text_can_be_filled_in() -> None:
    for kind, meaning in REFUSED.items():
        assert waits(pools=(replace(POOL, refusals=(Refusal(kind, "so it is"),)),)).summary, meaning
    for reason in STUCK:
        assert "{" not in waits(coming=(replace(COMING, reason=reason),)).fix
