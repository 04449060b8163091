"""`windlass target setup` grants supervisors in a cluster exactly their permissions, is idempotent, and can be
undone.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call, Result, home, windlass
from tests.cli.test_json import hold
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.rights import LIMITED, rights_of, until_granted, until_role_is_granted
from tests.cluster.test_informer import owner_config_map

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.reading.informer import Watched
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.rbac import Right

__all__ = ["home", "windlass"]

NAME = layout.SUPERVISOR_ACCOUNT
KINDS = ["Role", "RoleBinding", "ServiceAccount"]

On = Callable[..., Result]


@pytest.fixture
def on(windlass: Call, monkeypatch: pytest.MonkeyPatch) -> On:
    """Function `on(cluster, namespace, "target", "setup", "lab", context=…)` that returns the command's result."""

    def call(cluster: Cluster, namespace: str, *words: str, context: str = "") -> Result:
        monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
        target = {
            "kind": "kubernetes",
            "context": context or cluster.context,
            "namespace": namespace,
            "image": cluster.image,
            "python": cluster.python,
        }
        Path("targets.yaml").write_text(json.dumps({"lab": target}))
        return windlass(*words)

    return call


def changes(result: Result) -> list[str]:
    assert result.code == 0, result.err
    hold("target-setup", result.json)
    assert {one["name"] for one in result.json["objects"]} == {NAME}
    assert sorted(one["kind"] for one in result.json["objects"]) == KINDS
    return [one["change"] for one in result.json["objects"]]


def account(namespace: str) -> str:
    return f"system:serviceaccount:{namespace}:{NAME}"


def of_supervisors(cluster: Cluster) -> set[Right]:
    return set(rbac.supervisor_rights(set(cluster.kubectl("api-versions").split())))


def objects(cluster: Cluster, namespace: str) -> list[str]:
    listed = cluster.kubectl("get", "roles,rolebindings,serviceaccounts", "-n", namespace, "-o", "json")
    return sorted(one["kind"] for one in json.loads(listed)["items"] if one["metadata"]["name"] == NAME)


def test_the_account_has_exactly_the_rights_of_a_supervisor(cluster: Cluster, namespace: str, on: On) -> None:
    created = on(cluster, namespace, "target", "setup", "lab", "-o", "json")
    assert changes(created) == ["created"] * 3
    until_granted(cluster, namespace, account(namespace), of_supervisors(cluster))
    assert rights_of(cluster, "default", account(namespace)) == set(), "none in another namespace"


def test_it_may_be_repeated_and_mends_what_differs(cluster: Cluster, namespace: str, on: On) -> None:
    words = ("target", "setup", "lab", "-o", "json")
    changes(on(cluster, namespace, *words))
    version = cluster.kubectl("get", "role", NAME, "-n", namespace, "-o", "jsonpath={.metadata.resourceVersion}")
    assert changes(on(cluster, namespace, *words)) == ["kept"] * 3
    kept = cluster.kubectl("get", "role", NAME, "-n", namespace, "-o", "jsonpath={.metadata.resourceVersion}")
    assert kept == version
    wider = [
        {"op": "add", "path": "/rules/-", "value": {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}}
    ]
    cluster.kubectl("patch", "role", NAME, "-n", namespace, "--type=json", "-p", json.dumps(wider))
    assert changes(on(cluster, namespace, *words)) == ["changed", "kept", "kept"]
    until_granted(cluster, namespace, account(namespace), of_supervisors(cluster))


@pytest.mark.parametrize(
    "words",
    [
        ("check", "--on", "lab", "--role"),
        pytest.param(("target", "setup", "lab", "-o", "manifest"), marks=pytest.mark.nightly),
    ],
)
def test_what_is_printed_for_a_platform_team_is_the_same_set_up(
    words: tuple[str, ...], cluster: Cluster, namespace: str, on: On
) -> None:
    printed = on(cluster, namespace, *words)
    assert (printed.code, objects(cluster, namespace)) == (0, [])
    cluster.kubectl("apply", "-f", "-", stdin=printed.out)
    assert changes(on(cluster, namespace, "target", "setup", "lab", "-o", "json")) == ["kept"] * 3
    until_granted(cluster, namespace, account(namespace), of_supervisors(cluster))


def supervisor(cluster: Cluster, namespace: str, on: On) -> Any:
    """Returns what `check` reports about supervisors."""
    [check] = [
        one
        for one in on(cluster, namespace, "check", "--on", "lab", "-o", "json").json["checks"]
        if one["name"] == "supervisor"
    ]
    return check


def test_check_shows_where_runs_are_supervised(cluster: Cluster, namespace: str, on: On) -> None:
    assert "windlass target setup lab" in supervisor(cluster, namespace, on)["fix"]
    on(cluster, namespace, "target", "setup", "lab")
    assert supervisor(cluster, namespace, on)["found"].startswith("runs are supervised in the cluster")


