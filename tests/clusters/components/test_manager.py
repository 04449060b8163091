"""Components are installed by server-side apply: idempotent, recorded first, continued after an interruption."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clusters.components.fakecluster import FakeCluster
from tests.helpers.clock import FakeClock

from windlass.clusters.components import readiness
from windlass.clusters.components.component import COMPONENT_LABEL, Component, Generated, Manifests, Ready, crds
from windlass.clusters.components.context import NotReady
from windlass.clusters.components.installation import Foreign
from windlass.clusters.components.manager import Manager
from windlass.clusters.components.removal import InUse
from windlass.clusters.components.source import FolderSource
from windlass.clusters.components.steps import Step
from windlass.clusters.components.table import COMPONENTS
from windlass.clusters.components.values import ClusterValues, GpuPool
from windlass.errors import EngineError, MissingExtra

VALUES = ClusterValues("lab", "us-east-1", "vpc-1", "team", queue_name="q", pools=(GpuPool("gpus", ("g5.xlarge",)),))
SPACE = "gadget-system"
CRD = "gadgets.windlass.test"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": CRD},
    "spec": {
        "group": "windlass.test",
        "scope": "Namespaced",
        "names": {"kind": "Gadget", "plural": "gadgets"},
        "versions": [{"name": "v1", "served": True, "storage": True}],
    },
}


def deployment(name: str = "operator") -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}},
    }


ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator"}}
DEFAULTS = {"apiVersion": "windlass.test/v1", "kind": "Gadget", "metadata": {"name": "default"}}
GADGETS = Component(
    "gadgets",
    "1.0.0",
    Manifests("https://gadgets.invalid/v1.0.0/all.yaml"),
    SPACE,
    ready=(Ready("Deployment", "operator"), *crds(CRD)),
)
WIDGETS = Component("widgets", "1", Generated(lambda values: [ACCOUNT]), "kube-system", needs=("gadgets",))


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    made = FakeCluster()
    made.act = lambda path, found: run(found)
    yield made
    made.close()


def run(found: dict[str, Any]) -> None:
    """Makes every Deployment available as soon as it is applied."""
    if found["kind"] == "Deployment":
        found["status"] = {"observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": 1}


Make = Callable[..., Manager]


@pytest.fixture
def manager(cluster: FakeCluster, tmp_path: Path) -> Make:
    def make(*objects: dict[str, Any], version: str = "1.0.0", table: tuple[Component, ...] = ()) -> Manager:
        items = objects or (DEFAULTS, deployment(), ACCOUNT, DEFINITION)
        (tmp_path / "gadgets.yaml").write_text("---\n".join(json.dumps(one) + "\n" for one in items))
        gadgets = dataclasses.replace(GADGETS, version=version)
        return Manager(
            cluster.client(tmp_path),
            cluster.kubeconfig(tmp_path),
            VALUES,
            FolderSource(tmp_path),
            helm="no-such-helm",
            table=table or (gadgets, WIDGETS),
            clock=FakeClock(),
        )

    return make


def quiet(_: Step) -> None:
    """Progress callback for tests that ignore the progress."""


def test_objects_are_applied_in_order_after_the_record(cluster: FakeCluster, manager: Make) -> None:
    told: list[Step] = []
    manager().install(["gadgets"], told.append)
    assert [one.rpartition("/")[2] for one in cluster.changes] == [
        "windlass-component-gadgets",
        SPACE,
        CRD,
        "operator",
        "operator",
        "default",
        "windlass-component-gadgets",
    ]
    assert [one.what for one in told] == ["apply"] * 4 + ["ready"]
    for one in cluster.objects.values():
        assert one["metadata"]["labels"][COMPONENT_LABEL] == "gadgets"
    found = next(one for one in cluster.objects.values() if one["kind"] == "Deployment")
    assert found["metadata"]["namespace"] == SPACE


def test_a_second_installation_changes_nothing(cluster: FakeCluster, manager: Make) -> None:
    manager().install(["gadgets"], quiet)
    cluster.changes.clear()
    told: list[Step] = []
    manager().install(["gadgets"], told.append)
    assert cluster.changes == []
    assert [one.what for one in told] == ["unchanged"]


def test_objects_deleted_by_hand_are_restored(cluster: FakeCluster, manager: Make) -> None:
    manager().install(["gadgets"], quiet)
    del cluster.objects[cluster.path("apps/v1", "Deployment", "operator", SPACE)]
    [status] = manager().status(["gadgets"])
    assert (status.state, status.problems) == ("installed", (f"Deployment operator in {SPACE}: does not exist",))
    manager().install(["gadgets"], quiet)
    assert manager().status(["gadgets"])[0].is_healthy


def test_upgrade_deletes_obsolete_objects_but_keeps_crds(cluster: FakeCluster, manager: Make) -> None:
    manager().install(["gadgets"], quiet)
    cluster.put("v1", "ConfigMap", "theirs", SPACE)
    newer = manager(deployment(), version="2.0.0")
    assert newer.status(["gadgets"])[0].is_current is False
    newer.install(["gadgets"], quiet)
    assert newer.status(["gadgets"])[0].installed == "2.0.0"
    assert cluster.names("ServiceAccount") == []
    assert cluster.names("CustomResourceDefinition") == [CRD]
    assert cluster.names("ConfigMap") == ["theirs", "windlass-component-gadgets"]
    newer.uninstall([], quiet)
    assert cluster.names("CustomResourceDefinition") == [], "it is still known after the upgrade"


def test_changed_content_is_refused_unless_the_version_changed(cluster: FakeCluster, manager: Make) -> None:
    manager().install(["gadgets"], quiet)
    cluster.changes.clear()
    with pytest.raises(
        EngineError, match=r"gadgets: 1\.0\.0 was installed here with the SHA-256 \w{64}, but the downloaded content"
    ):
        manager(DEFAULTS, deployment("other"), DEFINITION).install(["gadgets"], quiet)
    assert cluster.changes == []
    manager(DEFAULTS, deployment(), DEFINITION, version="2.0.0").install(["gadgets"], quiet)


def test_content_that_differs_from_the_published_digest_is_refused(cluster: FakeCluster, manager: Make) -> None:
    pinned = dataclasses.replace(GADGETS, source=Manifests("https://gadgets.invalid/all.yaml", "0" * 64))
    with pytest.raises(EngineError, match=rf"published with the SHA-256 {'0' * 64}, but the downloaded content"):
        manager(table=(pinned,)).install(["gadgets"], quiet)
    assert cluster.changes == []


def test_removal_deletes_all_own_objects_and_no_others(cluster: FakeCluster, manager: Make) -> None:
    cluster.put("v1", "ConfigMap", "theirs", "kube-system")
    manager().install(["widgets"], quiet)
    told: list[Step] = []
    manager().uninstall([], told.append)
    assert [one.component for one in told if one.what == "removed"] == ["widgets", "gadgets"]
    assert [one["metadata"]["name"] for one in cluster.objects.values()] == ["theirs"]


def test_namespace_with_foreign_objects_is_kept(cluster: FakeCluster, manager: Make) -> None:
    manager().install(["gadgets"], quiet)
    cluster.put("v1", "ConfigMap", "kube-root-ca.crt", SPACE)
    cluster.put("v1", "Secret", "theirs", SPACE)
    told: list[Step] = []
    manager().uninstall([], told.append)
    why = f"Namespace {SPACE}: it has objects that Windlass did not install: Secret theirs"
    assert [one.detail for one in told if one.what == "kept"] == [why]
    assert cluster.names("Namespace") == [SPACE]


def test_preexisting_namespace_is_not_deleted(cluster: FakeCluster, manager: Make) -> None:
    cluster.put("v1", "Namespace", SPACE)
    manager().install(["gadgets"], quiet)
    manager().uninstall([], quiet)
    assert cluster.names("Namespace") == [SPACE]


def test_foreign_objects_are_refused_before_anything_changes(cluster: FakeCluster, manager: Make) -> None:
    cluster.put("v1", "ServiceAccount", "operator", SPACE)
    with pytest.raises(Foreign, match="ServiceAccount operator in gadget-system exists already"):
        manager().install(["gadgets"], quiet)
    assert cluster.changes == []


def test_custom_resources_prevent_the_removal_of_a_component(cluster: FakeCluster, manager: Make) -> None:
    manager().install(["gadgets"], quiet)
    cluster.put("windlass.test/v1", "Gadget", "mine", "team")
    cluster.changes.clear()
    with pytest.raises(InUse, match="custom resources exist: Gadget mine in team\n"):
        manager().uninstall([], quiet)
    assert cluster.changes == []


def test_component_needed_by_others_is_not_removed(manager: Make) -> None:
    manager().install(["widgets"], quiet)
    with pytest.raises(InUse, match="component widgets needs gadgets"):
        manager().uninstall(["gadgets"], quiet)


def test_component_that_is_not_ready_in_time_is_reported_with_its_pods(cluster: FakeCluster, manager: Make) -> None:
    cluster.act = lambda path, found: None
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    cluster.put(
        "v1",
        "Pod",
        "operator-x",
        SPACE,
        metadata={"labels": {"app": "operator"}},
        status={"containerStatuses": [{"name": "c", "state": waiting}]},
    )
    with pytest.raises(NotReady, match="its change was not processed yet; pod operator-x: ImagePullBackOff: not found"):
        manager().install(["gadgets"], quiet)
    [status] = manager().status(["gadgets"])
    assert (status.state, status.is_healthy) == ("installing", False)


@pytest.mark.parametrize("at", range(1, 8))
def test_interrupted_installation_is_finished_by_the_next(cluster: FakeCluster, manager: Make, at: int) -> None:
    num = iter(range(1, 1000))
    cluster.refuses = lambda method, path: (409, "killed") if method == "PATCH" and next(num) >= at else None
    with pytest.raises(EngineError, match="killed"):
        manager().install(["gadgets"], quiet)
    cluster.refuses = lambda method, path: None
    manager().install(["gadgets"], quiet)
    assert manager().status(["gadgets"])[0].is_healthy
    manager().uninstall([], quiet)
    assert cluster.objects == {}


@pytest.mark.parametrize("at", range(1, 8))
def test_interrupted_removal_is_finished_by_the_next(cluster: FakeCluster, manager: Make, at: int) -> None:
    manager().install(["gadgets"], quiet)
    num = iter(range(1, 1000))
    cluster.refuses = lambda method, path: (409, "killed") if method != "GET" and next(num) >= at else None
    with pytest.raises(EngineError, match="killed"):
        manager().uninstall([], quiet)
    cluster.refuses = lambda method, path: None
    assert manager().status(["gadgets"])[0].state in ("removing", "installed")
    manager().uninstall([], quiet)
    assert cluster.objects == {}


def test_installation_killed_before_its_first_object_can_be_removed(cluster: FakeCluster, manager: Make) -> None:
    cluster.refuses = lambda method, path: (409, "killed") if path.endswith(SPACE) and method == "PATCH" else None
    with pytest.raises(EngineError, match="killed"):
        manager().install(["gadgets"], quiet)
    cluster.refuses = lambda method, path: None
    manager().uninstall([], quiet)
    assert cluster.objects == {}


def test_damaged_record_is_reported(cluster: FakeCluster, manager: Make) -> None:
    manager().install(["gadgets"], quiet)
    record = cluster.objects[cluster.path("v1", "ConfigMap", "windlass-component-gadgets", "kube-system")]
    record["data"]["objects"] = "[[1]]"
    with pytest.raises(EngineError, match="windlass-component-gadgets in kube-system is not a valid") as caught:
        manager().status()
    assert "kubectl" in caught.value.hint


def test_component_in_use_by_another_process_is_refused(cluster: FakeCluster, manager: Make) -> None:
    manager().install(["gadgets"], quiet)
    record = cluster.objects[cluster.path("v1", "ConfigMap", "windlass-component-gadgets", "kube-system")]
    machine, host, pid, *_ = json.loads(record["data"]["worker"])
    record["data"] |= {"state": "installing", "is_release": "true", "since": "99999999999"}
    record["data"]["worker"] = json.dumps([f"not-{machine}", "other-host", pid, 1, "boot"])
    with pytest.raises(EngineError, match=r"component gadgets is installing: process \d+ on other-host"):
        manager(version="2.0.0").install(["gadgets"], quiet)
    record["data"]["worker"] = json.dumps([machine, host, 2**22 + 1, 1, "an earlier boot"])
    manager(version="2.0.0").install(["gadgets"], quiet)


def test_charts_need_helm_before_anything_changes(cluster: FakeCluster, manager: Make) -> None:
    with pytest.raises(MissingExtra, match="helm is needed to install charts"):
        manager(table=COMPONENTS).install(["storage", "jobset"], quiet)
    assert cluster.changes == []


def test_storage_and_node_pools_are_generated_and_ready(cluster: FakeCluster, manager: Make) -> None:
    for api, kind in (("karpenter.sh/v1", "NodePool"), ("karpenter.k8s.aws/v1", "EC2NodeClass")):
        cluster.kinds[api] = {kind: 0}
    pools = dataclasses.replace(next(one for one in COMPONENTS if one.name == "node-pools"), needs=())
    storage = next(one for one in COMPONENTS if one.name == "storage")
    its = manager(table=(storage, pools))
    its.install(["storage", "node-pools"], quiet)
    assert (cluster.names("NodePool"), cluster.names("StorageClass")) == (["gpus"], ["gp3"])
    cluster.objects[cluster.path("karpenter.sh/v1", "NodePool", "gpus")]["status"] = {
        "conditions": [{"type": "Ready", "status": "False", "reason": "NodeClassNotReady"}]
    }
    assert its.status(["node-pools"])[0].problems == ("NodePool gpus: NodeClassNotReady",)
    its.uninstall([], quiet)
    assert cluster.objects == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [("a: [", "is not YAML"), ("kind: X\n", "not a Kubernetes object"), ("- 1\n", "not a Kubernetes object")],
)
def test_invalid_manifests_are_refused(manager: Make, tmp_path: Path, text: str, said: str) -> None:
    its = manager()
    (tmp_path / "gadgets.yaml").write_text(text)
    with pytest.raises(EngineError, match=said):
        its.install(["gadgets"], quiet)


def test_new_crd_is_not_ready() -> None:
    assert readiness.of_object({"kind": "CustomResourceDefinition", "status": {"conditions": None}}) == (
        "not Established yet"
    )
