"""A pod on a machine that does not answer is given up as soon as its cluster gives it up, and not before."""

from __future__ import annotations

import time
from typing import Any

import pytest

from windlass.engines.kubernetes.objects.manifests import attempt
from windlass.engines.kubernetes.objects.pod_spec import pod_spec
from windlass.engines.kubernetes.objects.pod_status import GONE_SECONDS, TAINTED, is_alive, is_lost
from windlass.engines.kubernetes.objects.pod_template import LOST_SECONDS, SILENT, Shape
from windlass.spec.job import Job

SHAPE = Shape("r-1", "team", "job", "image", "python3", 1000, "0" * 64, 0)


def pod(
    *, deleted_for: float | None = None, ready: str = "True", why: str = "", state: str = "running", unready: str = ""
) -> Any:
    """One whose grace was over so many seconds ago, if it was deleted; `unready` is the kubelet's reason."""
    meta: dict[str, Any] = {"name": "r-1-0"}
    if deleted_for is not None:
        meta["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - deleted_for))
    conditions = [{"type": "Ready", "status": ready, **({"reason": unready} if unready else {})}]
    conditions += [{"type": "DisruptionTarget", "status": "True", "reason": why}] if why else []
    status = {"conditions": conditions, "containerStatuses": [{"name": "node", "state": {state: {}}}]}
    return {"metadata": meta, "spec": {"containers": [{"name": "node"}]}, "status": status}


def test_a_silent_machine_is_given_up_as_soon_as_its_cluster_deletes_the_pod() -> None:
    assert is_lost(pod(deleted_for=-60, ready="False", why=TAINTED))


@pytest.mark.parametrize(
    "seen",
    [
        {"ready": "False"},  # it may be back: the cluster waits, and so do we
        {"deleted_for": -60, "ready": "True", "why": TAINTED},  # its kubelet hears, and ends it with its grace
        {"deleted_for": -60, "ready": "False", "why": "EvictionByEvictionAPI"},
        {"deleted_for": -60},
        {"deleted_for": 3600, "state": "terminated"},
    ],
)
def test_a_pod_that_may_still_tell_its_end_is_waited_for(seen: dict[str, Any]) -> None:
    assert not is_lost(pod(**seen))


def test_a_pod_that_should_long_have_ended_is_on_a_lost_machine() -> None:
    assert is_lost(pod(deleted_for=GONE_SECONDS + 5))


@pytest.mark.parametrize(
    ("seen", "alive"),
    [
        ({}, True),
        ({"ready": "False"}, False),
        ({"ready": "False", "unready": "ContainersNotReady"}, True),  # another container of it is not ready
        ({"state": "terminated"}, False),
        ({"state": "waiting"}, False),
    ],
)
def test_a_pod_is_alive_that_runs_on_a_machine_that_answers(seen: dict[str, Any], alive: bool) -> None:
    assert is_alive(pod(**seen)) == alive


def tolerations(**fields: Any) -> dict[str, Any]:
    job = Job.model_validate({"name": "digits", "run": "train.py", **fields})
    spec = pod_spec(attempt(SHAPE, job, 1, job.nodes.max))
    return {one["key"]: one.get("tolerationSeconds") for one in spec.get("tolerations", ())}


@pytest.mark.parametrize("fields", [{"restarts": 3}, {"nodes": {"min": 1, "max": 2}}])
def test_a_job_that_can_go_on_waits_less_long_for_a_silent_machine(fields: dict[str, Any]) -> None:
    assert tolerations(**fields) == dict.fromkeys(SILENT, LOST_SECONDS)


@pytest.mark.parametrize("fields", [{}, {"restarts": {"max": 3, "on": ["failure"]}}])
def test_one_that_cannot_waits_as_long_as_its_cluster_does(fields: dict[str, Any]) -> None:
    assert tolerations(**fields) == {}


def test_how_long_is_what_the_job_says() -> None:
    assert tolerations(kubernetes={"lost_after": "2min"}) == dict.fromkeys(SILENT, 120)
