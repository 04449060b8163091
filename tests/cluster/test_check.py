"""`windlass check --on` lists what a cluster has and lacks in a table, and prints one message if nothing works."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import WINDLASS, Call, Result, home, windlass
from tests.cli.test_json import hold
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.rights import LIMITED, until_granted, until_role_is_granted

from windlass.actions.targets import find_target
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.reading.preflight.rbac import Right
from windlass.runs.context import here
from windlass.spec.targets import KubernetesTarget

__all__ = ["home", "windlass"]

Check = Callable[..., Result]


@pytest.fixture
def check(windlass: Call, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Returns a function `check(cluster, namespace, "-o", "json", context=…)` that returns the command's result."""

    def call(cluster: Cluster, namespace: str, *words: str, **fields: Any) -> Result:
        monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
        target = {
            "kind": "kubernetes",
            "context": cluster.context,
            "namespace": namespace,
            "image": cluster.image,
            "python": cluster.python,
            **fields,
        }
        Path("targets.yaml").write_text(json.dumps({"bed": target}))
        return windlass("check", "--on", "bed", *words)

    return call


def levels(result: Result) -> dict[str, str]:
    hold("check", result.json)
    return {one["name"]: one["level"] for one in result.json["checks"]}


def test_healthy_cluster_passes_every_check(bed: Bed, namespace: str, check: Check) -> None:
    result = check(bed, namespace, "-o", "json")
    assert {name for name, level in levels(result).items() if level != "ok"} == {"default storage"}, result.out
    found = {one["name"]: one["found"] for one in result.json["checks"]}
    assert "JobSet v1alpha2" in found["operators"]
    assert "bed: bed.windlass.test/folder" in found["storage"]
    assert "on 2 of 2 nodes: 1 × NVIDIA-A10G, 1 × Tesla-T4; 1 × g4dn.xlarge, 1 × g5.xlarge" in found["gpus"]
    assert found["pod security"].startswith("restricted is enforced")
    assert (result.code, result.json["ok"], result.json["missing"], result.json["network"]) == (0, True, [], None)
    assert check(bed, namespace).out.rstrip().endswith("1 warning")


def test_a_job_is_checked_with_the_cluster(bed: Bed, namespace: str, check: Check) -> None:
    Path("job.yaml").write_text("name: job\nrun: train.py\n")
    result = check(bed, namespace, "-o", "json")
    hold("check", result.json)
    assert result.code == 2
    assert result.json["ok"] is True
    assert {note["code"] for note in result.json["job"]["notes"] if note["blocks"]} == {"script-missing"}
    assert "cannot run" in check(bed, namespace).out


def test_quota_is_shown_with_its_usage(bed: Bed, namespace: str, check: Check) -> None:
    bed.kubectl("create", "quota", "small", "-n", namespace, "--hard=configmaps=1,pods=5")
    bed.kubectl("wait", "-n", namespace, "quota/small", "--for=jsonpath={.status.used.configmaps}=1", "--timeout=600s")
    result = check(bed, namespace, "-o", "json")
    assert levels(result)["quota"] == "warn"
    [quota] = [one for one in result.json["checks"] if one["name"] == "quota"]
    assert "pods 0 of 5" in quota["found"]
    assert quota["found"].endswith("used up: configmaps")


def test_each_missing_permission_is_reported_and_granted_by_the_role(bed: Bed, namespace: str, check: Check) -> None:
    bed.kubectl("create", "role", "some", "-n", namespace, "--verb=get,list,watch,delete", "--resource=pods")
    bed.kubectl("create", "rolebinding", "some", "-n", namespace, "--role=some", "--user=limited")
    until_granted(bed, namespace, LIMITED, {Right("", "pods", verb) for verb in ("get", "list", "watch", "delete")})
    limited = check(bed, namespace, "-o", "json", context="bed-limited")
    assert levels(limited)["rights"] == "fail"
    assert limited.code == 2
    assert "create jobs.batch" in limited.json["missing"]
    assert "delete pods" not in limited.json["missing"]

    role = check(bed, namespace, "--role", context="bed-limited")
    assert role.code == 0
    bed.kubectl("apply", "-n", namespace, "-f", "-", stdin=role.out)
    until_role_is_granted(bed, namespace)
    granted = check(bed, namespace, "-o", "json", context="bed-limited")
    assert (granted.code, granted.json["missing"]) == (0, [])
    assert levels(granted)["not seen"] == "warn"


def test_login_without_any_permission_gets_one_message(bed: Bed, namespace: str, check: Check) -> None:
    result = check(bed, namespace, "-o", "json", context="bed-nobody")
    failed = [one for one in result.json["checks"] if one["level"] == "fail"]
    assert result.code == 2
    [found] = [one["found"] for one in failed]
    assert re.fullmatch(rf"none of the \d\d that are needed in namespace {namespace}", found), found


