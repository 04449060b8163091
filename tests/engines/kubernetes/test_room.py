"""Room for the nodes that are away is asked for by pods that ask for as much, and for nothing else of a node's."""

from __future__ import annotations

from windlass.engines.kubernetes.manifests import Shape, attempt
from windlass.engines.kubernetes.room import WAIT, waiting
from windlass.engines.kubernetes.ways import WAYS
from windlass.plan.pods import pod_spec
from windlass.spec.job import Job


def test_pods_that_ask_for_room_ask_for_what_a_node_asks_for() -> None:
    job = Job.model_validate({
        "name": "digits", "run": "train.py", "nodes": {"min": 1, "max": 4}, "queue": "team-a", "priority": "high",
        "secrets": ["token"], "resources": {"gpus": 4, "memory": "60GiB", "instance": "g5.12xlarge"},
        "kubernetes": {"results": {"size": "1GiB"}},
    })  # fmt: skip
    for via in WAYS:
        made = attempt(Shape("r-1", "team", via, "image", "python3", 1000, "0" * 64, 1), job, 1, 4)
        found = waiting(made, "r-1-room", 2)
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
        assert not any(
            label.startswith("windlass.dev/run") for label in found["spec"]["template"]["metadata"]["labels"]
        )
