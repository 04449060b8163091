"""`windlass target setup` prints what it created, the objects for a platform team, and one message where it may not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from tests.cli.conftest import Call
from tests.cli.test_json import hold
from tests.engines.kubernetes.test_setup import NAME, Namespace

from windlass.engines.kubernetes.preflight import rbac


@pytest.fixture
def server(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    made = Namespace()
    monkeypatch.setenv("KUBECONFIG", made.kubeconfig(tmp_path / "config"))
    Path("targets.yaml").write_text("lab: {kind: kubernetes, context: lab, namespace: team}\n")
    yield made
    made.close()


def test_it_prints_what_it_created_kept_and_removed(server: Namespace, windlass: Call) -> None:
    created = windlass("target", "setup", "lab")
    assert (created.code, created.err) == (0, "")
    table, _, following = created.out.partition("\n\n")
    assert following.startswith("Next: windlass check --on lab")
    assert [line.split() for line in table.splitlines()] == [
        ["KIND", "NAME", "CHANGE"], ["Role", NAME, "created"], ["RoleBinding", NAME, "created"],
        ["ServiceAccount", NAME, "created"],
    ]  # fmt: skip
    kept = windlass("target", "setup", "lab", "-o", "json").json
    hold("target-setup", kept)
    assert kept["target"] == "lab"
    assert {one["change"] for one in kept["objects"]} == {"kept"}
    removed = windlass("target", "setup", "lab", "--remove", "-o", "json").json
    assert [one["change"] for one in removed["objects"]] == ["removed"] * 3
    assert server.of_setup() == []


def test_the_manifest_is_what_would_be_created_and_changes_nothing(server: Namespace, windlass: Call) -> None:
    printed = windlass("target", "setup", "lab", "-o", "manifest")
    assert printed.code == 0
    assert server.changing() == []
    documents = list(YAML(typ="safe", pure=True).load_all(printed.out))
    assert documents == rbac.supervisor_objects("team", {"jobset.x-k8s.io/v1alpha2"})


def test_a_login_that_may_not_create_roles_gets_one_message(server: Namespace, windlass: Call) -> None:
    server.forbidden = {"roles"}
    refused = windlass("target", "setup", "lab", "-o", "json")
    error = json.loads(refused.err)["error"]
    assert (refused.code, refused.out) == (1, "")
    assert error["message"] == "this login may not get roles.rbac.authorization.k8s.io in namespace team"
    assert "windlass target setup lab -o manifest" in error["hint"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("local",), "target setup is not supported by engine local"),
        (("local", "-o", "manifest"), "target setup is not supported by engine local"),
        (("lab", "--remove", "-o", "manifest"), "-o manifest prints what is created"),
        (("nowhere",), "no target is called 'nowhere'"),
    ],
)
def test_what_cannot_be_set_up_is_refused(words: tuple[str, ...], says: str, server: Namespace, windlass: Call) -> None:
    refused = windlass("target", "setup", *words)
    assert refused.code == 2
    assert says in refused.err
    assert server.requests == []
