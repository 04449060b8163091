"""Components are installed on a real cluster by the real helm and by server-side apply, from charts in a folder.

The operator of the chart is emulated: a Deployment of the test cluster's own image. JobSet's definition and webhooks,
and its operator, which runs on the host of the control plane, are real. `WINDLASS_TEST_HELM` is the path of another
helm than the built one, such as one of version 4.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed import build, charts, host, images, installing
from tests.cluster.bed.api import suppressed
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.layout import ROOT
from tests.cluster.bed.operators import JOBSET
from tests.cluster.bed.sharing import only_user
from tests.helpers.clock import BriefClock

from windlass.clusters.components.component import Chart, Component, Manifests, Ready, crds
from windlass.clusters.components.context import NotReady
from windlass.clusters.components.installation import Foreign
from windlass.clusters.components.manager import READY_SECONDS, ComponentStatus, Manager
from windlass.clusters.components.removal import InUse
from windlass.clusters.components.source import FolderSource
from windlass.clusters.components.steps import Step
from windlass.clusters.components.values import ClusterValues
from windlass.engines.kubernetes.access.client import Client
from windlass.runs.clock import Clock

pytestmark = [pytest.mark.operators, pytest.mark.timeout(600)]
VALUES = ClusterValues("lab", "us-east-1", "vpc-1", "default", queue_name="lab-events")
SPACE = "emulated-system"
DEFINITIONS = installing.COLLECTIONS[installing.DEFINITION]
INSTALLS = """
import json, sys
from pathlib import Path
from tests.cluster.test_components import installer
context, kubeconfig, folder, seconds = sys.argv[1:]
said = lambda step: print(step.what, flush=True)
installer(context, kubeconfig, Path(folder), version="1.0.0", hook_seconds=int(seconds)).install(["emulated"], said)
"""


def emulated(version: str, hook_seconds: int = 0, replicas: int = 1) -> Component:
    """Returns the component of the small chart."""
    return Component(
        charts.NAME,
        version,
        Chart("https://charts.invalid", charts.NAME, version),
        SPACE,
        ready=(Ready("Deployment", "emulated-controller"), *crds(charts.DEFINITION)),
        values=lambda values: {
            "image": images.BASE,
            "queue": values.queue_name,
            "hookSeconds": hook_seconds,
            "replicas": replicas,
        },
    )


def installer(
    context: str,
    kubeconfig: str,
    folder: Path,
    *,
    version: str,
    hook_seconds: int = 0,
    clock: Clock | None = None,
) -> Manager:
    helm = os.environ.get("WINDLASS_TEST_HELM") or build.HELM.program("helm")
    return Manager(
        Client(context, "default", kubeconfig),
        kubeconfig,
        VALUES,
        FolderSource(folder),
        helm=helm,
        table=(emulated(version, hook_seconds),),
        clock=clock or BriefClock(0.2),
    )


def quiet(_: Step) -> None:
    """Ignores the progress of an installation."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build.build_cluster_tools()
    charts.write(tmp_path, "1.0.0", "colour")
    charts.write(tmp_path, "2.0.0", "colour", "size")
    return tmp_path


@pytest.fixture
def manager(bed: Bed, folder: Path) -> Iterator[Callable[..., Manager]]:
    def make(version: str = "1.0.0", **more: Any) -> Manager:
        return installer(bed.context, bed.kubeconfig, folder, version=version, **more)

    with only_user(bed, charts.NAME):  # other tests of this file may run in parallel
        yield make
        make().uninstall(["emulated"], quiet)
        assert left(bed) == []


def left(bed: Bed) -> list[str]:
    """Lists the objects of the component in the cluster."""
    record = "/api/v1/namespaces/kube-system/configmaps/windlass-component-emulated"
    paths = [f"{DEFINITIONS}/{charts.DEFINITION}", f"/api/v1/namespaces/{SPACE}", record]
    return [path for path in paths if exists(bed, path)]


def exists(bed: Bed, path: str) -> bool:
    with suppressed(404):
        bed.api.get(path)
        return True
    return False


def fields(bed: Bed) -> set[str]:
    """Returns the fields of the kind that the chart defines."""
    found = bed.api.get(f"{DEFINITIONS}/{charts.DEFINITION}")
    schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return set(schema["properties"]["spec"]["properties"])


