"""Drain works on a real cluster, with the real AWS Load Balancer Controller and an emulated cloud.

The claims are of the test cluster's own class, whose volumes are folders, in place of a CSI driver.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.cluster import operated
from tests.cluster.bed import balancer
from tests.cluster.bed.balancer import CLUSTER, Controller
from tests.cluster.bed.cluster import Bed
from tests.cluster.objects import job
from tests.fakeaws.emulator import Emulator, emulated_aws
from tests.helpers.clock import BriefClock
from tests.helpers.until import until

from windlass.clusters.audit import audit
from windlass.clusters.audit.scope import ClusterNetwork
from windlass.clusters.aws import Aws
from windlass.clusters.drain import Drained, DrainStep, drain, holdings
from windlass.engines.kubernetes.access.client import Client

pytestmark = [pytest.mark.operators, pytest.mark.timeout(600)]
FINALIZER = "service.k8s.aws/resources"
DRAINS = """
import sys
from windlass.engines.kubernetes.access.client import Client
from windlass.clusters.drain import drain
drain(Client(sys.argv[1], "default", sys.argv[2]), lambda step: print(step.what, flush=True))
"""


@dataclass(frozen=True)
class Scene:
    """Cluster with the controller, and its emulated account."""

    bed: Bed
    aws: Emulator
    controller: Controller

    @property
    def client(self) -> Client:
        return Client(self.bed.context, "default", self.bed.kubeconfig)

    def balancers(self) -> list[str]:
        """Returns the names of the load balancers in the account."""
        found = self.aws.client("elbv2").describe_load_balancers()["LoadBalancers"]
        return [str(one["LoadBalancerName"]) for one in found]

    def leaks(self) -> list[str]:
        """Returns the names of the load balancers that the audit reports."""
        with Aws(environ=self.aws.environ) as aws:
            report = audit(CLUSTER, aws, network=ClusterNetwork(self.controller.vpc_id), is_ours=True)
        return [one.name for one in report.found if one.kind == "load balancer"]

    def serve(self, name: str, namespace: str) -> None:
        """Creates a Service, and waits until it has a load balancer."""
        self.bed.apply(balancer.service(name), namespace=namespace)
        path = f"/api/v1/namespaces/{namespace}/services/{name}"
        until(lambda: self.bed.api.get(path)["status"].get("loadBalancer"), self.controller.log.read_text)
        assert FINALIZER in self.bed.api.get(path)["metadata"]["finalizers"]

    def drain(self, seconds: float = 600, told: Callable[[DrainStep], None] = lambda _: None) -> Drained:
        return drain(self.client, told, timeout_seconds=seconds, clock=BriefClock(0.1))


@pytest.fixture(scope="module")
def scene(lone_bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("controller")
    with emulated_aws(folder / "aws") as aws, balancer.controlled(lone_bed, aws, folder) as controller:
        yield Scene(lone_bed, aws, controller)


def test_a_load_balancer_is_removed_through_its_controller_emulated(scene: Scene, lone_namespace: str) -> None:
    scene.serve("web", lone_namespace)
    assert len(scene.balancers()) == 1
    held = {(one.ref.kind, one.ref.name): one.holds for one in holdings(scene.client)}
    assert ".elb." in held["Service", "web"]
    done = scene.drain()
    assert not done.left
    assert ("Service", "web") in [(one.ref.kind, one.ref.name) for one in done.drained]
    assert scene.balancers() == []
    assert scene.drain() == Drained((), (), ()), "a second drain finds nothing"


def test_service_is_kept_with_the_reason_if_its_controller_is_missing_emulated(
    scene: Scene, lone_namespace: str
) -> None:
    scene.serve("web", lone_namespace)
    scene.controller.kill()
    told: list[DrainStep] = []
    done = scene.drain(1, told.append)
    [left] = [one for one in done.left if one.ref.kind == "Service"]
    assert left.ref.name == "web"
    assert f"finalizer {FINALIZER}" in left.why
    assert "is it running?" in left.why
    assert ("services", "left") in [(one.stage, one.what) for one in told]
    [name] = scene.balancers()
    assert scene.leaks() == [name], "the load balancer costs money, and the audit names it"
    scene.controller.start()
    assert not scene.drain().left, "the next drain goes on"
    assert scene.balancers() == []


@pytest.mark.parametrize("pause_seconds", [0.0, pytest.param(0.1, marks=pytest.mark.nightly)])
def test_load_balancers_of_a_killed_controller_are_all_reported_emulated(
    scene: Scene, lone_namespace: str, pause_seconds: float
) -> None:
    scene.serve("web", lone_namespace)

    strikes: list[threading.Timer] = []

    def strike(step: DrainStep) -> None:
        if step.what == "delete" and "Service" in step.detail:
            strikes.append(threading.Timer(pause_seconds, scene.controller.kill))
            strikes[-1].start()

    done = scene.drain(1, strike)
    for one in strikes:
        one.join()  # otherwise it could affect the controller that is started below
    left = [one for one in done.left if one.ref.kind == "Service"]
    assert left or scene.balancers() == [], "a Service that is gone has no load balancer"
    scene.controller.start()
    assert not scene.drain().left
    assert scene.balancers() == []


def test_next_drain_continues_a_killed_one_emulated(scene: Scene, lone_namespace: str) -> None:
    scene.serve("web", lone_namespace)
    scene.controller.kill()
    command = [sys.executable, "-c", DRAINS, scene.bed.context, scene.bed.kubeconfig]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ}, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline().strip() == "delete"
        first.send_signal(signal.SIGKILL)
    assert len(scene.balancers()) == 1
    scene.controller.start()
    assert not scene.drain().left
    assert scene.balancers() == []


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_nodes_are_removed_through_karpenter_and_kept_while_it_does_not_run(scaled: Bed, lone_namespace: str) -> None:
    pool = {"apiVersion": "v1", "kind": "List", "items": operated.node_pool("gpus", "g5.12xlarge")}
    scaled.kubectl("apply", "-f", "-", stdin=json.dumps(pool))
    scaled.apply(*operated.hungry(scaled, lone_namespace, 4), namespace=lone_namespace)
    made = "/api/v1/nodes?labelSelector=karpenter.sh/nodepool=gpus"
    until(lambda: len(scaled.api.get(made)["items"]) == 2, "no nodes were made")
    client = Client(scaled.context, "default", scaled.kubeconfig)
    scaled.stop_program("karpenter")
    left = drain(client, lambda _: None, timeout_seconds=2, clock=BriefClock(0.1)).left
    assert [one.ref.kind for one in left] == ["NodeClaim", "NodeClaim"]
    assert all("finalizer karpenter.sh/termination: karpenter has not removed it" in one.why for one in left)
    scaled.start_program("karpenter")
    done = drain(client, lambda _: None, timeout_seconds=240, clock=BriefClock(0.1))
    assert not done.left
    assert [one.ref.kind for one in done.drained] == ["NodeClaim", "NodeClaim"]
    until(lambda: not scaled.api.get(made)["items"], "the nodes did not go")


# -- claims -----------------------------------------------------------------------------------------------------------


def claim(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": "bed",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }


def volume_of(bed: Bed, namespace: str, name: str) -> str:
    """Returns the volume of a claim, once it is bound."""
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"
    return until(lambda: str(bed.api.get(path)["spec"].get("volumeName") or ""), "no volume was made")


def test_claim_in_use_is_kept_until_its_pods_are_deleted_emulated(scene: Scene, lone_namespace: str) -> None:
    bed = scene.bed
    holder = job(bed, "holder", "import time; time.sleep(600)")
    pod = holder["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    pod["terminationGracePeriodSeconds"] = 1
    bed.apply(claim("data"), holder, namespace=lone_namespace)
    volume = volume_of(bed, lone_namespace, "data")
    bed.kubectl("wait", "-n", lone_namespace, "--for=jsonpath={.status.ready}=1", "job/holder", "--timeout=600s")
    [left] = scene.drain(1).left
    assert (left.ref.kind, left.ref.name) == ("PersistentVolumeClaim", "data")
    assert "pods use the claim: holder-" in left.why
    bed.kubectl("delete", "job", "holder", "-n", lone_namespace)
    done = scene.drain()
    assert not done.left
    assert not (bed.layout.volumes / volume).exists()


def test_retained_volume_is_kept_and_reported_emulated(scene: Scene, lone_namespace: str) -> None:
    bed = scene.bed
    bed.apply(claim("kept"), claim("data"), namespace=lone_namespace)
    kept, data = (volume_of(bed, lone_namespace, name) for name in ("kept", "data"))
    bed.api.patch(f"/api/v1/persistentvolumes/{kept}", {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
    done = scene.drain()
    assert not done.left
    assert [(one.ref.name, one.holds) for one in done.kept] == [("kept", f"volume {kept}")]
    assert (bed.layout.volumes / kept).exists()
    assert not (bed.layout.volumes / data).exists()
    bed.api.patch(f"/api/v1/persistentvolumes/{kept}", {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    assert not scene.drain().left
