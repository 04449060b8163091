"""The setup of a namespace for supervisors is created once, updated if it differs, and detected; other objects are
kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, Request, Response, sent, status
from tests.engines.kubernetes.planning.test_plan import TARGET

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.planning.facts import Cluster, read_cluster
from windlass.engines.kubernetes.planning.plan import planned_supervisor
from windlass.engines.kubernetes.reading.preflight import rbac, setup
from windlass.engines.kubernetes.reading.preflight.rights import granted
from windlass.errors import EngineError, UsageError
from windlass.runs.phase import Phase
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget

NAME = layout.SUPERVISOR_ACCOUNT
LAB = KubernetesTarget(name="lab", context="lab", namespace="team")
JOB = Job(name="digits", run="train.py")
ESCALATES = (
    f'roles.rbac.authorization.k8s.io "{NAME}" is forbidden: user "ada" (groups=["dev"]) is attempting to grant RBAC '
    'permissions not currently held:\n{APIGroups:[""], Resources:["configmaps"], Verbs:["update"]}'
)


class Namespace(ObjectServer):
    """Namespace of a cluster that serves JobSet, for a user with limited rights."""

    def __init__(self) -> None:
        super().__init__()
        self.served.add("jobsets")
        self.lacks: frozenset[rbac.Right] = frozenset()
        """Rights that the login does not have."""
        self.is_escalation = False
        """Whether the login may not grant a right that it lacks."""
        self.fails = self.special

    def special(self, request: Request) -> Response | None:
        if request.plural == "/version":
            return sent({"gitVersion": "v1.34.4"})
        if request.plural == "/apis":
            return sent({"groups": [{"versions": [{"groupVersion": "jobset.x-k8s.io/v1alpha2"}]}]})
        if request.plural == "selfsubjectrulesreviews":
            rules = [
                {"apiGroups": [one.group], "resources": [one.resource], "verbs": [one.verb]}
                for one in rbac.useful({"jobset.x-k8s.io/v1alpha2"})
                if one not in self.lacks
            ]
            return sent({"status": {"resourceRules": rules}}, 201)
        if request.plural == "selfsubjectaccessreviews":
            return sent({"status": {"allowed": False}}, 201)
        if self.is_escalation and (request.verb, request.plural) == ("POST", "roles"):
            return status(403, "Forbidden", ESCALATES)
        return None

    def of_setup(self) -> list[str]:
        return [kind for kind in ("Role", "RoleBinding", "ServiceAccount") if NAME in self.names(kind)]

    def changing(self) -> list[str]:
        return [f"{one.verb} {one.plural}" for one in self.requests if one.verb != "GET" and "review" not in one.plural]


@pytest.fixture
def server() -> Iterator[Namespace]:
    made = Namespace()
    yield made
    made.close()


@pytest.fixture
def environ(server: Namespace, tmp_path: Path) -> dict[str, str]:
    return {"KUBECONFIG": server.kubeconfig(tmp_path)}


def changes(found: list[Any]) -> list[tuple[str, str]]:
    assert {one.name for one in found} == {NAME}
    return [(one.kind, one.change) for one in found]


# -- create -----------------------------------------------------------------------------------------------------------


def test_setup_creates_missing_objects_and_keeps_correct_ones(server: Namespace, environ: dict[str, str]) -> None:
    assert changes(setup.create(LAB, environ)) == [
        ("Role", "created"),
        ("RoleBinding", "created"),
        ("ServiceAccount", "created"),
    ]
    resources = {resource for rule in server.objects["roles", NAME]["rules"] for resource in rule["resources"]}
    assert "jobsets" in resources, "the cluster serves JobSet"
    before = dict(server.objects)
    assert {change for _, change in changes(setup.create(LAB, environ))} == {"kept"}
    assert server.objects == before
    [account] = [one for one in setup.objects(LAB, environ) if one["kind"] == "ServiceAccount"]
    assert granted(account) == frozenset(map(str, rbac.supervisor_rights({"jobset.x-k8s.io/v1alpha2"})))
    assert len(server.changing()) == 3


def test_setup_updates_role_and_keeps_fields_of_other_tools(server: Namespace, environ: dict[str, str]) -> None:
    setup.create(LAB, environ)
    wanted = server.objects["roles", NAME]["rules"]
    server.objects["roles", NAME] |= {"rules": wanted[:1]}
    server.objects["serviceaccounts", NAME] |= {
        "automountServiceAccountToken": True,
        "imagePullSecrets": [{"name": "registry"}],
    }
    notes = server.objects["serviceaccounts", NAME]["metadata"]["annotations"]
    before = dict(notes)
    notes |= {layout.RIGHTS_ANNOTATION: "{}", "team": "vision"}
    assert changes(setup.create(LAB, environ)) == [
        ("Role", "changed"),
        ("RoleBinding", "kept"),
        ("ServiceAccount", "changed"),
    ]
    assert server.objects["roles", NAME]["rules"] == wanted
    account = server.objects["serviceaccounts", NAME]
    assert (account["automountServiceAccountToken"], account["imagePullSecrets"]) == (False, [{"name": "registry"}])
    assert account["metadata"]["annotations"] == {**before, "team": "vision"}


def test_setup_accepts_an_object_created_meanwhile(server: Namespace, environ: dict[str, str]) -> None:
    def race(request: Request) -> Response | None:
        if (request.verb, request.plural) == ("POST", "roles"):
            server.fails = server.special
            server._store("roles", request.body)
        return server.special(request)

    server.fails = race
    assert changes(setup.create(LAB, environ))[0] == ("Role", "kept")
    assert server.of_setup() == ["Role", "RoleBinding", "ServiceAccount"]


@pytest.mark.parametrize("kind", ["Role", "RoleBinding", "ServiceAccount"])
def test_setup_changes_nothing_if_an_object_belongs_to_another_tool(
    kind: str, server: Namespace, environ: dict[str, str]
) -> None:
    server.put(kind, NAME, {"app.kubernetes.io/managed-by": "helm"})
    for act in (setup.create, setup.remove):
        with pytest.raises(UsageError, match=f"{kind} {NAME} in namespace team was not created by Windlass"):
            act(LAB, environ)
    assert server.changing() == []


@pytest.mark.parametrize(
    ("plural", "right"),
    [
        ("roles", "get roles.rbac.authorization.k8s.io"),
        ("serviceaccounts", "get serviceaccounts"),
    ],
)
def test_forbidden_setup_names_missing_right_and_the_alternative(
    plural: str, right: str, server: Namespace, environ: dict[str, str]
) -> None:
    server.forbidden = {plural}
    with pytest.raises(EngineError, match=f"^this login may not {right} in namespace team\n") as error:
        setup.create(LAB, environ)
    assert "windlass target setup lab -o manifest" in error.value.hint
    assert server.changing() == []


def test_setup_with_read_only_rights_names_the_missing_right(server: Namespace, environ: dict[str, str]) -> None:
    def reading(request: Request) -> Response | None:
        return status(403, "Forbidden", "no") if request.verb == "POST" else server.special(request)

    server.fails = reading
    with pytest.raises(
        EngineError, match=r"this login may not create roles\.rbac\.authorization\.k8s\.io in namespace"
    ):
        setup.create(LAB, environ)


def test_setup_reports_missing_namespace(server: Namespace, environ: dict[str, str]) -> None:
    absent = status(404, "NotFound", 'namespaces "team" not found', name="team", kind="namespaces")
    server.fails = lambda request: absent if request.verb == "POST" else server.special(request)
    with pytest.raises(UsageError, match="there is no namespace team in the cluster of context lab") as error:
        setup.create(LAB, environ)
    assert "create namespace team" in error.value.hint


def test_setup_names_the_right_that_cannot_be_granted(server: Namespace, environ: dict[str, str]) -> None:
    server.is_escalation, server.lacks = True, frozenset({rbac.Right("", "configmaps", "update")})
    with pytest.raises(EngineError, match="may not grant what it lacks itself in namespace team: update configmaps"):
        setup.create(LAB, environ)
    assert server.of_setup() == [], "an account without rights would be used"


def test_printed_objects_equal_the_created_ones(server: Namespace, environ: dict[str, str]) -> None:
    made = setup.objects(LAB, environ)
    assert made == rbac.supervisor_objects("team", {"jobset.x-k8s.io/v1alpha2"})
    assert server.changing() == []


# -- remove -----------------------------------------------------------------------------------------------------------


def test_removal_deletes_account_first_and_is_idempotent(server: Namespace, environ: dict[str, str]) -> None:
    setup.create(LAB, environ)
    assert changes(setup.remove(LAB, environ)) == [
        ("ServiceAccount", "removed"),
        ("RoleBinding", "removed"),
        ("Role", "removed"),
    ]
    assert server.of_setup() == []
    assert {change for _, change in changes(setup.remove(LAB, environ))} == {"absent"}


def supervisor_job(server: Namespace, run_id: str, account: str, *conditions: str) -> None:
    template = {"spec": {"serviceAccountName": account}}
    server.put(
        "Job",
        f"{run_id}-supervisor",
        {layout.MANAGED_LABEL: "windlass", layout.RUN_LABEL: run_id},
        api="batch/v1",
        spec={"template": template},
        status={"conditions": [{"type": one, "status": "True"} for one in conditions]},
    )


def test_account_is_not_removed_while_unfinished_runs_use_it(server: Namespace, environ: dict[str, str]) -> None:
    setup.create(LAB, environ)
    supervisor_job(server, "done-1", NAME, "Complete")
    supervisor_job(server, "other-2", "default")
    supervisor_job(server, "digits-3", NAME)
    with pytest.raises(UsageError, match=rf"unfinished runs use service account {NAME}: digits-3\n"):
        setup.remove(LAB, environ)
    assert server.of_setup() == ["Role", "RoleBinding", "ServiceAccount"]
    supervisor_job(server, "digits-3", NAME, "Failed")
    setup.remove(LAB, environ)
    assert server.of_setup() == []


def test_ended_run_with_unfetched_outputs_is_not_unfinished(server: Namespace, environ: dict[str, str]) -> None:
    setup.create(LAB, environ)
    for run_id, phase in (("digits-1", Phase.SUCCEEDED), ("digits-2", Phase.TRAINING)):
        summary = json.dumps({"phase": phase, "created_at": 1.0, "phase_since": 2.0})
        labels = {layout.MANAGED_LABEL: "windlass", layout.MARKER_LABEL: layout.RECORD, layout.RUN_LABEL: run_id}
        server.put(
            "ConfigMap",
            layout.record_name(run_id),
            labels,
            metadata={"annotations": {layout.STATUS_ANNOTATION: summary}},
        )
        supervisor_job(server, run_id, NAME)
    with pytest.raises(UsageError, match="unfinished runs use service account windlass-supervisor: digits-2\n"):
        setup.remove(LAB, environ)
    supervisor_job(server, "digits-2", NAME, "Complete")
    with pytest.raises(UsageError, match="hold outputs until a machine has fetched them: digits-1") as error:
        setup.remove(LAB, environ)
    assert "windlass cp digits-1:output . --on lab" in error.value.hint


# -- detection --------------------------------------------------------------------------------------------------------


def looked(server: Namespace, folder: Path) -> Cluster:
    server.requests.clear()
    client = server.client(folder)
    try:
        return read_cluster(JOB, TARGET, client)
    finally:
        client.close()


def test_account_is_found_with_one_request(server: Namespace, tmp_path: Path, environ: dict[str, str]) -> None:
    assert looked(server, tmp_path).rights.has_account is False
    asked = len(server.requests)
    setup.create(LAB, environ)
    found = looked(server, tmp_path)
    assert (found.rights.has_account, found.rights.missing) == (True, ())
    assert len(server.requests) == asked
    assert [one.name for one in server.requests if one.plural == "serviceaccounts"] == [NAME]


def test_unreadable_account_is_unknown(server: Namespace, tmp_path: Path) -> None:
    server.forbidden = {"serviceaccounts"}
    assert looked(server, tmp_path).rights.has_account is None


def test_rights_to_submit_matter_only_if_the_account_exists(
    server: Namespace, tmp_path: Path, environ: dict[str, str]
) -> None:
    server.lacks = frozenset(rbac.SUPERVISED)
    found = looked(server, tmp_path)
    assert planned_supervisor(JOB, LAB, found, "job").why == f"namespace team has no service account {NAME}"
    setup.create(LAB, environ)
    found = looked(server, tmp_path)
    assert found.rights.lacking(rbac.NEEDED) == ()
    wanted = "this login may not update configmaps, update jobs.batch, create secrets, get serviceaccounts"
    assert planned_supervisor(JOB, LAB, found, "job").why == wanted
