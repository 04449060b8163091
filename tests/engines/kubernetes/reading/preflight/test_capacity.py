"""Capacity for missing nodes is probed with idle pods that have the requests of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tests.engines.kubernetes.planning.test_plan import planned
from tests.helpers.until import until

from windlass.engines.kubernetes.access.background import Health
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.find_pod_specs import pod_spec
from windlass.engines.kubernetes.objects.manifests import attempt
from windlass.engines.kubernetes.objects.pod_template import Shape
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.reading.preflight.capacity import WAIT, CapacityProbe, waiting
from windlass.spec.job import Job


def test_probe_pods_have_the_requests_of_a_node() -> None:
    job = Job.model_validate(
        {
            "name": "digits",
            "run": "train.py",
            "nodes": {"min": 1, "max": 4},
            "queue": "team-a",
            "priority": "high",
            "secrets": ["token"],
            "resources": {"gpus": 4, "memory": "60GiB", "instance": "g5.12xlarge"},
            "kubernetes": {"results": {"size": "1GiB"}},
        }
    )
    for via in WORKLOADS:
        made = attempt(Shape("r-1", "team", via, "image", "python3", 1000, "0" * 64, 1), job, 1, 4)
        found = waiting(made, "r-1-capacity", 2)
        node, pod = pod_spec(made), found["spec"]["template"]["spec"]
        assert (found["kind"], found["spec"]["parallelism"]) == ("Job", 2)
        assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
        for field in ("nodeSelector", "tolerations", "priorityClassName", "securityContext"):
            assert pod[field] == node[field]
        [container] = pod["containers"]
        assert container["resources"] == node["containers"][0]["resources"]
        assert container["command"] == ["python3", "-c", WAIT]
        assert "volumes" not in pod
        assert "envFrom" not in container
        assert layout.ATTEMPT_LABEL not in found["spec"]["template"]["metadata"]["labels"], "it is no pod of an attempt"


class ClusterOfProbes:
    """Fake cluster that stores only Jobs. `before_create` runs before each request to create one is processed."""

    def __init__(self) -> None:
        self.health = Health()
        self.jobs: set[str] = set()
        self.num_created = 0
        self.before_create: Callable[[], None] = lambda: None

    def get(self, _api: str, kind: str, name: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "uid": "u"}}

    def find(self, *_words: str) -> dict[str, Any]:
        return {"items": []}

    def create_if_absent(self, manifest: dict[str, Any]) -> None:
        self.before_create()
        self.jobs.add(manifest["metadata"]["name"])
        self.num_created += 1

    def delete(self, _api: str, _kind: str, name: str) -> None:
        self.jobs.discard(name)


def test_a_probe_that_is_created_while_its_capacity_is_released_is_deleted() -> None:
    cluster = ClusterOfProbes()
    probe = CapacityProbe(cast(Client, cluster), planned(nodes={"min": 1, "max": 2}))
    cluster.before_create = probe.leave
    probe.begin([0])
    assert probe.missing() == {1}
    until(lambda: cluster.num_created == 1 and not cluster.jobs, "the probe holds its capacity")
