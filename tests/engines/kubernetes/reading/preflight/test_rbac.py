"""Roles grant exactly the rights that are used, each once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.rbac import Right

EVERY_GROUP = frozenset((*(way.api for way in WORKLOADS.values()), "kueue.x-k8s.io/v1beta1"))


def granted(role: Mapping[str, Any]) -> Iterator[Right]:
    for rule in role["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield Right(group, resource, verb)


@pytest.mark.parametrize("groups", [frozenset(), EVERY_GROUP])
@pytest.mark.parametrize("wanted", [rbac.useful, rbac.supervisor_rights])
def test_the_role_grants_each_right_once_and_no_other(wanted: Any, groups: frozenset[str]) -> None:
    made = rbac.role("team-a", wanted(groups))
    assert sorted(granted(made)) == sorted(wanted(groups))
    assert len(set(granted(made))) == len(list(granted(made)))
    assert made["metadata"]["namespace"] == "team-a"


def test_service_account_is_bound_as_service_account() -> None:
    [subject] = rbac.binding("team-a", "system:serviceaccount:ci:deployer")["subjects"]
    assert subject == {"kind": "ServiceAccount", "namespace": "ci", "name": "deployer"}
    [subject] = rbac.binding("team-a", "ada")["subjects"]
    assert (subject["kind"], subject["name"]) == ("User", "ada")


def test_supervisor_rights_are_a_subset_without_exec_and_secrets() -> None:
    supervisor = set(rbac.supervisor_rights(EVERY_GROUP))
    assert supervisor <= set(rbac.useful(EVERY_GROUP)), "who may submit a run may run a pod with its account"
    assert not {right.resource for right in supervisor} & {"pods/exec", "secrets", "serviceaccounts"}
    assert not {right.group for right in supervisor} & {rbac.RBAC, "karpenter.sh"}
    assert "*" not in {part for right in supervisor for part in right}


def test_rights_cover_only_installed_operators() -> None:
    plain = set(rbac.supervisor_rights(()))
    with_jobset = set(rbac.supervisor_rights({WORKLOADS["jobset"].api})) - plain
    assert {(right.group, right.resource) for right in with_jobset} == {("jobset.x-k8s.io", "jobsets")}
    assert set(rbac.QUEUES) <= set(rbac.supervisor_rights({"kueue.x-k8s.io/v1beta2"})) - plain


def test_the_account_of_supervisors_is_created_after_its_rights() -> None:
    role, binding, account = rbac.supervisor_objects("team-a", ())
    assert [one["kind"] for one in (role, binding, account)] == ["Role", "RoleBinding", "ServiceAccount"]
    assert sorted(granted(role)) == sorted(rbac.supervisor_rights(()))
    name = layout.SUPERVISOR_ACCOUNT
    assert binding["roleRef"] == {"apiGroup": rbac.RBAC, "kind": "Role", "name": name}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "namespace": "team-a", "name": name}]
    assert account["automountServiceAccountToken"] is False
    for one in (role, binding, account):
        assert (one["metadata"]["name"], one["metadata"]["namespace"]) == (name, "team-a")
        assert one["metadata"]["labels"][layout.MANAGED_LABEL] == "windlass"
