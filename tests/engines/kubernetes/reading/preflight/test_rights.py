"""Rights of the user and of the service account decide where a supervisor runs, and what blocks a plan."""

from __future__ import annotations

import dataclasses

import pytest
from tests.engines.kubernetes.planning.test_plan import CLUSTER, FACTS, TARGET, blockers, planned
from tests.engines.kubernetes.reading.preflight.test_setup import JOB, LAB, NAME

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.planning.facts import Cluster
from windlass.engines.kubernetes.planning.plan import planned_supervisor
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.rights import Rights, granted
from windlass.plan.steps import SupervisorStep
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget

QUEUED = Job(name="digits", run="train.py", queue="research")


def cluster(account: bool | None, *missing: rbac.Right) -> Cluster:
    return Cluster("v1.34.4", frozenset(), rights=Rights(missing, account))


def supervised(job: Job, target: KubernetesTarget, seen: Cluster | None, via: str) -> tuple[bool, str]:
    place = planned_supervisor(job, target, seen, via)
    return place.is_in_cluster, place.why


@pytest.mark.parametrize(
    ("supervisor", "seen", "is_there", "why"),
    [
        ("auto", cluster(True), True, f"namespace team has the service account {NAME}"),
        ("auto", cluster(False), False, f"namespace team has no service account {NAME}"),
        ("auto", cluster(None), False, "this login may not get serviceaccounts in namespace team"),
        ("auto", cluster(True, rbac.Right("", "secrets", "create")), False, "this login may not create secrets"),
        ("auto", None, False, "the cluster does not answer"),
        ("cluster", cluster(True), True, f"namespace team has the service account {NAME}"),
        ("cluster", cluster(False), False, f"namespace team has no service account {NAME}"),
        ("machine", cluster(True), False, "supervisor: machine of target lab"),
    ],
)
def test_supervisor_place_is_chosen_with_a_reason(
    supervisor: str, seen: Cluster | None, is_there: bool, why: str
) -> None:
    target = LAB.model_copy(update={"supervisor": supervisor})
    assert supervised(JOB, target, seen, "job") == (is_there, why)


def test_rights_are_read_in_the_namespace_of_the_job() -> None:
    job = Job(name="digits", run="train.py", kubernetes={"namespace": "other"})
    assert "namespace other has no" in supervised(job, LAB, cluster(False), "job")[1]


def noted(*groups: str) -> frozenset[str] | None:
    """Returns the rights that a setup records on the account if the cluster serves these groups."""
    *_, account = rbac.supervisor_objects("team", groups)
    return granted(account)


@pytest.mark.parametrize(
    ("groups", "job", "via", "lacking"),
    [
        ((), JOB, "job", ""),
        ((), JOB, "jobset", "jobsets.jobset.x-k8s.io"),
        ((), JOB, "trainjob", "trainjobs.trainer.kubeflow.org, trainingruntimes.trainer.kubeflow.org"),
        (("kubeflow.org/v1",), JOB, "pytorchjob", ""),
        (("kubeflow.org/v1",), JOB, "mpijob", "mpijobs.kubeflow.org"),
        ((), QUEUED, "job", "localqueues.kueue.x-k8s.io, workloads.kueue.x-k8s.io"),
        (("kueue.x-k8s.io/v1beta1",), QUEUED, "job", ""),
    ],
)
def test_account_set_up_before_an_operator_is_not_used_for_its_workloads(
    groups: tuple[str, ...], job: Job, via: str, lacking: str
) -> None:
    seen = dataclasses.replace(cluster(True), rights=Rights((), True, noted(*groups)))
    is_there, why = supervised(job, LAB, seen, via)
    assert (is_there, why) == (
        (False, f"service account {NAME} lacks rights on {lacking}")
        if lacking
        else (True, f"namespace team has the service account {NAME}")
    )


def test_plan_reports_missing_rights_of_the_account_and_blocks_only_if_the_target_requires_it() -> None:
    seen = dataclasses.replace(CLUSTER, rights=Rights((), True, noted()))
    facts = dataclasses.replace(FACTS, cluster=seen)
    made = planned(facts, kubernetes={"via": "jobset"})
    assert (blockers(made), made.manifests(SupervisorStep)) == ({}, [])
    [note] = [note for note in made.notes if note.code == "supervisor-rights"]
    lacks = f"service account {NAME} lacks rights on jobsets.jobset.x-k8s.io"
    assert note.message == f"{lacks}: this machine supervises the run"
    assert note.fix.startswith("windlass target setup lab grants them; ")
    target = TARGET.model_copy(update={"supervisor": "cluster"})
    made = planned(facts, target, kubernetes={"via": "jobset"})
    assert blockers(made) == {"supervisor-missing": f"supervisor: cluster, and {lacks}"}


@pytest.mark.parametrize("text", [None, "", "all", "[1]", '{"jobs.batch": 1}'])
def test_account_without_recorded_rights_is_used(text: str | None) -> None:
    """A platform team may have created such an account from other manifests."""
    account = {"metadata": {"annotations": {} if text is None else {layout.RIGHTS_ANNOTATION: text}}}
    assert granted(account) is None
    assert supervised(JOB, LAB, cluster(True), "trainjob")[0]


def test_user_without_exec_right_can_submit_with_supervisor_in_cluster() -> None:
    missing = (rbac.Right("", "pods/exec", "create"), rbac.Right("batch", "jobs", "delete"))
    seen = dataclasses.replace(CLUSTER, rights=Rights(missing))
    [message] = blockers(planned(dataclasses.replace(FACTS, cluster=seen))).values()
    assert message == "this login may not create pods/exec, delete jobs.batch"
    inside = dataclasses.replace(seen, rights=Rights(missing, True))
    [message] = blockers(planned(dataclasses.replace(FACTS, cluster=inside))).values()
    assert message == "this login may not delete jobs.batch"


def test_plan_is_blocked_if_target_requires_impossible_supervisor_in_cluster() -> None:
    target = TARGET.model_copy(update={"supervisor": "cluster"})
    made = planned(target=target)
    assert blockers(made) == {
        "supervisor-missing": f"supervisor: cluster, and namespace team-a has no service account {NAME}"
    }
    [note] = [note for note in made.notes if note.code == "supervisor-missing"]
    assert "windlass target setup lab" in note.fix
    assert "-o manifest" in note.fix
    assert CLUSTER.rights.has_account is False
    assert blockers(planned(FACTS)) == {}, "with supervisor: auto it is no problem"