def test_a_set_up_from_before_an_operator_was_installed_is_found_and_mended(
    cluster: Cluster, namespace: str, on: On
) -> None:
    def notes() -> Any:
        Path("train.py").touch()
        job = {"name": "digits", "run": "train.py", "nodes": 2, "kubernetes": {"via": "jobset"}}
        Path("job.yaml").write_text(json.dumps(job))
        found = on(cluster, namespace, "plan", "--on", "lab", "-o", "json").json["notes"]
        return [one["message"] for one in found if one["code"] == "supervisor-rights"]

    cluster.apply(*rbac.supervisor_objects(namespace, ()), namespace=namespace)  # like in a cluster without operators
    lacks = f"service account {NAME} lacks rights on jobsets.jobset.x-k8s.io"
    check = supervisor(cluster, namespace, on)
    assert (check["level"], check["found"].startswith(lacks)) == ("warn", True)
    assert notes() == [f"{lacks}: this machine supervises the run"]
    assert changes(on(cluster, namespace, "target", "setup", "lab", "-o", "json")) == ["changed", "kept", "changed"]
    assert (supervisor(cluster, namespace, on)["level"], notes()) == ("ok", [])


def test_removal_is_refused_while_a_run_uses_the_service_account(cluster: Cluster, namespace: str, on: On) -> None:
    on(cluster, namespace, "target", "setup", "lab")
    labels = {layout.MANAGED_LABEL: "windlass", layout.RUN_LABEL: "digits-7f3k2"}
    spec = {"serviceAccountName": NAME, "restartPolicy": "Never", "containers": [{"name": "c", "image": cluster.image}]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "digits-7f3k2-supervisor", "labels": labels},
        "spec": {"suspend": True, "template": {"spec": spec}},
    }
    cluster.apply(job, namespace=namespace)
    refused = on(cluster, namespace, "target", "setup", "lab", "--remove")
    assert refused.code == 2
    assert "unfinished runs use service account windlass-supervisor: digits-7f3k2" in refused.err
    assert objects(cluster, namespace) == KINDS
    cluster.kubectl("delete", "job", "digits-7f3k2-supervisor", "-n", namespace)
    remove = ("target", "setup", "lab", "--remove", "-o", "json")
    assert changes(on(cluster, namespace, *remove)) == ["removed"] * 3
    assert objects(cluster, namespace) == []
    until_granted(cluster, namespace, account(namespace), set())
    assert changes(on(cluster, namespace, *remove)) == ["absent"] * 3


def test_objects_of_others_are_not_changed(cluster: Cluster, namespace: str, on: On) -> None:
    cluster.kubectl("create", "serviceaccount", NAME, "-n", namespace)
    for more in ((), ("--remove",)):
        refused = on(cluster, namespace, "target", "setup", "lab", *more)
        assert refused.code == 2
        assert f"ServiceAccount {NAME} in namespace {namespace} was not created by Windlass" in refused.err
    assert objects(cluster, namespace) == ["ServiceAccount"]


def test_login_without_permission_is_told_which_one_is_missing(bed: Bed, namespace: str, on: On) -> None:
    def refused() -> str:
        result = on(bed, namespace, "target", "setup", "lab", context="bed-limited")
        assert result.code == 1
        assert "windlass target setup lab -o manifest" in result.err
        assert objects(bed, namespace) == [], "an account without rights would be used"
        return result.err

    def grant(*verbs: str) -> None:
        granted = {
            Right(rbac.RBAC if kind.startswith("role") else "", kind, verb)
            for kind in ("roles", "rolebindings", "serviceaccounts")
            for verb in verbs
        }
        bed.apply(rbac.role(namespace, granted), rbac.binding(namespace, LIMITED), namespace=namespace)
        until_granted(bed, namespace, LIMITED, granted)

    assert f"may not get roles.rbac.authorization.k8s.io in namespace {namespace}" in refused()
    grant("get")
    assert f"may not create roles.rbac.authorization.k8s.io in namespace {namespace}" in refused()
    grant("get", "create", "update")
    said = refused()
    assert f"may not grant what it lacks itself in namespace {namespace}: create configmaps" in said
    assert "list jobs.batch" in said


def test_printed_role_suffices_to_follow_runs_of_other_machines(bed: Bed, namespace: str, on: On) -> None:
    printed = on(bed, namespace, "check", "--on", "lab", "--role", context="bed-limited")
    bed.kubectl("apply", "-f", "-", stdin=printed.out)
    until_role_is_granted(bed, namespace)
    with (
        contextlib.closing(Client("bed-limited", namespace, bed.kubeconfig)) as client,
        contextlib.closing(Watched(client)) as watched,
    ):
        assert watched.runs() == []
        client.create(owner_config_map("digits-7f3k2", namespace))
        wait_for(watched.runs, "the run, by a watch")
        assert watched.trouble is None
