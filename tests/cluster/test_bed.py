"""The test cluster behaves like a cluster: it schedules and runs pods, keeps volumes, and enforces permissions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import objects
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.bed.node import GPU
from tests.cluster.rights import LIMITED, until_granted

from windlass.engines.kubernetes.reading.preflight.rbac import Right

pytestmark = pytest.mark.timeout(600)
PATIENCE = "--timeout=500s"


def read(cluster: Cluster, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.kubectl("get", *args, "-o", "json"))
    return found


def said(cluster: Cluster, namespace: str, selector: str) -> list[str]:
    return sorted(cluster.kubectl("logs", "-n", namespace, "-l", selector).splitlines())


def test_two_nodes_are_ready_with_types_zones_and_gpus(bed: Bed) -> None:
    nodes = {each["metadata"]["name"]: each for each in read(bed, "nodes")["items"]}
    assert sorted(nodes) == ["node1", "node2"]
    labels = [node["metadata"]["labels"] for node in nodes.values()]
    assert [each["node.kubernetes.io/instance-type"] for each in labels] == ["g4dn.xlarge", "g5.xlarge"]
    assert [each["topology.kubernetes.io/zone"] for each in labels] == ["bed-a", "bed-b"]
    assert [node["status"]["allocatable"][GPU] for node in nodes.values()] == ["2", "2"]


@pytest.mark.nightly
def test_an_indexed_job_trains_across_both_nodes_under_restricted_security(cluster: Cluster, namespace: str) -> None:
    service = objects.headless("digits", {"job-name": "digits"})
    cluster.apply(service, objects.indexed_job(cluster, "digits", namespace), namespace=namespace)
    cluster.kubectl("wait", "-n", namespace, "--for=condition=complete", "job/digits", PATIENCE)
    assert [line.split("sum ")[1] for line in said(cluster, namespace, "job-name=digits")] == ["3.0", "3.0"]
    pods = read(cluster, "pods", "-n", namespace)["items"]
    assert len({each["spec"]["nodeName"] for each in pods}) == 2


@pytest.mark.nightly
def test_a_jobset_trains(cluster: Cluster, namespace: str) -> None:
    if not cluster.kubectl("get", "crd", "jobsets.jobset.x-k8s.io", "--ignore-not-found"):
        pytest.skip("this cluster has no JobSet")
    cluster.apply(objects.jobset(cluster, "digits"), namespace=namespace)
    cluster.kubectl("wait", "-n", namespace, "--for=condition=completed", "jobset/digits", PATIENCE)
    lines = said(cluster, namespace, "jobset.sigs.k8s.io/jobset-name=digits")
    assert [line.split("sum ")[1] for line in lines] == ["3.0", "3.0"]


def test_webhook_of_jobset_refuses_an_invalid_object(bed: Bed, namespace: str) -> None:
    bad = objects.jobset(bed, "digits")
    bad["spec"]["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["unknown"]}
    with pytest.raises(subprocess.CalledProcessError) as refused:
        bed.apply(bad, namespace=namespace)
    assert "jobset" in refused.value.stderr
    assert "unknown" in refused.value.stderr


def test_restricted_security_refuses_a_root_pod(cluster: Cluster, namespace: str) -> None:
    rooted = objects.pod(cluster, "rooted", objects.SLEEP, securityContext={"runAsUser": 0})
    with pytest.raises(subprocess.CalledProcessError) as refused:
        cluster.apply(rooted, namespace=namespace)
    assert "violates PodSecurity" in refused.value.stderr


def test_pods_are_scheduled_by_the_gpus_of_nodes(bed: Bed, namespace: str) -> None:
    def wants(name: str, gpus: int) -> objects.Object:
        limits = {"resources": {"limits": {GPU: str(gpus)}}}
        return objects.pod(bed, name, "print('ran')", container=limits)

    bed.apply(wants("fits", 2), wants("too-many", 3), namespace=namespace)
    bed.kubectl("wait", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", "pod/fits", PATIENCE)
    reason = wait_for(lambda: _unschedulable(bed, namespace, "too-many"), "the scheduler's word")
    assert "2 Insufficient nvidia.com/gpu" in reason


def _unschedulable(cluster: Cluster, namespace: str, name: str) -> str:
    conditions = read(cluster, "pod", name, "-n", namespace)["status"].get("conditions", ())
    return next((each["message"] for each in conditions if each.get("reason") == "Unschedulable"), "")


def test_container_over_its_memory_limit_is_killed(cluster: Cluster, namespace: str) -> None:
    limits = {"resources": {"limits": {"memory": "64Mi"}}}
    greedy = objects.pod(cluster, "greedy", "held = b'x' * (256 << 20)", container=limits)
    cluster.apply(greedy, namespace=namespace)
    cluster.kubectl("wait", "-n", namespace, "--for=jsonpath={.status.phase}=Failed", "pod/greedy", PATIENCE)
    ended = read(cluster, "pod", "greedy", "-n", namespace)["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


def test_claim_is_bound_shared_by_both_nodes_and_removed_with_its_folder(bed: Bed, namespace: str) -> None:
    def user(name: str, node: str, program: str) -> objects.Object:
        mounted = {"volumeMounts": [{"name": "out", "mountPath": "/out"}]}
        volume = {"name": "out", "persistentVolumeClaim": {"claimName": "out"}}
        selector = {"kubernetes.io/hostname": node}
        return objects.pod(bed, name, program, container=mounted, volumes=[volume], nodeSelector=selector)

    done = "--for=jsonpath={.status.phase}=Succeeded"
    bed.apply(
        objects.claim("out"), user("writer", "node1", "open('/out/weights', 'w').write('7')"), namespace=namespace
    )
    bed.kubectl("wait", "-n", namespace, done, "pod/writer", PATIENCE)
    bed.apply(user("reader", "node2", "print(open('/out/weights').read())"), namespace=namespace)
    bed.kubectl("wait", "-n", namespace, done, "pod/reader", PATIENCE)
    assert bed.kubectl("logs", "-n", namespace, "reader").strip() == "7"
    volume = bed.layout.volumes / read(bed, "pvc", "out", "-n", namespace)["spec"]["volumeName"]
    assert (volume / "weights").read_text() == "7"
    bed.kubectl("delete", "-n", namespace, "pod/writer", "pod/reader", "pvc/out")
    wait_for(lambda: not volume.exists(), "the folder of the claim to go")


@pytest.mark.parametrize(
    ("user", "complaint"), [("nobody", "forbidden"), ("limited", "forbidden"), ("expired", "must be logged in")]
)
def test_users_without_permissions_are_refused(bed: Bed, namespace: str, user: str, complaint: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        bed.kubectl("get", "pods", "-n", namespace, user=user)
    assert complaint in refused.value.stderr


def test_limited_user_has_the_permissions_of_a_role(bed: Bed, namespace: str) -> None:
    bed.kubectl("create", "role", "reader", "-n", namespace, "--verb=list", "--resource=pods")
    bed.kubectl("create", "rolebinding", "reader", "-n", namespace, "--role=reader", "--user=limited")
    until_granted(bed, namespace, LIMITED, {Right("", "pods", "list")})
    bed.kubectl("get", "pods", "-n", namespace, user="limited")
    assert bed.kubectl("auth", "can-i", "list", "pods", "-n", namespace, user="limited").strip() == "yes"


def test_pods_can_reach_the_api_and_be_reached_from_this_machine(bed: Bed, namespace: str) -> None:
    program = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=8080, bind='0.0.0.0')"
    bed.apply(objects.pod(bed, "web", program), namespace=namespace)
    bed.kubectl("wait", "-n", namespace, "--for=condition=ready", "pod/web", PATIENCE)
    address = read(bed, "pod", "web", "-n", namespace)["status"]["podIP"]
    ask = (
        "import sys, http.client as h; c = h.HTTPConnection(sys.argv[1], 8080, timeout=60); c.request('GET', '/'); "
        "print(c.getresponse().status)"
    )

    def status() -> str:
        done = subprocess.run(["python3", "-c", ask, address], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    assert wait_for(status, "the pod to serve") == "200"
    inner = "import socket; socket.create_connection(('kubernetes.default.svc.cluster.local', 443), 60); print('api')"
    assert bed.kubectl("exec", "-n", namespace, "web", "--", bed.python, "-c", inner).strip() == "api"


def test_kubeconfig_has_the_documented_path(bed: Bed) -> None:
    assert Path(bed.kubeconfig) == bed.layout.kubeconfig
    contexts = bed.kubectl("config", "get-contexts", "-o", "name").split()
    assert contexts == ["bed-admin", "bed-expired", "bed-limited", "bed-nobody"]
