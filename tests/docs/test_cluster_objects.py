"""The page for platform teams has exactly the rights of the roles, all ports, and each kind of object."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.kinds import PLURALS
from windlass.engines.kubernetes.objects.workloads import WORKLOADS, mpijob
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.rbac import Right

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "concepts" / "cluster-objects.md").read_text()
EVERY_GROUP = frozenset((*(way.api for way in WORKLOADS.values()), "kueue.x-k8s.io/v1beta1"))


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
    objects = section("Objects of a run")
    assert {kind for kind in created if not re.search(rf"\b{kind}s?\b", objects)} == set()


def test_every_port_is_there() -> None:
    ports = section("Ports")
    for port in (layout.ORDERS_PORT, layout.MASTER_PORT, mpijob.SSH_PORT):
        assert f"| {port} |" in ports


def test_the_objects_of_the_setup_are_those_that_it_creates() -> None:
    for one in rbac.supervisor_objects("team-a", ()):
        assert f"| {one['kind']} `{one['metadata']['name']}` |" in section("Set-up")