def state(manager: Manager) -> ComponentStatus:
    [found] = manager.status(["emulated"])
    return found


def test_component_is_installed_upgraded_and_uninstalled_without_leftovers_emulated(
    bed: Bed, manager: Callable[..., Manager]
) -> None:
    first, second = manager("1.0.0"), manager("2.0.0")
    assert state(first).state == "absent"
    told: list[Step] = []
    first.install(["emulated"], told.append)
    assert [step.what for step in told if step.what in ("apply", "helm", "ready")] == ["apply", "helm", "ready"]
    assert (state(first).installed, state(first).is_healthy, state(first).is_current) == ("1.0.0", True, True)
    deployment = bed.api.get(f"/apis/apps/v1/namespaces/{SPACE}/deployments/emulated-controller")
    assert deployment["spec"]["template"]["metadata"]["annotations"]["queue"] == VALUES.queue_name
    told.clear()
    first.install(["emulated"], told.append)
    assert [step.what for step in told] == ["unchanged"]
    assert state(second).is_current is False
    second.install(["emulated"], quiet)
    assert fields(bed) == {"colour", "size"}, "helm alone never upgrades definitions"
    assert state(second).is_current
    second.uninstall(["emulated"], quiet)
    assert left(bed) == []
    second.uninstall(["emulated"], quiet)


def test_a_component_with_custom_resources_of_users_is_not_removed_emulated(
    bed: Bed, manager: Callable[..., Manager], namespace: str
) -> None:
    manager().install(["emulated"], quiet)
    gadget = {"apiVersion": f"{charts.GROUP}/v1", "kind": "Gadget", "metadata": {"name": "mine"}, "spec": {}}
    bed.apply(gadget, namespace=namespace)
    with pytest.raises(InUse, match=f"Gadget mine in {namespace}"):
        manager().uninstall(["emulated"], quiet)
    assert state(manager()).is_healthy, "nothing was removed"
    bed.kubectl("delete", f"gadgets.{charts.GROUP}", "mine", "-n", namespace)


def test_component_installed_by_others_is_refused_emulated(bed: Bed, manager: Callable[..., Manager]) -> None:
    bed.api.create(installing.COLLECTIONS[installing.DEFINITION], charts.definition("colour"))
    try:
        with pytest.raises(Foreign, match=f"CustomResourceDefinition {charts.DEFINITION} exists already"):
            manager().install(["emulated"], quiet)
        assert state(manager()).state == "foreign"
        manager().uninstall(["emulated"], quiet)
        assert exists(bed, f"{DEFINITIONS}/{charts.DEFINITION}")
    finally:
        installing.withdraw(bed.api, [charts.definition("colour")])


def test_component_that_never_gets_ready_is_reported_with_the_reason_emulated(
    manager: Callable[..., Manager], folder: Path
) -> None:
    broken = charts.DEPLOYMENT.replace("{{ .Values.image }}", "localhost/none:1")
    charts.write(folder, "3.0.0", "colour", deployment=broken)
    told: list[Step] = []

    class ShortClock(BriefClock):
        def monotonic(self) -> float:
            """Returns a time after the limit as soon as the reason is known."""
            return super().monotonic() + READY_SECONDS * any("Image" in one.detail for one in told)

    with pytest.raises(NotReady, match=r"0 available.*pod emulated-controller.*(ErrImage|ImagePull)"):
        manager("3.0.0", clock=ShortClock(0.2)).install(["emulated"], told.append)
    assert (state(manager("3.0.0")).state, state(manager("3.0.0")).is_healthy) == ("installing", False)
    manager("2.0.0").install(["emulated"], quiet)
    assert state(manager("2.0.0")).is_healthy


