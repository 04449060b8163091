"""Rules on missing nodes give verdicts for reports as Karpenter and Cluster Autoscaler write them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.engines.kubernetes.reading.diagnose.test_pods import why

from windlass.diagnose.verdict import Verdict
from windlass.engines.kubernetes.objects.observations import (
    ClusterStatus,
    NodeClaimStatus,
    NodePoolMatch,
    ObjectReport,
    QueueStatus,
)
from windlass.engines.kubernetes.objects.pod_status import PodStatus
from windlass.engines.kubernetes.reading.diagnose.nodes import NOT_PROGRESSING, REPORTS
from windlass.runs.phase import Phase

PODS = (
    PodStatus(0, "r-1-0-x", "queued", "Unschedulable", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."),
    PodStatus(1, "r-1-1-y", "running"),
)
POOL = NodePoolMatch("gpus", ("p4d.24xlarge",), ("g5.12xlarge", "p4d.24xlarge"), ("spot", "on-demand"))
NO_NETWORK = "KubeletNotReady: container runtime network not ready: cni plugin not initialized"
COMING = NodeClaimStatus(
    "gpus-7x2kq",
    "registered",
    "gpus",
    "g5.12xlarge",
    "bed-a",
    "spot",
    "ip-10-0-0-7",
    "NodeNotReady",
    NO_NETWORK,
    seconds=200.0,
)
END = ', requirements=karpenter.sh/capacity-type In [spot], resources=min={"cpu":"1"}, max={"cpu":"1"}'
NO_TYPE = (
    "Failed to schedule pod, incompatible requirements, key node.kubernetes.io/instance-type, "
    "node.kubernetes.io/instance-type In [p5.48xlarge] not in node.kubernetes.io/instance-type In [g5.12xlarge]"
)


def said(message: str, reason: str = "FailedScheduling") -> ObjectReport:
    return ObjectReport("Pod", "r-1-0-x", reason, message)


def waits(*told: ObjectReport, phase: Phase = Phase.QUEUED, **cluster: Any) -> Verdict:
    return why(ClusterStatus(PODS, told, **cluster), phase)


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
         "pool-limit", ("NodePool gpus is at its limit", "spec.limits")),
        ('Failed to schedule pod, all available instance types exceed limits for nodepool: "gpus"', "pool-limit",
         ("NodePool gpus is at its limit",)),
        ("Failed to schedule pod, node limits have been exhausted for nodepool (NodePool=gpus)", "pool-limit", ()),
        (f"Failed to schedule pod, no instance type has the required offering{END}", "no-capacity", ()),
        ("Failed to schedule pod, no instance type which met the scheduling requirements and had enough resources, "
         f"had a required offering{END}", "no-capacity", ()),
    ],
)  # fmt: skip
def test_each_karpenter_message_has_a_verdict(message: str, code: str, words: tuple[str, ...]) -> None:
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
        (
            "pod didn't trigger scale-up: 1 node(s) had untolerated taint {team: vision}, 1 Insufficient cpu",
            "taint-not-tolerated",
        ),
        ("pod didn't trigger scale-up: 1 in backoff after failed scale-up, 1 Insufficient cpu", "no-capacity"),
        # Messages of cluster-autoscaler 1.34.5 in a cluster with three groups, one of them with a taint.
        (
            "pod didn't trigger scale-up: 2 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s)",
            "taint-not-tolerated",
        ),
        (
            "pod didn't trigger scale-up: 1 node(s) had untolerated taint(s), 1 Insufficient "
            "nvidia.com/gpu, 1 max node "
            "group size reached",
            "pool-limit",
        ),
    ],
)
def test_each_cluster_autoscaler_reason_has_a_verdict(message: str, code: str) -> None:
    assert waits(said(message, "NotTriggerScaleUp")).code == code


def test_verdict_is_about_the_closest_node_pool() -> None:
    message = NO_TYPE + "; all available instance types exceed limits for nodepool (NodePool=large)"
    verdict = waits(said(message))
    assert (verdict.code, "NodePool large" in verdict.summary) == ("pool-limit", True)


def test_unready_pool_is_the_cause_despite_other_reports() -> None:
    broken = replace(POOL, not_ready="NodeClassNotReady: there is no NodeClass gpus")
    verdict = waits(said(NO_TYPE), pools=(broken,))
    assert (verdict.code, "no NodeClass gpus" in verdict.summary) == ("pool-not-ready", True)
    assert waits(said(NO_TYPE), pools=(broken, POOL)).code == "instance-type-missing"


def test_matching_pool_alone_gives_no_verdict() -> None:
    refused = replace(POOL, mismatch=("its nodes have the taint a=b:NoSchedule",), limits=("8 of 8 nvidia.com/gpu",))
    assert waits(pools=(refused,)).code == "unschedulable"
    assert waits(pools=(POOL,)).code == "unschedulable"


def test_pools_are_evidence_with_their_limits() -> None:
    limited = replace(POOL, limits=("8 of 8 nvidia.com/gpu",))
    verdict = waits(
        said("Failed to schedule pod, node limits have been exhausted for nodepool (NodePool=gpus)"), pools=(limited,)
    )
    assert "NodePool gpus makes g5.12xlarge or p4d.24xlarge, spot or on-demand; 8 of 8 nvidia.com/gpu in use" in (
        verdict.evidence
    )


def test_missing_capacity_names_other_matching_types() -> None:
    failed = ObjectReport("NodeClaim", "gpus-7x2kq", "InsufficientCapacityError", "no capacity is left of g5.12xlarge")
    verdict = waits(failed, pools=(POOL,))
    assert verdict.code == "no-capacity"
    assert "p4d.24xlarge may fit too" in verdict.fix
    assert "g5.12xlarge" not in verdict.fix


def test_refusal_before_current_node_claim_is_no_cause() -> None:
    failed = ObjectReport("NodeClaim", "gpus-1", "InsufficientCapacityError", "no capacity is left of p4d.24xlarge")
    assert waits(failed, pools=(POOL,), claims=(COMING.replace(seconds=9.0),)).code == "machine-coming"


@pytest.mark.parametrize(
    ("state", "reason", "seconds", "code", "words"),
    [
        ("asked", "", 2.0, "machine-coming", "nothing is wrong so far"),
        ("launched", "", 40.0, "machine-coming", "launched 40 s ago"),
        ("registered", "NodeNotReady", 40.0, "machine-coming", "g5.12xlarge, spot, bed-a, of NodePool gpus"),
        ("registered", "NodeNotReady", 200.0, "machine-not-ready", "cni plugin not initialized, 200 s after it joined"),
        ("registered", "ResourceNotRegistered", 200.0, "machine-not-ready", "device plugin"),
        ("registered", "StartupTaintsExist", 200.0, "machine-not-ready", "startupTaints"),
        ("launched", "NodeNotFound", 200.0, "machine-not-registered", "has not joined the cluster"),
        ("asked", "LaunchFailed", 200.0, "machine-not-launched", "NodeClass"),
    ],
)
def test_state_of_the_node_claim_decides_the_verdict(
    state: str, reason: str, seconds: float, code: str, words: str
) -> None:
    one = COMING.replace(state=state, reason=reason, seconds=seconds)
    verdict = waits(pools=(POOL,), claims=(one,), phase=Phase.PROVISIONING)
    assert verdict.code == code
    assert words in "\n".join([verdict.summary, *verdict.evidence, verdict.fix])


def test_reports_on_running_pods_are_ignored() -> None:
    other = ObjectReport("Pod", "r-1-1-y", "FailedScheduling", NO_TYPE)
    assert waits(other).code == "unschedulable"


def test_suspending_queue_takes_precedence() -> None:
    seen = ClusterStatus(
        PODS, (said(NO_TYPE),), is_suspended=True, queue=QueueStatus("waiting", reason="WaitingForQuota")
    )
    assert why(seen).code == "queue-quota"


def test_run_with_deleted_objects_is_diagnosed_from_its_record() -> None:
    cluster = ClusterStatus((PODS[0],), (said(NO_TYPE),))
    assert why(cluster, Phase.FAILED, exit_code=124, reason="timeout").code == "instance-type-missing"


def test_every_advice_template_can_be_filled() -> None:
    for _, advice in REPORTS:
        assert (
            "{"
            not in advice.verdict(
                (), pool="p", why="w", type="t", asked="a", fields="f", near="", named="", fits=""
            ).fix
        )
    for reason in NOT_PROGRESSING:
        assert "{" not in waits(claims=(COMING.replace(reason=reason),)).fix
