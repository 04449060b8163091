"""An attempt starts in the remaining pods of the previous one, and in new pods for those that were lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, refusing, status
from tests.engines.kubernetes.scene import NUM_NODES, RUN, WAYS, AttemptScene
from tests.helpers.until import until

from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import layout, pod_assignment
from windlass.engines.kubernetes.objects.object_reports import finished_indexes
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment, attempt_facts
from windlass.engines.kubernetes.objects.pods import PodId
from windlass.engines.kubernetes.planning.facts import Cluster, Facts, boot_program
from windlass.engines.kubernetes.planning.plan import plan
from windlass.engines.kubernetes.running.pod_watch import PodWatch
from windlass.engines.kubernetes.supervisor.backend import InClusterBackend
from windlass.engines.kubernetes.supervisor.metrics import MetricsMirror
from windlass.engines.travel import CodeFacts
from windlass.plan.compose import Continuation
from windlass.runs.events import entry_of
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget
from windlass.supervise.backend import TargetUnavailable
from windlass.supervise.recorder import Recorder


class WrittenMirror:
    """Mirror of a cluster that has the whole record."""

    is_lost = False

    def flush(self, seconds: float) -> bool:
        return True


@pytest.fixture
def scene(server: ObjectServer, tmp_path: Path) -> Iterator[AttemptScene]:
    with closing(AttemptScene(server, tmp_path)) as scene:
        yield scene


def test_lost_pod_is_replaced_and_the_others_run_the_next_attempt(scene: AttemptScene) -> None:
    kept = [scene.server.pod(RUN, "Running", place) for place in (0, 2)]
    lost = scene.server.pod(RUN, "Pending", 1)
    scene.next_attempt()
    with closing(scene.start()) as attempt:
        assert attempt.assignment.pods == (PodId(1, 0), PodId(2, 0), PodId(1, 2))
    assert [[list(one) for one in scene.control.orders[name]] for name in kept] == [[[0]], [[2]]]
    assert scene.requested(2) == {0: 1}
    assert lost not in scene.server.names("Pod"), "nothing of the attempt before may train on"
    assert scene.server.names("Job") == ["r-1-1", "r-1-2"]
    [order] = scene.control.orders[kept[1]]
    assert order[2].env["WINDLASS_MASTER_ADDR"] == "r-1-1-0.r-1"


def test_replacement_of_the_first_pod_is_the_new_rendezvous_address(scene: AttemptScene) -> None:
    kept = [scene.server.pod(RUN, "Running", place) for place in (1, 2)]
    scene.next_attempt("preemption")
    scene.start().close()
    assert {scene.control.orders[name][0][place].env["WINDLASS_MASTER_ADDR"] for place, name in enumerate(kept, 1)} == {
        "r-1-2-0.r-1"
    }


def test_pods_of_several_attempts_are_kept_when_another_is_lost(scene: AttemptScene) -> None:
    names = [scene.server.pod(RUN, "Running", place) for place in (0, 2)]
    for _ in range(2):
        scene.end_attempt()
    pod_assignment.store_assignment(
        scene.dir / "attempt-2", PodAssignment(2, (PodId(1, 0), PodId(2, 0), PodId(1, 2))).event()
    )
    names.append(scene.server.pod(RUN, "Running", 0, attempt=2))
    scene.server.remove("Pod", names[0])
    scene.begin_attempt()
    with closing(scene.start()) as attempt:
        assert attempt.assignment.pods == (PodId(3, 0), PodId(2, 0), PodId(1, 2))
    assert {name: list(orders[0]) for name, orders in scene.control.orders.items()} == {names[1]: [2], names[2]: [0]}
    assert scene.requested(3) == {0: 0}


def test_next_supervisor_keeps_the_decision_on_reused_pods(scene: AttemptScene) -> None:
    """The previous supervisor ended between its orders; another pod was lost since, which ends the attempt."""
    kept = [scene.server.pod(RUN, "Running", place) for place in (0, 2)]
    scene.next_attempt()
    scene.server.fails = refusing(status(503, "ServiceUnavailable"), "POST", plural="jobs")
    with pytest.raises(TargetUnavailable):
        scene.start()
    assert not scene.backend.is_started(scene.dir / "attempt-2")
    scene.server.fails = lambda _: None
    scene.server.remove("Pod", kept[0])
    with closing(scene.start()) as attempt:
        assert attempt.assignment.pods == (PodId(1, 0), PodId(2, 0), PodId(1, 2))
        until(lambda: attempt.pods.is_gone(0))
    assert len(scene.control.orders[kept[1]]) == 2
    assert scene.requested(2) == {0: 1}


def test_a_run_that_was_removed_is_not_created_again_for_a_lost_pod(scene: AttemptScene) -> None:
    """The supervisor in the cluster is about to be deleted with the run."""
    scene.server.pod(RUN, "Running", 0)
    scene.next_attempt()
    pod_assignment.store_assignment(
        scene.dir / "attempt-2", PodAssignment(2, (PodId(1, 0), PodId(2, 0), PodId(1, 2))).event()
    )
    scene.server.remove("ConfigMap", RUN)
    scene.backend.close()
    scene.backend = InClusterBackend(
        scene.plan,
        scene.dir,
        cast("Any", WrittenMirror()),
        MetricsMirror(scene.backend.client, RUN, "pod-a", scene.dir / "metrics.jsonl"),
        cast("Any", scene.control),
    )
    with pytest.raises(Refused):
        scene.start()
    assert RUN not in scene.server.names("ConfigMap")


@pytest.mark.parametrize(("reason", "is_reused"), [("failure", True), ("preemption", False)])
def test_pods_on_nodes_about_to_be_removed_are_not_reused(scene: AttemptScene, reason: str, is_reused: bool) -> None:
    """The notice of the cloud provider arrives before any pod has ended."""
    for place in range(NUM_NODES):
        scene.server.pod(RUN, "Running", place)
    scene.next_attempt(reason)
    scene.start().close()
    assert (len(scene.control.orders), len(scene.requested(2))) == ((NUM_NODES, 0) if is_reused else (0, NUM_NODES))


@pytest.mark.parametrize("was_decided", [True, False], ids=["decided", "refused"])
def test_all_pods_are_new_if_one_refuses_its_order(scene: AttemptScene, was_decided: bool) -> None:
    """A supervisor that takes over does the same: pods that have received an order of the attempt would start by it."""
    names = [scene.server.pod(RUN, "Running", place) for place in (0, 2)]
    scene.control.refuses = set() if was_decided else {names[0]}
    scene.next_attempt()
    if was_decided:
        pod_assignment.store_assignment(scene.dir / "attempt-2", PodAssignment.new(2, NUM_NODES).event())
    scene.start().close()
    assert scene.requested(2) == {0: 0, 1: 1, 2: 2}
    assert scene.server.names("Job") == ["r-1-2"]
    assert not was_decided or scene.control.orders == {}


@pytest.mark.parametrize(
    ("version", "fields"),
    [("v1.28.3", {}), ("v1.34.0", {"queue": "team-a"}), ("v1.34.0", {"kubernetes": {"via": "jobset"}})],
)
def test_all_pods_are_new_if_the_loss_of_one_ends_the_others(
    server: ObjectServer, tmp_path: Path, version: str, fields: dict[str, Any]
) -> None:
    with closing(AttemptScene(server, tmp_path, version, **fields)) as scene:
        [made] = attempt_objects(scene.plan)
        assert "backoffLimitPerIndex" not in str(made)
        for place in (0, 2):
            server.pod(RUN, "Running", place)
        scene.next_attempt()
        scene.start().close()
        assert scene.control.orders == {}


def test_the_end_of_a_run_between_two_orders_ends_the_pods_and_keeps_their_output(scene: AttemptScene) -> None:
    running = scene.server.pod(RUN, "Running", 0)
    scene.next_attempt()
    pod_assignment.store_assignment(
        scene.dir / "attempt-2", PodAssignment(2, (PodId(1, 0), PodId(2, 0), PodId(1, 2))).event()
    )
    scene.writer.append(entry_of("end", {"phase": "stopped"}))
    scene.backend.clean_up(Recorder(scene.writer))
    assert running not in scene.server.names("Pod")
    assert scene.server.names("Job") == ["r-1-1"]


@pytest.mark.parametrize(
    ("job", "found"),
    [({}, set()), ({"failedIndexes": "1"}, {1}), ({"completedIndexes": "0,3-5", "failedIndexes": ""}, {0, 3, 4, 5})],
)
def test_job_status_lists_indexes_that_get_no_other_pod(job: dict[str, str], found: set[int]) -> None:
    assert finished_indexes({"status": job}) == found


def test_pod_lost_before_it_was_observed_counts_as_deleted(server: ObjectServer, tmp_path: Path) -> None:
    """For the newest Job its status shows the loss; for an older one, the missing pod does, since it had an order."""
    server.owner_config_map(RUN)
    server.pod(RUN, "Running", 0)
    server.pod(RUN, "Running", 0, attempt=2)
    labels = {layout.RUN_LABEL: RUN, layout.ATTEMPT_LABEL: "2"}
    server.put("Job", f"{RUN}-2", labels, api="batch/v1", status={"failedIndexes": "1"}, spec={})
    pods = PodAssignment(2, (PodId(1, 0), PodId(1, 1), PodId(2, 0), PodId(2, 1), PodId(2, 2)))
    with closing(server.client(tmp_path)) as client:
        watch = PodWatch(client, RUN, pods, ("batch/v1", "Job"), lambda: None)
        until(lambda: watch.pod(2) is not None and watch.is_gone(1))
        assert [watch.is_gone(place) for place in range(5)] == [False, True, False, True, False]
        watch.close()


def test_attempt_in_reused_pods_uses_other_rendezvous_ports(tmp_path: Path) -> None:
    """A rank of the previous attempt, on a node that was cut off, must not reach the new one."""
    job = Job.model_validate({"name": "case", "command": ["true"], "nodes": NUM_NODES})
    target = KubernetesTarget(name="lab", context="lab", namespace="team", image="image")
    made = plan(
        job,
        target,
        Facts(CodeFacts(str(tmp_path), True, True, None), Cluster("v1.34.0", WAYS), "kubeconfig"),
        RUN,
        boot_program(),
    )

    def port(number: int, made_for: int) -> int:
        assignment = PodAssignment(number, PodAssignment.new(made_for, NUM_NODES).pods)
        return attempt_facts(made, assignment, "job", 1000.0, Continuation()).rendezvous.master_port

    assert port(1, 1) == port(7, 7) == 29500
    assert port(2, 1) == 29501
    assert len({port(number, 1) for number in range(1, 91)}) == 90
