"""`windlass target setup` prints created objects, manifests for a platform team, and one message if forbidden."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from tests.cli.conftest import WINDLASS, Call
from tests.cli.test_json import hold
from tests.engines.kubernetes.reading.preflight.test_setup import NAME, Namespace

from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.spec.job import Job

TARGETS = """
lab: {kind: kubernetes, context: lab-context, namespace: team, region: us-east-1}
local: {kind: local, price_per_hour: 2}
"""


def completed(line: str, environ: Mapping[str, str]) -> list[str]:
    """Returns the completions of the last word of a command line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_WINDLASS_COMPLETE": "bash_complete"}
    done = subprocess.run([*WINDLASS], env={**environ, **words}, capture_output=True, text=True, check=False)
    return [found.partition(",")[2] for found in done.stdout.splitlines()]


def test_targets_are_listed_with_location_and_file(windlass: Call, home: Path) -> None:
    assert windlass("targets").out.splitlines()[1].split() == ["local", "local", "this", "machine", "–"]
    Path("targets.yaml").write_text(TARGETS)
    shown = windlass("targets").out.splitlines()
    assert shown[2].split()[:5] == ["lab", "kubernetes", "lab-context", "team", "us-east-1"]
    found = windlass("targets", "-o", "json").json
    hold("targets", found)
    assert found[0]["settings"] == {"price_per_hour": 2.0}
    assert found[0]["file"] == str(Path.cwd() / "targets.yaml")
    Path("targets.yaml").write_text("lab: {kind: kubernets}\n")
    refused = windlass("targets")
    assert (refused.code, "did you mean kubernetes?" in refused.err) == (2, True)


@pytest.mark.slow
def test_targets_settings_and_paths_of_runs_are_completed(
    environ: Mapping[str, str], recorded: Callable[..., str]
) -> None:
    Path("targets.yaml").write_text(TARGETS)
    assert completed("windlass run --on l", environ) == ["local", "lab"]
    assert completed("windlass ps --on local,la", environ) == ["local,lab"]
    assert completed("windlass plan --set resources.g", environ) == ["resources.gpus=", "resources.gpu_type="]
    assert completed("windlass rerun x --set start=", environ) == ["start=warm", "start=cold"]
    run_id = recorded(Job(name="job", command=["true"]), 0)
    assert f"{run_id}:" in completed("windlass cp ", environ)
    assert completed(f"windlass cp {run_id}:c", environ) == [f"{run_id}:checkpoints/", f"{run_id}:code/"]
    Path("targets.yaml").write_text("{")
    assert completed("windlass run --on l", environ) == ["local"]


@pytest.fixture
def server(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    made = Namespace()
    monkeypatch.setenv("KUBECONFIG", made.kubeconfig(tmp_path / "config"))
    Path("targets.yaml").write_text("lab: {kind: kubernetes, context: lab, namespace: team}\n")
    yield made
    made.close()


def test_setup_prints_created_kept_and_removed_objects(server: Namespace, windlass: Call) -> None:
    created = windlass("target", "setup", "lab")
    assert (created.code, created.err) == (0, "")
    table, _, following = created.out.partition("\n\n")
    assert following.startswith("Next: windlass check --on lab")
    assert [line.split() for line in table.splitlines()] == [
        ["KIND", "NAME", "CHANGE"],
        ["Role", NAME, "created"],
        ["RoleBinding", NAME, "created"],
        ["ServiceAccount", NAME, "created"],
    ]
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


def test_login_without_permission_to_create_roles_gets_one_message(server: Namespace, windlass: Call) -> None:
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
def test_targets_without_setup_are_refused(
    words: tuple[str, ...], says: str, server: Namespace, windlass: Call
) -> None:
    refused = windlass("target", "setup", *words)
    assert refused.code == 2
    assert says in refused.err
    assert server.requests == []