def test_expired_login_is_reported_without_further_checks(bed: Bed, namespace: str, check: Check) -> None:
    result = check(bed, namespace, "-o", "json", context="bed-expired")
    assert (result.code, levels(result)) == (2, {"api": "ok", "login": "fail"})


def test_missing_context_is_refused_with_a_list_of_contexts(bed: Bed, namespace: str, check: Check) -> None:
    result = check(bed, namespace, context="nope")
    assert result.code == 2
    assert "has no context 'nope'" in result.err
    assert "bed-admin" in result.err


def test_missing_namespace_omits_all_other_checks(bed: Bed, check: Check) -> None:
    result = check(bed, "not-there", "-o", "json")
    assert (result.code, levels(result)) == (2, {"api": "ok", "login": "ok", "namespace": "fail"})


@pytest.fixture
def without_api(lone_bed: Bed) -> Iterator[Bed]:
    lone_bed.kill_api_server()
    yield lone_bed
    lone_bed.start_api_server()


def test_unreachable_api_server_is_reported_without_further_checks(without_api: Bed, check: Check) -> None:
    result = check(without_api, "default", "-o", "json")
    assert (result.code, levels(result)) == (2, {"api": "fail"})
    assert "does not answer" in result.json["checks"][0]["found"]


# -- the network ------------------------------------------------------------------------------------------------------


def helpers(cluster: Cluster, namespace: str) -> str:
    kinds = "pods,jobs,configmaps,services"
    return cluster.kubectl("get", kinds, "-n", namespace, "-l", "windlass.dev/helper", "-o", "name")


def gone(cluster: Cluster, namespace: str) -> None:
    wait_for(lambda: not helpers(cluster, namespace), "the helpers' end")


def parts(result: Result) -> dict[str, Any]:
    hold("check", result.json)
    return {one["name"]: one for one in result.json["checks"]}


@pytest.mark.timeout(600)
def test_healthy_network_is_measured(bed: Bed, namespace: str, check: Check) -> None:
    result = check(bed, namespace, "--network", "-o", "json")
    seen = parts(result)
    assert seen["network"]["level"] in ("ok", "warn"), result.out
    assert seen["names"]["level"] == seen["ports"]["level"] == seen["all-reduce"]["level"] == "ok"
    assert sorted(result.json["network"]["nodes"]) == ["node1", "node2"]
    assert result.json["network"]["latency_seconds"] > 0
    assert min(result.json["network"]["bytes_per_second"]) > 0
    assert result.json["network"]["all_reduce_bytes_per_second"] > 0
    assert "summing a tensor" in result.err
    gone(bed, namespace)


@pytest.mark.timeout(600)
def test_unavailable_dns_is_reported(lone_bed: Bed, lone_namespace: str, check: Check) -> None:
    lone_bed.stop_program("coredns")
    try:
        result = check(lone_bed, lone_namespace, "--network", "-o", "json")
    finally:
        lone_bed.start_program("coredns")
    seen = parts(result)
    assert (result.code, seen["names"]["level"], seen["ports"]["level"]) == (2, "fail", "ok"), result.out
    assert "ranks cannot meet: names" in seen["network"]["found"]
    assert "so it is DNS" in seen["network"]["fix"]
    gone(lone_bed, lone_namespace)


@pytest.mark.timeout(600)
@pytest.mark.nightly
def test_cut_network_is_reported(lone_bed: Bed, lone_namespace: str, check: Check) -> None:
    assert check(lone_bed, lone_namespace).code == 0  # creates the targets file
    context = here()
    target = find_target("bed", context)
    assert isinstance(target, KubernetesTarget)

    def told(text: str) -> None:
        if text == "looking up names":  # the pods run already: a pod that is created later would repair the network
            lone_bed.cut_network("node2")

    try:
        engine = KubernetesEngine
        report = engine.check_network(engine.check(target, context), target, context, told)
    finally:
        lone_bed.mend_network("node2")
    seen = {one.name: one for one in report.checks}
    assert seen["ports"].level == "fail", report
    assert re.match(r"ranks cannot meet: ports: from node\d to node\d, port 29500: ", seen["network"].found)
    gone(lone_bed, lone_namespace)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "tidy"),
    [(signal.SIGINT, True), pytest.param(signal.SIGTERM, True, marks=pytest.mark.nightly), (signal.SIGKILL, False)],
)
def test_interrupted_check_leaves_no_objects(
    bed: Bed, namespace: str, check: Check, number: signal.Signals, tidy: bool
) -> None:
    assert check(bed, namespace).code == 0  # creates the targets file
    command = subprocess.Popen([*WINDLASS, "check", "--on", "bed", "--network"], stderr=subprocess.PIPE, text=True)
    assert command.stderr is not None
    for line in command.stderr:
        if "latency" in line:
            break
    command.send_signal(number)
    command.communicate(timeout=600)
    if tidy:
        gone(bed, namespace)
        return
    assert helpers(bed, namespace)
    result = check(bed, namespace, "-o", "json")
    assert "removed leftovers of killed commands" in parts(result)["leftovers"]["found"]
    gone(bed, namespace)
