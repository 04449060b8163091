"""The page for platform teams has exactly the rights of the roles, all ports, and each kind of object."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.deployment_manifests import KSERVE, PORT
from windlass.engines.kubernetes.objects.helper_manifests import read_job
from windlass.engines.kubernetes.objects.kinds import PLURALS
from windlass.engines.kubernetes.objects.pod_template import pod_template, target_shape
from windlass.engines.kubernetes.objects.supervisor_manifests import supervisor_job
from windlass.engines.kubernetes.objects.transfer_manifests import check_job, stage_job, upload_job
from windlass.engines.kubernetes.objects.workloads import WORKLOADS, mpijob
from windlass.engines.kubernetes.reading.preflight import network, rbac
from windlass.engines.kubernetes.reading.preflight.rbac import Right
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "concepts" / "cluster-objects.md").read_text()
EVERY_GROUP = frozenset((*(way.api for way in WORKLOADS.values()), "kueue.x-k8s.io/v1beta1", KSERVE))


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def shown_rights(title: str) -> Iterator[Right]:
    for row in re.findall(r"^\| (.*) \|$", section(title), re.MULTILINE)[1:]:
        group, resource, verbs, why = (cell.strip(" `") for cell in row.split(" | "))
        assert why
        yield from (Right("" if group == "core" else group, resource, verb) for verb in verbs.split(", "))


@pytest.mark.parametrize(
    ("title", "used"),
    [
        ("Rights of the supervisor", rbac.supervisor_rights(EVERY_GROUP)),
        ("Rights of a user", rbac.useful(EVERY_GROUP)),
    ],
)
def test_the_rights_are_those_of_the_roles(title: str, used: Iterable[Right]) -> None:
    shown = list(shown_rights(title))
    assert len(shown) == len(set(shown))
    assert set(shown) - set(used) == set(), "no role grants these"
    assert set(used) - set(shown) == set(), "the page lacks these"


def test_every_kind_that_a_user_may_create_is_among_the_objects() -> None:
    kinds = {plural: kind for kind, plural in PLURALS.items()}
    created = {
        kinds[right.resource]
        for right in rbac.useful(EVERY_GROUP)
        if right.verb == "create" and "/" not in right.resource
    }
    objects = section("Objects of a run") + section("Objects of a deployment")
    assert {kind for kind in created if not re.search(rf"\b{kind}s?\b", objects)} == set()


def test_every_port_is_there() -> None:
    ports = section("Ports")
    for port in (layout.ORDERS_PORT, layout.MASTER_PORT, mpijob.SSH_PORT, PORT):
        assert f"| {port} |" in ports


def test_the_objects_of_the_setup_are_those_that_it_creates() -> None:
    for one in rbac.supervisor_objects("team-a", ()):
        assert f"| {one['kind']} `{one['metadata']['name']}` |" in section("Set-up")


def rows_of_pods() -> dict[str, list[str]]:
    rows = re.findall(r"^\| (.*) \|$", section("Pods"), re.MULTILINE)
    cells = [[cell.strip() for cell in row.split(" | ")] for row in rows]
    start = next(at for at, row in enumerate(cells) if row[0] == "pods")
    return {row[0]: row[1:] for row in cells[start + 1 : start + 6]}


SHAPE = dataclasses.replace(
    target_shape(KubernetesTarget(name="lab", context="lab"), "team-a", "r-1", "sets"), is_supervised_inside=True
)
JOB = Job(name="digits", command=["true"])
PODS = {
    "ranks": [pod_template(SHAPE, JOB, 1, 1)["spec"]],
    "supervisor": [supervisor_job(SHAPE, JOB)["spec"]["template"]["spec"]],
    "`RUN-data`, `RUN-outputs`, `RUN-outputs-check`": [
        stage_job(SHAPE, JOB, [{"source": "s3://a"}])["spec"]["template"]["spec"],
        upload_job(SHAPE, JOB, "kept", "s3://a")["spec"]["template"]["spec"],
        check_job(SHAPE, JOB, "s3://a")["spec"]["template"]["spec"],
    ],
    "`RUN-cp`, and those of commands": [
        read_job(SHAPE, JOB, "kept")["spec"]["template"]["spec"],
        network.objects(KubernetesTarget(name="lab", context="lab"), "r-1")[-1]["spec"]["template"]["spec"],
    ],
}


@pytest.mark.parametrize("which", PODS)
def test_what_each_pod_asks_for_is_what_the_page_says(which: str) -> None:
    root, account, token, volumes, requests, limits, ports = rows_of_pods()[which]
    shown = set(re.findall(r"`(\w+)`", volumes))
    kinds = {key for spec in PODS[which] for volume in spec["volumes"] for key in volume if key != "name"}
    assert kinds == shown
    for spec in PODS[which]:
        [container] = spec["containers"]
        assert container["securityContext"].get("readOnlyRootFilesystem", False) == root.startswith("read-only")
        assert account.startswith(f"`{spec['serviceAccountName']}`" if "serviceAccountName" in spec else "default")
        assert spec["automountServiceAccountToken"] == (token == "mounted")
        assert [str(port["containerPort"]) for port in container.get("ports", ())] == re.findall(r"\d+", ports)
        amounts = container.get("resources", {"requests": {"": "of the job"}, "limits": {"": "of the job"}})
        assert (", ".join(amounts["requests"].values()), ", ".join(amounts["limits"].values())) == (requests, limits)
        assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (1000, True)
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert len(rows_of_pods()) == len(PODS) + 1
