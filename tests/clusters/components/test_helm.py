"""helm is called with safe arguments, its output is parsed, and it exits with its caller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.until import until

from windlass.clusters.components.component import Chart, Manifests
from windlass.clusters.components.helm import Helm, Release, run_helm
from windlass.clusters.components.source import FolderSource, NetworkSource
from windlass.errors import EngineError, MissingExtra

PROGRAM = """#!{python}
import json, os, sys
args = sys.argv[1:]
values = [json.load(open(args[at + 1])) for at, one in enumerate(args) if one == "--values"]
with open({calls!r}, "a") as file:
    file.write(json.dumps([args, values, os.environ.get("KUBECONFIG")]) + "\\n")
answers = json.load(open({answers!r}))
verb = next(one for one in args if one in answers or one in ("upgrade", "uninstall", "rollback", "pull", "show"))
answer = answers.get(verb, ["", 0])
if verb == "pull" and answer[1] == 0:
    open(os.path.join(args[args.index("--destination") + 1], "gadgets-1.0.0.tgz"), "w").write("chart")
print(answer[0], file=sys.stderr if answer[1] else sys.stdout)
sys.exit(answer[1])
"""
CHART = Chart("oci://charts.invalid/all", "gadgets", "1.0.0")
SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(100)\n"
CALLS = """
import sys
from windlass.clusters.components.helm import run_helm
run_helm([sys.executable, sys.argv[1]], {}, 100)
"""


class FakeHelm:
    """A program that records its calls and gives the responses that a test sets."""

    def __init__(self, folder: Path) -> None:
        self.path, self._calls, self._answers = (str(folder / name) for name in ("helm", "calls", "answers"))
        text = PROGRAM.format(python=sys.executable, calls=self._calls, answers=self._answers)
        Path(self.path).write_text(text)
        Path(self.path).chmod(0o755)
        self.answers()

    def answers(self, **by_verb: tuple[str, int]) -> None:
        Path(self._answers).write_text(json.dumps({"version": ["v3.22.0", 0], **by_verb}))

    @property
    def calls(self) -> list[Any]:
        return [json.loads(line) for line in Path(self._calls).read_text().splitlines()]


@pytest.fixture
def fake(tmp_path: Path) -> FakeHelm:
    return FakeHelm(tmp_path)


@pytest.fixture
def helm(fake: FakeHelm) -> Helm:
    return Helm(fake.path, "/home/ada/.kube/config", "lab")


def test_values_and_credentials_are_not_on_the_command_line(fake: FakeHelm, helm: Helm, tmp_path: Path) -> None:
    helm.upgrade("gadgets", "gadget-system", tmp_path, {"password": "swordfish"})
    [[args, values, kubeconfig]] = fake.calls
    assert args[:5] == ["--kube-context", "lab", "upgrade", "gadgets", str(tmp_path)]
    assert {"--install", "--skip-crds"} <= set(args)
    assert args[args.index("--labels") + 1] == "windlass.dev/component=gadgets"
    assert "swordfish" not in json.dumps(args)
    assert (values, kubeconfig) == ([{"password": "swordfish"}], "/home/ada/.kube/config")
    assert not Path(args[args.index("--values") + 1]).exists()


def test_a_release_is_found_by_its_whole_name(fake: FakeHelm, helm: Helm) -> None:
    listed = [{"name": "gadgets", "revision": "3", "status": "pending-upgrade", "chart": "gadgets-1.0.0"}]
    fake.answers(list=(json.dumps(listed), 0))
    found = helm.find("gadgets", "gadget-system", is_ours=True)
    assert found == Release("gadgets", "gadget-system", "pending-upgrade", "gadgets-1.0.0")
    assert found.is_pending
    args = fake.calls[0][0]
    assert args[args.index("--filter") + 1] == "^gadgets$"
    assert args[args.index("--selector") + 1] == "windlass.dev/component=gadgets"
    fake.answers(list=("[]", 0))
    assert helm.find("gadgets", "gadget-system") is None


@pytest.mark.parametrize(
    ("status", "verb"),
    [
        ("pending-upgrade", "rollback"),
        ("pending-rollback", "rollback"),
        ("pending-install", "uninstall"),
        ("uninstalling", "uninstall"),
    ],
)
def test_operation_of_a_killed_helm_is_rolled_back(fake: FakeHelm, helm: Helm, status: str, verb: str) -> None:
    helm.recover(Release("gadgets", "gadget-system", status, "gadgets-1.0.0"))
    [[args, _, _]] = fake.calls
    assert args[2:4] == [verb, "gadgets"]


def test_missing_or_old_helm_is_reported(fake: FakeHelm, helm: Helm) -> None:
    assert helm.version() == (3, 22, 0)
    fake.answers(version=("v3.12.3", 0))
    with pytest.raises(MissingExtra, match=r"helm 3\.12\.3 is too old: 3\.13 or newer is needed"):
        helm.version()
    with pytest.raises(MissingExtra, match="helm is needed to install charts") as caught:
        Helm("no-such-helm", "", "lab").version()
    assert "https://helm.sh" in caught.value.hint


def test_helm_error_output_becomes_the_message(fake: FakeHelm, helm: Helm) -> None:
    fake.answers(upgrade=("Error: UPGRADE FAILED:\n  timed out", 1))
    with pytest.raises(EngineError, match="helm upgrade gadgets: Error: UPGRADE FAILED: timed out"):
        helm.upgrade("gadgets", "gadget-system", Path("chart"), {})
    fake.answers(list=("what?", 0))
    with pytest.raises(EngineError, match="not JSON"):
        helm.find("gadgets", "gadget-system")


def test_helm_is_killed_after_its_time_limit(tmp_path: Path) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text(SLEEPS)
    with pytest.raises(EngineError, match="took more than 1 s"):
        run_helm([sys.executable, str(script)], {}, 1)
    assert children_with(str(script)) == []


def test_helm_exits_with_a_killed_caller(tmp_path: Path) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text(SLEEPS)
    with subprocess.Popen([sys.executable, "-c", CALLS, str(script)], env={**os.environ}) as caller:
        until(lambda: len(children_with(str(script))) >= 3, "helm was not started")
        caller.send_signal(signal.SIGKILL)
    until(lambda: not children_with(str(script)), lambda: children_with(str(script)))


def test_silent_helm_failure_is_reported_with_its_exit_code() -> None:
    with pytest.raises(EngineError, match="exit code 3"):
        run_helm([sys.executable, "-c", "raise SystemExit(3)"], {}, 10)


def children_with(argument: str) -> list[int]:
    """Returns the pids of processes with this argument."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if argument in (entry / "cmdline").read_bytes().decode().split("\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


