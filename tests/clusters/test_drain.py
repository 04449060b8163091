"""The drain deletes objects in order, waits, explains remaining objects, keeps retained ones, and can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clusters.components.fakecluster import FakeCluster
from tests.helpers.clock import START, FakeClock

from windlass.clusters.drain import Drained, DrainStep, active, drain, holdings
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import layout

LB = "service.k8s.aws/resources"
PVC = "kubernetes.io/pvc-protection"
PROVISIONER = "external-provisioner.volume.kubernetes.io/finalizer"
KARPENTER = "karpenter.sh/termination"
NODE_CLASS = "karpenter.k8s.aws/termination"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    made = FakeCluster()
    yield made
    made.close()


@pytest.fixture
def client(cluster: FakeCluster, tmp_path: Path) -> Client:
    return cluster.client(tmp_path)


def service(cluster: FakeCluster, name: str = "web") -> str:
    cluster.put(
        "v1",
        "Service",
        name,
        "team",
        metadata={"finalizers": [LB]},
        spec={"type": "LoadBalancer"},
        status={"loadBalancer": {"ingress": [{"hostname": "a.elb.amazonaws.com"}]}},
    )
    return cluster.path("v1", "Service", name, "team")


def volume(cluster: FakeCluster, name: str, policy: str = "Delete", *, is_bound: bool = True) -> str:
    """Creates a dynamically provisioned volume and its claim."""
    cluster.put(
        "v1",
        "PersistentVolume",
        f"pv-{name}",
        metadata={"annotations": {"pv.kubernetes.io/provisioned-by": "ebs.csi.aws.com"}, "finalizers": [PROVISIONER]},
        spec={
            "persistentVolumeReclaimPolicy": policy,
            "claimRef": {"namespace": "team", "name": name},
            "csi": {"volumeHandle": f"vol-{name}"},
        },
        status={"phase": "Bound" if is_bound else "Released"},
    )
    if is_bound:
        cluster.put("v1", "PersistentVolumeClaim", name, "team", metadata={"finalizers": [PVC]})
    return cluster.path("v1", "PersistentVolumeClaim", name, "team")


def nodes(cluster: FakeCluster) -> None:
    cluster.put("karpenter.sh/v1", "NodePool", "gpus", status={"resources": {"nodes": "1"}})
    cluster.put(
        "karpenter.sh/v1",
        "NodeClaim",
        "gpus-1",
        metadata={"finalizers": [KARPENTER]},
        status={"providerID": "aws:///us-east-1a/i-0a"},
    )
    cluster.put("karpenter.k8s.aws/v1", "EC2NodeClass", "gpus", metadata={"finalizers": [NODE_CLASS]})


def controllers(cluster: FakeCluster) -> None:
    """Makes every controller release deleted objects immediately."""

    def act(path: str, found: dict[str, Any]) -> None:
        if not found["metadata"].get("deletionTimestamp") or path not in cluster.objects:
            return
        cluster.release(path, LB, PVC, KARPENTER, NODE_CLASS)
        if found["kind"] == "PersistentVolumeClaim":
            cluster.objects.pop(cluster.path("v1", "PersistentVolume", f"pv-{found['metadata']['name']}"))

    cluster.act = act


def drained(client: Client, told: list[DrainStep] | None = None, clock: FakeClock | None = None) -> Drained:
    clock = clock or FakeClock()
    steps = [] if told is None else told
    return drain(client, steps.append, timeout_seconds=60, clock=clock)


def deleted(cluster: FakeCluster) -> list[str]:
    return [one.rpartition("/")[2] for one in cluster.changes if one.startswith("DELETE")]


def test_drain_deletes_services_then_claims_then_node_pools_then_node_classes(
    cluster: FakeCluster, client: Client
) -> None:
    nodes(cluster)
    volume(cluster, "data")
    service(cluster)
    controllers(cluster)
    cluster.put("v1", "Service", "inner", "team", spec={"type": "ClusterIP"})
    done = drained(client)
    assert not done.left
    assert [each.rpartition("/")[2] for each in cluster.changes] == ["web", "data", "gpus", "gpus-1", "gpus"]
    assert [path.split("/")[-2] for path in cluster.changes[2:]] == ["nodepools", "nodeclaims", "ec2nodeclasses"]
    assert [one.ref.name for one in done.drained] == ["web", "data", "gpus", "gpus-1", "gpus"]
    assert cluster.names("Service") == ["inner"]
    assert drained(client) == Drained((), (), ())


def test_owners_of_aws_resources_are_listed_without_a_change(cluster: FakeCluster, client: Client) -> None:
    nodes(cluster)
    volume(cluster, "data")
    service(cluster)
    cluster.put("networking.k8s.io/v1", "Ingress", "api", "team")
    assert [(one.ref.kind, one.holds) for one in holdings(client)] == [
        ("Service", "load balancer a.elb.amazonaws.com"),
        ("Ingress", "load balancer without an address"),
        ("PersistentVolumeClaim", "volume vol-data"),
        ("NodePool", "1 nodes"),
        ("NodeClaim", "instance i-0a"),
        ("EC2NodeClass", "launch templates"),
    ]
    assert cluster.changes == []


def test_volumes_created_by_terraform_are_not_drained(cluster: FakeCluster, client: Client) -> None:
    cluster.put("v1", "PersistentVolume", "windlass-lab-efs", spec={"persistentVolumeReclaimPolicy": "Retain"})
    assert holdings(client) == ()


def test_service_without_a_running_controller_remains_and_names_it(cluster: FakeCluster, client: Client) -> None:
    path = service(cluster)
    volume(cluster, "data")
    cluster.put("apps/v1", "Deployment", "aws-load-balancer-controller", "kube-system", status={"availableReplicas": 0})
    cluster.put(
        "v1",
        "Event",
        "e1",
        "team",
        type="Warning",
        reason="FailedDeployModel",
        message="no\n credentials",
        involvedObject={"kind": "Service", "name": "web"},
        lastTimestamp="2026-11-21T15:00:00Z",
    )
    told: list[DrainStep] = []
    clock = FakeClock()
    done = drained(client, told, clock)
    assert [one.ref.name for one in done.left] == ["web", "data"], "the next stage was begun all the same"
    assert done.left[0].why == (
        f"finalizer {LB}: its controller is not running: Deployment aws-load-balancer-controller in kube-system has no "
        "available replica; FailedDeployModel: no credentials"
    )
    assert path in cluster.objects
    assert cluster.objects[path]["metadata"]["finalizers"] == [LB], "a finalizer is its controller's to remove"
    assert [(one.what, one.stage) for one in told] == [
        ("delete", "services"),
        ("wait", "services"),
        ("delete", "claims"),
        ("wait", "claims"),
        ("left", "services"),
        ("left", "claims"),
    ]
    assert clock.now >= START + 120
    controllers(cluster)
    cluster.act(path, cluster.objects[path])
    assert "web" not in [one.ref.name for one in drained(client).left], "the next call goes on"


@pytest.mark.parametrize(
    ("deployments", "said"),
    [
        (
            {},
            "aws-load-balancer-controller has not removed it, and the cluster has no Deployment of it: is it running?",
        ),
        ({"availableReplicas": 1}, "aws-load-balancer-controller is running, but has not removed it yet"),
    ],
)
def test_reason_for_a_remaining_finalizer_depends_on_its_controller(
    cluster: FakeCluster, client: Client, deployments: dict[str, int], said: str
) -> None:
    service(cluster)
    if deployments:
        cluster.put("apps/v1", "Deployment", "aws-load-balancer-controller", "kube-system", status=deployments)
    [left] = drained(client).left
    assert left.why == f"finalizer {LB}: {said}"


def test_a_claim_in_use_names_its_pods(cluster: FakeCluster, client: Client) -> None:
    volume(cluster, "data")
    volumes = [{"persistentVolumeClaim": {"claimName": "data"}}]
    cluster.put("v1", "Pod", "notebook", "team", spec={"volumes": volumes}, status={"phase": "Running"})
    cluster.put("v1", "Pod", "done", "team", spec={"volumes": volumes}, status={"phase": "Succeeded"})
    [left] = drained(client).left
    assert left.why == f"finalizer {PVC}: pods use the claim: notebook"


def test_a_retained_volume_is_kept_with_its_claim(cluster: FakeCluster, client: Client) -> None:
    volume(cluster, "precious", "Retain")
    volume(cluster, "data")
    controllers(cluster)
    done = drained(client)
    assert not done.left
    assert [(one.ref.name, one.holds) for one in done.kept] == [("precious", "volume vol-precious")]
    assert deleted(cluster) == ["data"]


def test_volume_without_a_claim_is_deleted_only_with_its_provisioner_finalizer(
    cluster: FakeCluster, client: Client
) -> None:
    volume(cluster, "guarded", is_bound=False)
    volume(cluster, "bare", is_bound=False)
    cluster.objects["/api/v1/persistentvolumes/pv-bare"]["metadata"]["finalizers"] = []
    cluster.objects["/api/v1/persistentvolumes/pv-bare"]["status"]["message"] = "volume is attached to i-0a"
    done = drained(client)
    assert deleted(cluster) == ["pv-guarded"]
    by_name = {one.ref.name: one.why for one in done.left}
    assert by_name["pv-bare"] == "its deletion was not requested; volume is attached to i-0a"
    assert "the CSI driver has not removed it" in by_name["pv-guarded"]


def test_node_that_cannot_be_drained_is_reported(cluster: FakeCluster, client: Client) -> None:
    nodes(cluster)
    claim = cluster.objects["/apis/karpenter.sh/v1/nodeclaims/gpus-1"]
    claim["status"]["conditions"] = [
        {"type": "Drained", "status": "False", "message": "pod team/x must not be evicted"}
    ]
    done = drained(client)
    assert {one.ref.name: one.why for one in done.left}["gpus-1"] == (
        f"finalizer {KARPENTER}: karpenter has not removed it, and the cluster has no Deployment of it: "
        "is it running?; not drained: pod team/x must not be evicted"
    )
    assert "ec2nodeclasses" not in " ".join(cluster.changes), "its nodes still need it"
    assert {one.ref.kind: one.why for one in done.left}["EC2NodeClass"] == ("it is deleted once each NodeClaim is gone")


def test_target_groups_are_deleted_by_the_controller_of_their_service(cluster: FakeCluster, client: Client) -> None:
    service(cluster)
    cluster.put("elbv2.k8s.aws/v1beta1", "TargetGroupBinding", "k8s-web", "team", spec={"targetGroupARN": "arn:x"})
    cluster.put("elbv2.k8s.aws/v1beta1", "TargetGroupBinding", "lone", "team", spec={"targetGroupARN": "arn:y"})

    def act(path: str, found: dict[str, Any]) -> None:
        if path in cluster.objects and found["kind"] == "Service":
            cluster.objects.pop(cluster.path("elbv2.k8s.aws/v1beta1", "TargetGroupBinding", "k8s-web", "team"))
            cluster.release(path, LB)

    cluster.act = act
    assert not drained(client).left
    assert deleted(cluster) == ["web", "lone"]


def test_drain_does_not_wait_for_a_forbidden_deletion(cluster: FakeCluster, client: Client) -> None:
    service(cluster)
    cluster.refuses = lambda method, path: (403, "services is forbidden") if method == "DELETE" else None
    clock = FakeClock()
    [left] = drained(client, clock=clock).left
    assert left.why == "its deletion was refused: the cluster refused: services is forbidden"
    assert clock.now == START


def test_temporarily_refused_deletion_is_retried(cluster: FakeCluster, client: Client) -> None:
    service(cluster)
    controllers(cluster)
    answers = iter([(500, "failed calling webhook"), (500, "failed calling webhook")])
    cluster.refuses = lambda method, path: next(answers, None) if method == "DELETE" else None
    assert not drained(client).left


@pytest.mark.parametrize("at", range(10))
def test_interrupted_drain_is_finished_by_the_next(cluster: FakeCluster, client: Client, at: int) -> None:
    nodes(cluster)
    volume(cluster, "data")
    service(cluster)
    controllers(cluster)
    num = iter(range(1000))
    cluster.refuses = lambda method, path: (409, "killed") if method == "GET" and next(num) >= at * 3 else None
    with pytest.raises(Refused, match="killed"):
        drained(client)
    cluster.refuses = lambda method, path: None
    assert not drained(client).left
    assert holdings(client) == ()


def test_running_pods_of_runs_are_listed(cluster: FakeCluster, client: Client) -> None:
    for name, phase in (("a", "Running"), ("b", "Succeeded"), ("c", "Pending")):
        cluster.put(
            "v1",
            "Pod",
            name,
            "team",
            metadata={"labels": {layout.RUN_LABEL: "digits-1"}},
            spec={},
            status={"phase": phase},
        )
    cluster.put("v1", "Pod", "other", "team", spec={}, status={"phase": "Running"})
    assert active(client) == ("team/a of run digits-1", "team/c of run digits-1")