@pytest.mark.parametrize("what", ["helm", pytest.param("apply", marks=pytest.mark.nightly)])
def test_killed_installation_is_continued_emulated(
    bed: Bed, manager: Callable[..., Manager], folder: Path, what: str
) -> None:
    command = [sys.executable, "-c", INSTALLS, bed.context, bed.kubeconfig, str(folder), "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as first:
        assert first.stdout is not None
        while first.stdout.readline().strip() != what:
            assert first.poll() is None
        if what == "helm":  # the worst moment: helm waits for a hook, and the release is pending
            host.wait_for(lambda: exists(bed, f"/apis/batch/v1/namespaces/{SPACE}/jobs/emulated-hook"), "the hook")
        first.send_signal(signal.SIGKILL)
    assert state(manager()).state == "installing"
    told: list[Step] = []
    manager().install(["emulated"], told.append)
    assert ("recover" in [step.what for step in told]) is (what == "helm")
    assert state(manager()).is_healthy


def test_killed_upgrade_is_continued_emulated(bed: Bed, manager: Callable[..., Manager], folder: Path) -> None:
    manager().install(["emulated"], quiet)
    command = [sys.executable, "-c", INSTALLS, bed.context, bed.kubeconfig, str(folder), "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as first:
        host.wait_for(lambda: exists(bed, f"/apis/batch/v1/namespaces/{SPACE}/jobs/emulated-hook"), "the hook")
        first.send_signal(signal.SIGKILL)
    manager("2.0.0").install(["emulated"], quiet)
    assert state(manager("2.0.0")).installed == "2.0.0"
    assert state(manager("2.0.0")).is_healthy


# -- JobSet, by server-side apply -------------------------------------------------------------------------------------


@pytest.fixture
def without_jobset(lone_bed: Bed) -> Iterator[Bed]:
    """Test cluster whose JobSet is removed for the test and restored after it."""
    lone_bed.stop_program(JOBSET.name)
    objects = json.loads(build.manifests(JOBSET.name).read_text())
    for each in objects:
        if each["kind"] != installing.DEFINITION:
            lone_bed.api.discard(f"{installing.COLLECTIONS[each['kind']]}/{each['metadata']['name']}")
    installing.withdraw(lone_bed.api, [each for each in objects if each["kind"] == installing.DEFINITION])
    yield lone_bed
    lone_bed.stop_program(JOBSET.name)
    installing.define(lone_bed.api, JOBSET, lone_bed.layout)
    installing.hook(lone_bed.api, JOBSET, lone_bed.layout)
    lone_bed.start_program(JOBSET.name)


def test_jobset_installed_by_server_side_apply_runs_a_jobset_and_is_removed_completely(
    without_jobset: Bed, lone_namespace: str, tmp_path: Path
) -> None:
    bed = without_jobset
    (tmp_path / "jobset.yaml").write_text(json.dumps(installing.manifests_of(JOBSET, bed.layout)))
    component = Component(
        "jobset",
        "0.10.1",
        Manifests("https://jobset.invalid/manifests.yaml"),
        "kube-system",
        ready=crds("jobsets.jobset.x-k8s.io"),
    )
    client = Client(bed.context, "default", bed.kubeconfig)
    manager = Manager(client, bed.kubeconfig, VALUES, FolderSource(tmp_path), helm="no-helm", table=(component,))
    manager.install(["jobset"], quiet)
    bed.start_program(JOBSET.name)
    pod = {
        "spec": {"restartPolicy": "Never", "containers": [{"name": "node", "image": bed.image, "command": ["true"]}]}
    }
    replicated = {"name": "node", "replicas": 1, "template": {"spec": {"template": pod}}}
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "digits"},
        "spec": {"replicatedJobs": [replicated]},
    }
    host.wait_for(lambda: _is_applied(bed, made, lone_namespace), "JobSet's webhooks")
    bed.kubectl("wait", "--for=create", "job/digits-node-0", "-n", lone_namespace, "--timeout=600s")
    with pytest.raises(InUse, match="JobSet digits"):
        manager.uninstall([], quiet)
    bed.kubectl("delete", "jobset", "digits", "-n", lone_namespace, "--timeout=600s")
    newer = dataclasses.replace(component, version="0.10.2")
    upgraded = Manager(client, bed.kubeconfig, VALUES, FolderSource(tmp_path), table=(newer,))
    upgraded.install(["jobset"], quiet)
    assert upgraded.status()[0].installed == "0.10.2"
    manager.uninstall([], quiet)
    names = bed.kubectl("get", "crd,mutatingwebhookconfiguration,validatingwebhookconfiguration", "-o", "name")
    assert "jobset" not in names


def _is_applied(bed: Bed, made: dict[str, Any], namespace: str) -> bool:
    try:
        bed.apply(made, namespace=namespace)
    except subprocess.CalledProcessError:
        return False
    return True
