"""Spares replace lost pods; they are refilled, ended and planned."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, refusing, status
from tests.engines.kubernetes.planning.test_plan import CLUSTER, FACTS, TARGET, blockers, plain, planned
from tests.engines.kubernetes.reading.discovery.test_discovery import BEGAN_AT, page
from tests.engines.kubernetes.reading.logs.test_tail import begin, stream
from tests.engines.kubernetes.scene import NUM_NODES, RUN, AttemptScene

from windlass.cli.plantext import plan_lines
from windlass.engines.kubernetes.objects import layout, pod_assignment
from windlass.engines.kubernetes.objects.object_reports import object_reports
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment
from windlass.engines.kubernetes.objects.pods import PodId
from windlass.engines.kubernetes.planning.export import manifests
from windlass.engines.kubernetes.reading.discovery.object_lists import TABLES, ObjectLists
from windlass.engines.kubernetes.reading.preflight.pod_admission import run_pods
from windlass.engines.kubernetes.running.log_fetch import LogReader
from windlass.plan.steps import ObjectStep
from windlass.runs.events import Warned, entries, entry_of
from windlass.runs.phase import Phase
from windlass.supervise.backend import TargetUnavailable
from windlass.supervise.recorder import Recorder
from windlass.worker.protocol import unpack

SPARES: dict[str, Any] = {"kubernetes": {"via": "job", "spares": 1}, "restarts": {"max": 3}}


@pytest.fixture
def scene(server: ObjectServer, tmp_path: Path) -> Iterator[AttemptScene]:
    with closing(AttemptScene(server, tmp_path, **SPARES)) as scene:
        yield scene


def config(server: ObjectServer, attempt: int) -> tuple[list[int], dict[str, Any]]:
    """Returns the places in the nodes file of an attempt, and the pods of other attempts that run the rest."""
    found = server.objects["configmaps", f"{RUN}-{attempt}"]
    specs = unpack(base64.b64decode(found["binaryData"][layout.NODES_FILE]))[1]
    return sorted(specs), json.loads(found.get("data", {}).get(layout.SPARES_FILE, "{}"))


def completions(server: ObjectServer, attempt: int) -> int:
    spec = server.objects["jobs", f"{RUN}-{attempt}"]["spec"]
    assert spec["parallelism"] == spec["completions"]
    return int(spec["completions"])


# -- in place of a lost pod -------------------------------------------------------------------------------------------


def test_spare_replaces_a_lost_pod_and_another_spare_is_created(scene: AttemptScene) -> None:
    names = {place: scene.server.pod(RUN, "Running", place) for place in (0, 2, 3)}
    lost = scene.server.pod(RUN, "Pending", 1)
    scene.next_attempt()
    with closing(scene.start()) as attempt:
        assert attempt.assignment.pods == (PodId(1, 0), PodId(1, 3), PodId(1, 2))
    assert {name: list(orders[0]) for name, orders in scene.control.orders.items()} == {
        names[0]: [0],
        names[2]: [2],
        names[3]: [3],
    }
    [order] = scene.control.orders[names[3]]
    assert (order[3].node, order[3].env["WINDLASS_MASTER_ADDR"]) == (1, "r-1-1-0.r-1")
    assert lost not in scene.server.names("Pod")
    assert names[3] in scene.server.names("Pod")
    assert completions(scene.server, 2) == 1
    assert config(scene.server, 2) == ([1], {"1": [1, 3]}), "no pod of the Job has the number of the spare's node"


def test_pods_without_a_spare_are_created_together_with_missing_spares(scene: AttemptScene) -> None:
    kept = scene.server.pod(RUN, "Running", 1)
    spare = scene.server.pod(RUN, "Running", 3)
    scene.next_attempt()
    with closing(scene.start()) as attempt:
        assert attempt.assignment.pods == (PodId(1, 3), PodId(1, 1), PodId(2, 0))
    assert set(scene.control.orders) == {kept, spare}
    assert completions(scene.server, 2) == 2
    assert config(scene.server, 2) == ([0, 2], {"2": [1, 3]})


@pytest.mark.parametrize(("late", "is_kept"), [(3, True), (0, False)], ids=["spare", "other"])
def test_supervisor_waits_for_a_spare_that_still_imports(scene: AttemptScene, late: int, is_kept: bool) -> None:
    """Another pod waits by then; a spare that never waits has a problem in its process."""
    names = {place: scene.server.pod(RUN, "Running", place) for place in (0, 2, 3)}
    scene.control.late = {names[late]}
    scene.next_attempt()
    with closing(scene.start()) as attempt:
        assert (attempt.assignment.pods[1] == PodId(1, 3)) is is_kept
    assert len(scene.control.orders.get(names[2], [])) == 1


@pytest.mark.parametrize("state", ["Pending", None])
def test_a_spare_that_does_not_run_is_not_used(scene: AttemptScene, state: str | None) -> None:
    for place in (0, 2):
        scene.server.pod(RUN, "Running", place)
    spare = None if state is None else scene.server.pod(RUN, state, 3)
    scene.next_attempt()
    with closing(scene.start()) as attempt:
        assert attempt.assignment.pods == (PodId(1, 0), PodId(2, 0), PodId(1, 2))
    assert spare is None or spare in scene.server.names("Pod"), "it is not one of the lost"
    assert completions(scene.server, 2) == (2 if spare is None else 1), "one that waits for a node is not missing"


def test_lost_spare_is_replaced_at_the_next_restart(scene: AttemptScene) -> None:
    for place in range(NUM_NODES):
        scene.server.pod(RUN, "Running", place)
    scene.next_attempt("failure")
    scene.start().close()
    assert completions(scene.server, 2) == 1
    assert config(scene.server, 2) == ([1], {"1": None}), "it imports what any node does"


def test_a_spare_of_a_later_job_is_used_too(scene: AttemptScene) -> None:
    names = [scene.server.pod(RUN, "Running", place) for place in (0, 2, 3)]
    for _ in range(2):
        scene.end_attempt()
    pod_assignment.store_assignment(
        scene.dir / "attempt-2", PodAssignment(2, (PodId(1, 0), PodId(1, 3), PodId(1, 2))).event()
    )
    names.append(scene.server.pod(RUN, "Running", 0, attempt=2))
    scene.server.remove("Pod", names[2])
    scene.begin_attempt()
    with closing(scene.start()) as attempt:
        assert attempt.assignment.pods == (PodId(1, 0), PodId(2, 0), PodId(1, 2))
    assert completions(scene.server, 3) == 1
    assert config(scene.server, 3) == ([1], {"1": [2, 0]})


def test_pod_that_was_used_in_an_attempt_is_no_spare(scene: AttemptScene) -> None:
    """The pod was declared lost, since its node did not answer; it must not train in parallel with its replacement."""
    for place in (0, 1, 2):
        scene.server.pod(RUN, "Running", place)
    back = f"{RUN}-1-1-abcde"
    for _ in range(2):
        scene.end_attempt()
    pod_assignment.store_assignment(
        scene.dir / "attempt-2", PodAssignment(2, (PodId(1, 0), PodId(1, 3), PodId(1, 2))).event()
    )
    scene.begin_attempt()
    with closing(scene.start()) as attempt:
        assert attempt.assignment.pods == (PodId(1, 0), PodId(3, 0), PodId(1, 2))
    assert back not in scene.server.names("Pod")


# -- supervisors that end in between ----------------------------------------------------------------------------------


def test_next_supervisor_completes_an_interrupted_refill(scene: AttemptScene) -> None:
    names = [scene.server.pod(RUN, "Running", place) for place in (0, 2, 3)]
    scene.next_attempt()
    scene.server.fails = refusing(status(503, "ServiceUnavailable"), "POST", plural="jobs")
    with pytest.raises(TargetUnavailable):
        scene.start()
    assert set(scene.control.orders) == set(names), "the refill delays nothing"
    scene.server.fails = lambda _: None
    for _ in range(2):
        with closing(scene.start()) as attempt:
            assert attempt.assignment.pods == (PodId(1, 0), PodId(1, 3), PodId(1, 2))
    assert {len(orders) for orders in scene.control.orders.values()} == {3}, "an order may be repeated"
    assert completions(scene.server, 2) == 1


def test_a_refill_that_is_refused_is_a_warning(scene: AttemptScene) -> None:
    for place in (0, 2, 3):
        scene.server.pod(RUN, "Running", place)
    scene.next_attempt()
    scene.server.fails = refusing(status(403, "Forbidden", "exceeded quota"), "POST", plural="jobs")
    scene.start().close()
    [warned] = entries(scene.writer.events(), Warned)
    assert "no spare could be created: " in warned.message


def test_all_pods_and_the_spare_are_new_if_a_spare_refuses_its_order(scene: AttemptScene) -> None:
    names = [scene.server.pod(RUN, "Running", place) for place in (0, 2, 3)]
    scene.control.refuses = {names[2]}
    scene.next_attempt()
    with closing(scene.start()) as attempt:
        assert attempt.assignment.pods == PodAssignment.new(2, NUM_NODES).pods
    assert completions(scene.server, 2) == NUM_NODES + 1
    assert config(scene.server, 2) == ([0, 1, 2], {})
    assert scene.server.names("Job") == ["r-1-2"]


def test_problems_of_spares_do_not_count_for_the_attempt(scene: AttemptScene) -> None:
    told = [
        ("Pod", f"{RUN}-1-3-abcde", "FailedScheduling", "0/2 nodes are available"),
        ("Pod", f"{RUN}-1-1-abcde", "FailedMount", "no claim"),
        ("Job", f"{RUN}-1", "FailedCreate", f'pods "{RUN}-1-3-fghij" is forbidden: exceeded quota'),
    ]
    events = [
        {"involvedObject": {"kind": kind, "name": name}, "reason": reason, "message": message, "lastTimestamp": "now"}
        for kind, name, reason, message in told
    ]
    found = PodAssignment.new(1, NUM_NODES).spare_prefixes(scene.plan)
    assert [one.name for one in object_reports(events, RUN, 1, spares=found)] == [f"{RUN}-1-1-abcde"]
    replaced = (PodId(1, 0), PodId(2, 0), PodId(1, 2))
    assert PodAssignment(2, replaced).spare_prefixes(scene.plan) == [f"{RUN}-2-{index}-" for index in (1, 2, 3)]


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["succeeded", "failed", "stopped"])
def test_spares_end_with_their_run(scene: AttemptScene, phase: str) -> None:
    running = scene.server.pod(RUN, "Running", 3)
    waiting = scene.server.pod(RUN, "Pending", 4)
    trained = scene.server.pod(RUN, "Completed", 0)
    scene.begin_attempt()
    (scene.dir / "attempt-1").mkdir(parents=True)
    (scene.dir / "attempt-1" / "started").touch()
    scene.writer.append(entry_of("end", {"phase": phase}))
    scene.backend.clean_up(Recorder(scene.writer))
    assert scene.control.released == {running}
    assert waiting not in scene.server.names("Pod")
    assert trained in scene.server.names("Pod"), "its output is kept"


# -- logs -------------------------------------------------------------------------------------------------------------


def test_pods_of_an_attempt_are_found_by_their_first_attempt(tmp_path: Path) -> None:
    """In attempt 3, a spare of the first Job runs node 1 since attempt 2, and one of the second Job runs node 0 since
    now.
    """
    ids = (PodId(2, 0), PodId(1, 2))
    for number, found in ((2, (PodId(1, 0), PodId(1, 2))), (3, ids)):
        pod_assignment.store_assignment(tmp_path / f"attempt-{number}", PodAssignment(number, found).event())
    assert PodAssignment(3, ids).first_attempts(tmp_path / "attempt-3") == (3, 2)
    assert PodAssignment.new(1, 2).first_attempts(tmp_path / "attempt-1") == (1, 1)


def test_the_log_of_a_spare_is_read_from_the_attempt_that_it_began(tmp_path: Path, scene: AttemptScene) -> None:
    lines = {
        f"{RUN}-1-0-abcde": stream(
            begin("t1"), ("0", b"first\n"), ("a", b"over t1\n"), ("a", b"2\n"), begin("t2"), ("0", b"second\n")
        ),
        f"{RUN}-1-1-abcde": stream(begin("t3"), ("1", b"lost\n")),
        f"{RUN}-1-3-abcde": stream(("w", b"waits\n"), ("a", b"2\n"), begin("t4"), ("1", b"spare\n")),
        f"{RUN}-1-2-abcde": stream(begin("t5"), ("2", b"other\n"), ("a", b"over t5\n"), ("a", b"2\n"), begin("t6")),
    }
    for place in range(NUM_NODES):
        scene.server.pod(RUN, "Running", place)
    scene.server.pod(RUN, "Running", 3)
    scene.begin_attempt()
    scene.start().close()
    scene.server.remove("Pod", f"{RUN}-1-1-abcde")
    scene.writer.note(entry_of("attempt-end", {"phase": "failed", "reason": "node-loss", "restarts_left": 1}))
    scene.begin_attempt()
    scene.start().close()
    scene.server.pod(RUN, "Running", 1)  # as before it was lost

    class Reading:
        """Client with the objects of the run and these logs."""

        find = staticmethod(scene.backend.client.find)
        get = staticmethod(scene.backend.client.get)

        @staticmethod
        def logs(name: str, **_options: object) -> Iterator[bytes]:
            yield from lines[name]

    client: Any = Reading()
    assert LogReader(client, RUN, tmp_path / "read").read()
    said = {
        (number, rank): (tmp_path / "read" / f"attempt-{number}" / f"rank-{rank}.log").read_text()
        for number in (1, 2)
        for rank in (0, 1)
    }
    assert said == {(1, 0): "first\n", (1, 1): "lost\n", (2, 0): "second\n", (2, 1): "spare\n"}


# -- lists of runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "words", "how", "phase", "ready"),
    [
        ({1: "Running"}, {1: ["Running"] * 3}, "", Phase.TRAINING, 2),
        ({1: "Running"}, {1: ["Running", "Running", "Pending"]}, "", Phase.TRAINING, 2),
        ({1: "Running"}, {1: ["Running", "Pending", "Pending"]}, "", Phase.QUEUED, 1),
        ({1: "Running", 2: "Running"}, {1: ["Running", "Running"], 2: ["Pending"]}, "", Phase.TRAINING, 2),
        ({1: "Running", 2: "Failed"}, {1: ["Running", "Running"], 2: ["Error"]}, "", Phase.TRAINING, 2),
        ({1: "Failed", 2: "Complete"}, {1: ["Error", "Error"], 2: ["Completed"]}, "badly", Phase.FAILED, 0),
        ({1: "Failed", 2: "Complete"}, {1: ["Completed"] * 2, 2: ["Completed"]}, "well", Phase.SUCCEEDED, 0),
    ],
)
def test_spares_do_not_affect_the_phase_of_a_run(
    jobs: dict[int, str], words: dict[int, list[str]], how: str, phase: Phase, ready: int
) -> None:
    """The run has two nodes and a spare, and no record on this machine."""
    lists = ObjectLists("team")
    labels = {layout.RUN_LABEL: RUN}
    meta = {"labels": labels, "creationTimestamp": "2026-11-21T15:00:00Z"}
    rows = [(RUN, {**meta, "annotations": {layout.SPARES_ANNOTATION: "1"}})]
    mark = {**labels, layout.MARKER_LABEL: "end", layout.HOW_LABEL: how}
    rows += [(f"{RUN}-end", {**meta, "labels": mark})] if how else []
    table = page(TABLES[0], [])
    table["rows"] = [{"cells": [name], "object": {"metadata": {"name": name, **one}}} for name, one in rows]
    lists.fill(TABLES[0], [table])
    completions = {1: "0/3", 2: "0/1"}
    lists.fill(TABLES[1], [page(TABLES[1], [(f"{RUN}-{at}", word, completions[at]) for at, word in jobs.items()])])
    pods = [(f"{RUN}-{at}-{index}-x", word) for at, ones in words.items() for index, word in enumerate(ones)]
    cells = [(name, "1/1" if word == "Running" else "0/1", word) for name, word in pods]
    lists.fill(TABLES[2], [page(TABLES[2], cells)])
    [seen] = lists.runs(BEGAN_AT + 600)
    assert (seen.phase, seen.pods_ready) == (phase, ready)
    assert seen.pods_total == 2 or how


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_the_job_of_an_attempt_has_the_spares_and_keeps_the_others(tmp_path: Path) -> None:
    made = planned(nodes=2, restarts=1, kubernetes={"spares": 2})
    assert not blockers(made)
    [job] = attempt_objects(made)
    assert (job["kind"], job["spec"]["completions"], job["spec"]["backoffLimitPerIndex"]) == ("Job", 4, 0)
    assert (made.num_nodes, [one.most for one in run_pods(made)], [one.least for one in run_pods(made)]) == (
        2,
        [4],
        [2],
    )
    assert made.manifests(ObjectStep)[0]["metadata"]["annotations"][layout.SPARES_ANNOTATION] == "2"
    assert "spares-unwatched" in {note.code for note in made.notes}
    priced = planned(
        target=TARGET.model_copy(update={"price_per_hour": 2.0}), nodes=2, restarts=1, kubernetes={"spares": 2}
    ).price
    assert priced is not None
    assert priced.per_hour == 8.0
    lines = plan_lines(dataclasses.replace(made, price=priced), plain)
    assert "8 USD an hour, 2 spares included (target lab)" in lines
    exported = manifests(made, b"", 0.0).objects[-1]["spec"]
    assert (exported["completions"], exported["backoffLimit"]) == (2, 0), "no supervisor gives them a place"


@pytest.mark.parametrize(
    ("fields", "version", "words"),
    [
        ({"kubernetes": {"spares": 1, "via": "jobset"}}, "v1.34.0", "via: jobset, which replaces all pods"),
        ({"queue": "team"}, "v1.34.0", "queue: team: a queue admits and evicts all pods"),
        ({}, "v1.28.9", "Kubernetes v1.28.9: before 1.29"),
        ({"restarts": 0}, "v1.34.0", "restarts: does not restart after node-loss"),
        ({"restarts": {"max": 1, "on": ["failure"]}}, "v1.34.0", "restarts: does not restart after node-loss"),
        ({"nodes": {"min": 1, "max": 2}}, "v1.34.0", "nodes: 1..2: a run that continues with fewer nodes"),
    ],
)
def test_plan_refuses_impossible_spares_with_a_reason(fields: dict[str, Any], version: str, words: str) -> None:
    facts = dataclasses.replace(FACTS, cluster=dataclasses.replace(CLUSTER, version=version))
    made = planned(facts, **{"nodes": 2, "restarts": 1, "kubernetes": {"spares": 1}, **fields})
    assert words in blockers(made)["spares"]
