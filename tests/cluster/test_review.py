"""Supervisors use exactly the permissions of their Role, by the audit log; ended runs expire completely."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.host import wait_for
from tests.cluster.harnesses import harness_on, opened, pods, set_up, target_on
from tests.cluster.proxy import relay
from tests.engines.harness import Harness, Run
from tests.engines.kubernetes.objects.test_labels import OF_RUN, require, templates
from tests.supervise.test_notify import SECRET, Hook, hooked

from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.objects import layout, ttl
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.rbac import Right
from windlass.errors import UsageError
from windlass.runs.context import Context
from windlass.runs.phase import Phase
from windlass.spec.job import Job

SCRIPT = """import os, sys, time
attempt = os.environ["WINDLASS_ATTEMPT"]
print("attempt", attempt, flush=True)
if attempt == "1":
    sys.exit(3)
time.sleep(600 if attempt in os.environ["LASTS"] else 1)
"""
UNUSED = {
    Right("", "configmaps", "delete"): (
        "a part of the record, which another supervisor has left, or of more than 256 (supervisor/record.py, "
        "_create_part); a stop request that a stronger one replaces (running/markers.py, put)"
    ),
    Right("batch", "jobs", "update"): "the end of its own Job beside a sidecar that runs on (running/shutdown.py)",
}
"""Permissions that this run does not need, with the feature that needs them."""
CLAIM = "PersistentVolumeClaim"
KINDS = "configmaps,services,secrets,persistentvolumeclaims,jobs,jobsets,pods,leases,networkpolicies"

pytestmark = pytest.mark.timeout(1200)


def requests_of(bed: Bed, namespace: str) -> Iterator[tuple[Right, int, str]]:
    """Yields the requests of supervisors in a namespace, the status of the response, and the URI."""
    user = f"system:serviceaccount:{namespace}:{layout.SUPERVISOR_ACCOUNT}"
    *lines, _unfinished = bed.layout.audit.read_text().split("\n")
    for line in lines:
        event = json.loads(line)
        if event["user"]["username"] == user and "objectRef" in event:
            about = event["objectRef"]
            resource = "/".join(part for part in (about["resource"], about.get("subresource", "")) if part)
            right = Right(about.get("apiGroup", ""), resource, event["verb"])
            yield right, event["responseStatus"]["code"], event["requestURI"]


def objects_of(bed: Bed, namespace: str, run: Run) -> list[dict[str, Any]]:
    """Returns the objects of a run, of all kinds that are created for it."""
    found = bed.kubectl("get", KINDS, "-n", namespace, "-l", f"windlass.dev/run={run.id}", "-o", "json")
    return list(json.loads(found)["items"])


def require_labels(found: Iterable[dict[str, Any]]) -> None:
    """Requires that all objects have all labels; pods of an operator have those of their templates."""
    for one in found:
        require(one["metadata"]["labels"], OF_RUN)
        for template in templates(one["spec"]) if "spec" in one else ():
            require(template["metadata"]["labels"], OF_RUN)


def until_gone(bed: Bed, namespace: str, run: Run) -> None:
    wait_for(lambda: not objects_of(bed, namespace, run), "all objects to be gone")


def lose_the_pod(bed: Bed, namespace: str, run: Run) -> None:
    """Deletes the pod in which a run trains: a pod of an earlier attempt if the latest reuses it."""
    alive = [
        pod
        for number in (1, 2)
        for pod in pods(bed, namespace, run, number)
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    name = alive[-1]["metadata"]["name"]
    bed.kubectl("delete", "pod", "-n", namespace, name, "--grace-period=0", "--force")


def started(harness: Harness, folder: Path, lasts: str, **fields: Any) -> Run:
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(SCRIPT)
    return harness.start(
        "script.py", base=folder, env={"LASTS": lasts}, restarts={"max": 3}, launcher="plain", **fields
    )


@contextlib.contextmanager
def webhook(bed: Bed, namespace: str) -> Iterator[Hook]:
    """Webhook that pods can reach, and the Secret with its address."""
    with hooked() as hook:
        port = int(hook.address.split(":")[2].partition("/")[0])
        with relay(bed.layout.outside, port) as outside:
            address = f"SLACK_URL=http://{bed.layout.outside}:{outside}{SECRET}"
            bed.kubectl("create", "secret", "generic", "slack-url", "-n", namespace, f"--from-literal={address}")
            yield hook


def test_supervisor_uses_exactly_its_permissions(bed: Bed, namespace: str, tmp_path: Path) -> None:
    set_up(bed, namespace)
    results = {"results": {"size": "1GiB", "storage_class": "bed"}}
    with opened(harness_on(bed, namespace, tmp_path / "home")) as harness, webhook(bed, namespace) as hook:
        told = {"labels": {"team": "vision"}, "notify": "slack-url"}
        first = started(harness, tmp_path / "code", "2", kubernetes={"via": "job", **results}, **told)
        second = started(harness, tmp_path / "code", "2", kubernetes={"via": "jobset"})
        for run in (first, second):
            run.until(lambda run: "attempt 2" in run.text())
            lose_the_pod(bed, namespace, run)
            run.until(lambda run: len(run.status.attempts) == 3)
        for run in (first, second):
            assert run.wait().phase is Phase.SUCCEEDED, run.text()
            require_labels(objects_of(bed, namespace, run))
        assert {one["metadata"]["labels"].get("team") for one in objects_of(bed, namespace, first)} == {"vision"}
        wait_for(lambda: hook.got, "the webhook to be told")
        # The request is repeated if the hook, a thread of this process, has not answered within seconds.
        assert {(one["run"]["id"], one["run"]["phase"]) for one in hook.got} == {(first.id, "succeeded")}
        stopped = started(harness, tmp_path / "code", "", resources={"cpus": 1000})
        # no node has as many processors: the supervisor deletes the pod
        stopped.until(lambda run: run.status.waits_for)
        harness.engine.stop(stopped.id)
        assert stopped.wait().phase is Phase.STOPPED
        for run in (first, second, stopped):
            harness.engine.delete(run.id)
            until_gone(bed, namespace, run)
        harness.runs.clear()
    asked = list(requests_of(bed, namespace))
    assert [(right, uri) for right, code, uri in asked if code == 403] == []
    used, served = {right for right, _, _ in asked}, set(bed.kubectl("api-versions").split())
    role = {right for right in rbac.supervisor_rights(served) if not _is_of_another_kind(right)}
    assert used - role == set(), "these were granted by no rule of the Role"
    assert role - used == UNUSED.keys()


def _is_of_another_kind(right: Right) -> bool:
    """Returns whether a permission is for owner objects of an operator that this run does not use: the code is
    JobSet's.
    """
    return bool(re.search(r"kubeflow|kueue", right.group))


def test_ended_run_expires_completely_unless_it_is_resumed(bed: Bed, namespace: str, tmp_path: Path) -> None:
    set_up(bed, namespace)
    results = {"results": {"size": "1GiB", "storage_class": "bed", "keep": True}}
    with opened(harness_on(bed, namespace, tmp_path / "home")) as harness:
        run = harness.start("fail_until", "2", launcher="plain", kubernetes=results)
        assert run.wait().phase is Phase.FAILED, run.text()
        assert wait_for(lambda: owner_of(bed, namespace, run), "the run to expire with its supervisor")
        harness.engine.resume(run.id)
        assert run.wait().phase is Phase.SUCCEEDED, run.text()
        uid = wait_for(lambda: owner_of(bed, namespace, run), "the run to expire with its supervisor")
        job = json.loads(bed.kubectl("get", "job", f"{run.id}-supervisor", "-n", namespace, "-o", "json"))
        assert (job["metadata"]["uid"], job["spec"]["ttlSecondsAfterFinished"]) == (uid, ttl.WEEK_SECONDS)
        patch = json.dumps({"spec": {"ttlSecondsAfterFinished": 1}})
        bed.kubectl("patch", "job", f"{run.id}-supervisor", "-n", namespace, "-p", patch)
        wait_for(lambda: [one["kind"] for one in objects_of(bed, namespace, run)] == [CLAIM], "the run to be gone")
        with pytest.raises(UsageError, match="has succeeded: nothing is left to do"):
            harness.engine.resume(run.id)
        assert [one["kind"] for one in objects_of(bed, namespace, run)] == [CLAIM]
        assert run.status.phase is Phase.SUCCEEDED
        harness.runs.clear()


def owner_of(bed: Bed, namespace: str, run: Run) -> str:
    """Returns the uid of the owner of the run's owner ConfigMap; empty if it has none."""
    path = "jsonpath={.metadata.ownerReferences[*].uid}"
    return bed.kubectl("get", "configmap", run.id, "-n", namespace, "-o", path)


