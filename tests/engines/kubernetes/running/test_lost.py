"""A pod on an unreachable node is declared lost as soon as its cluster gives it up, and not before."""

from __future__ import annotations

import time
from typing import Any

import pytest

from windlass.engines.kubernetes.objects.find_pod_specs import pod_spec
from windlass.engines.kubernetes.objects.lost_pods import GONE_SECONDS, LOST_SECONDS, SILENT, TAINTED
from windlass.engines.kubernetes.objects.manifests import attempt
from windlass.engines.kubernetes.objects.pod_status import is_alive, is_lost
from windlass.engines.kubernetes.objects.pod_template import Shape
from windlass.spec.job import Job

SHAPE = Shape("r-1", "team", "job", "image", "python3", 1000, "0" * 64, 0)


def pod(
    *, deleted_for: float | None = None, ready: str = "True", why: str = "", state: str = "running", unready: str = ""
) -> Any:
    """Returns a pod; if deleted, its grace period ended `deleted_for` seconds ago. `unready` is the kubelet's
    reason.
    """
    meta: dict[str, Any] = {"name": "r-1-0"}
    if deleted_for is not None:
        meta["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - deleted_for))
    conditions = [{"type": "Ready", "status": ready, **({"reason": unready} if unready else {})}]
    conditions += [{"type": "DisruptionTarget", "status": "True", "reason": why}] if why else []
    status = {"conditions": conditions, "containerStatuses": [{"name": "node", "state": {state: {}}}]}
    return {"metadata": meta, "spec": {"containers": [{"name": "node"}]}, "status": status}


def test_unreachable_node_is_lost_once_its_cluster_deletes_the_pod() -> None:
    assert is_lost(pod(deleted_for=-60, ready="False", why=TAINTED))


@pytest.mark.parametrize(
    "seen",
    [
        {"ready": "False"},  # the node may return: the cluster waits, and so does Windlass
        # the kubelet is informed, and ends the pod with its grace period
        {"deleted_for": -60, "ready": "True", "why": TAINTED},
        {"deleted_for": -60, "ready": "False", "why": "EvictionByEvictionAPI"},
        {"deleted_for": -60},
        {"deleted_for": 3600, "state": "terminated"},
    ],
)
def test_pod_that_may_still_report_its_end_is_waited_for(seen: dict[str, Any]) -> None:
    assert not is_lost(pod(**seen))


def test_pod_long_past_its_grace_period_is_on_a_lost_node() -> None:
    assert is_lost(pod(deleted_for=GONE_SECONDS + 5))


@pytest.mark.parametrize(
    ("seen", "alive"),
    [
        ({}, True),
        ({"ready": "False"}, False),
        ({"ready": "False", "unready": "ContainersNotReady"}, True),  # another container of the pod is not ready
        ({"state": "terminated"}, False),
        ({"state": "waiting"}, False),
    ],
)
def test_pod_on_a_reachable_node_is_alive(seen: dict[str, Any], alive: bool) -> None:
    assert is_alive(pod(**seen)) == alive


def tolerations(**fields: Any) -> dict[str, Any]:
    job = Job.model_validate({"name": "digits", "run": "train.py", **fields})
    spec = pod_spec(attempt(SHAPE, job, 1, job.nodes.max))
    return {one["key"]: one.get("tolerationSeconds") for one in spec.get("tolerations", ())}


@pytest.mark.parametrize("fields", [{"restarts": 3}, {"nodes": {"min": 1, "max": 2}}])
def test_restartable_job_waits_less_long_for_an_unreachable_node(fields: dict[str, Any]) -> None:
    assert tolerations(**fields) == dict.fromkeys(SILENT, LOST_SECONDS)


@pytest.mark.parametrize("fields", [{}, {"restarts": {"max": 3, "on": ["failure"]}}])
def test_job_without_restarts_waits_as_long_as_its_cluster(fields: dict[str, Any]) -> None:
    assert tolerations(**fields) == {}


def test_job_sets_the_seconds_until_a_node_is_lost() -> None:
    assert tolerations(kubernetes={"lost_after": "2min"}) == dict.fromkeys(SILENT, 120)