# -- sources ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gadgets", "gadgets-1.0.0", "gadgets-1.0.0.tgz"])
def test_a_chart_in_a_folder_may_be_unpacked_or_not(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert FolderSource(tmp_path).chart(CHART) == tmp_path / name


def test_missing_chart_in_a_folder_is_reported_with_its_expected_name(tmp_path: Path) -> None:
    source = FolderSource(tmp_path)
    with pytest.raises(EngineError, match=r"has no chart gadgets 1\.0\.0") as caught:
        source.chart(CHART)
    assert caught.value.hint == "put it there: helm pull oci://charts.invalid/all/gadgets --version 1.0.0"
    with pytest.raises(EngineError, match=r"gadgets\.yaml cannot be read") as caught:
        source.manifests("gadgets", Manifests("https://gadgets.invalid/all.yaml"))
    assert caught.value.hint == "put there: https://gadgets.invalid/all.yaml"


@pytest.mark.parametrize(
    ("chart", "asked"),
    [
        (CHART, ["oci://charts.invalid/all/gadgets"]),
        (Chart("https://charts.invalid", "gadgets", "1.0.0"), ["gadgets", "--repo", "https://charts.invalid"]),
    ],
)
def test_a_chart_is_pulled_once(fake: FakeHelm, tmp_path: Path, chart: Chart, asked: list[str]) -> None:
    source = NetworkSource(tmp_path / "cache", fake.path)
    found = source.chart(chart)
    assert (found.name, found.read_text()) == ("gadgets-1.0.0.tgz", "chart")
    assert source.chart(chart) == found
    [[args, _, _]] = fake.calls
    assert args[: len(asked) + 1] == ["pull", *asked]


@pytest.mark.parametrize("url", ["http://gadgets.invalid/all.yaml", "file:///etc/passwd"])
def test_manifests_are_fetched_over_https_only(tmp_path: Path, url: str) -> None:
    with pytest.raises(EngineError, match="is not https"):
        NetworkSource(tmp_path).manifests("gadgets", Manifests(url))