def planned(bed: Bed, namespace: str, folder: Path, **resources: Any) -> list[tuple[str, str]]:
    """Returns the blockers in the plan of a job with these resources."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(SCRIPT)
    job = Job(name="case", run="script.py", nodes=2, resources={"memory": "200MiB", **resources})
    context = Context({"KUBECONFIG": bed.kubeconfig}, folder)
    made = KubernetesEngine.make_plan(job, target_on(bed, namespace), "case-1", folder, context)
    return [(note.code, note.message) for note in made.notes if note.blocks]


def test_plan_detects_pods_that_the_namespace_refuses(bed: Bed, namespace: str, tmp_path: Path) -> None:
    """A dry run of the Job that creates the pods does not show the refusal."""
    set_up(bed, namespace)
    assert planned(bed, namespace, tmp_path / "code", cpus=1) == []
    limits = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "limits"},
        "spec": {
            "limits": [{"type": "Container", "min": {"memory": "100Mi"}, "max": {"cpu": "1"}, "default": {"cpu": "1"}}]
        },
    }
    bed.apply(limits, namespace=namespace)
    wait_for(lambda: len(planned(bed, namespace, tmp_path / "code", cpus=2)) == 2, "the LimitRange to be in force")
    [(first, ranks), (second, supervisor)] = planned(bed, namespace, tmp_path / "code", cpus=2)
    assert (first, second) == ("pods-refused", "pods-refused")
    assert ranks.startswith("the pods of the run: ")
    assert "maximum cpu usage per Container is 1, but limit is 2" in ranks
    assert supervisor.startswith("the supervisor's pod: ")
    assert "minimum memory usage per Container is 100Mi, but request is 96Mi" in supervisor
    bed.kubectl("delete", "limitrange", "limits", "-n", namespace)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "2"}},
    }
    bed.apply(quota, namespace=namespace)
    too_small = [("quota-too-small", "quota small never admits the run: 3 pods needed, 2 there")]
    wait_for(lambda: planned(bed, namespace, tmp_path / "code", cpus=1) == too_small, "the quota to be in force")
