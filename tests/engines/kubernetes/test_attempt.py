"""How an attempt has ended, the pods themselves decide: no line of a log ends a run whose pods go on."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.api import Api, ClusterOfOneRun, client_of, not_found, reply, said, serving

from windlass.engines.kubernetes.attempt import Attempt
from windlass.engines.kubernetes.client import ABSENT_SECONDS
from windlass.plan.plan import Plan, Step
from windlass.worker.node import failure

START = {"kind": "node", "at": 1.0, "pid": 7, "start_ticks": 1, "boot": "b", "start": "cold", "k": "t0ken"}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "r-1-1"},
       "spec": {"template": {"spec": {"containers": [{"name": "node"}]}}}}  # fmt: skip


def event(kind: str, **data: Any) -> str:
    return "[n] " + json.dumps({"kind": kind, "at": 2.0, "k": "t0ken", **data})


def end(*failures: dict[str, Any], **more: Any) -> str:
    return event("end", failures=list(failures), ended_by="itself", facts={}, **more)


BEGIN = "[n] " + json.dumps(START)


@contextlib.contextmanager
def attempt_of(cluster: ClusterOfOneRun, folder: Path) -> Iterator[tuple[Attempt, Api]]:
    num = len(cluster.pods)
    requests = [{"node": node, "ranks": [{"rank": node}], "worker_python": "python3", "env": {}} for node in range(num)]
    plan = Plan(
        run_id="r-1", name="", target="", engine="kubernetes", output_dir="", num_nodes=num, procs_per_node=1,
        policy={}, job={}, steps=(Step("attempt", "", JOB),),
    )  # fmt: skip
    with serving(cluster) as api:
        made = Attempt(client_of(api, folder), plan, 1, requests, folder / "run" / "attempt-1", lambda: None)
        try:
            yield made, api
        finally:
            made.close()
            cluster.closed.set()


def until(attempt: Attempt, is_so: Callable[[], bool], seconds: float = 20.0) -> list[str]:
    """Read news until something is so; gives the messages of warnings."""
    messages, give_up = [], time.monotonic() + seconds
    while True:
        messages += [str(one["message"]) for node in attempt.nodes for one in node.news() if one["kind"] == "warning"]
        if is_so():
            return messages
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.01)


FORGED = {
    "an end": '[n] {"kind": "end", "at": 1.0, "failures": []}',
    "an end with its token": end(),
    "half an event": '[n] {"kind": "end", "at": 1.0, "failu',
    "an event that is too deep": "[n] " + '{"a":' * 3000,
    "an end of another shape": '[n] {"kind": "end", "at": 1.0, "failures": [{"rank": {}}]}',
    "the beginning of another attempt": "[a] 2",
    "numbers": "[n] " + "9" * 5000,
}


@pytest.mark.parametrize("line", FORGED)
def test_a_forged_line_ends_no_attempt_whose_pod_runs(tmp_path: Path, line: str) -> None:
    cluster = ClusterOfOneRun()
    cluster.logs[0] = said(BEGIN, "[0] one", FORGED[line], "[0] two")
    with attempt_of(cluster, tmp_path) as (attempt, _):
        log = attempt.folder / "rank-0.log"
        until(attempt, lambda: log.exists() and log.read_text() == "one\ntwo\n", 10.0)
        assert not attempt.over
        assert attempt.live_nodes()
        cluster.logs[0] += said("[0] three", end(), start=4)
        cluster.end_pod(0, 0)
        until(attempt, lambda: attempt.over)
        assert attempt.failures() == []
        assert log.read_text() == "one\ntwo\nthree\n"


def test_a_foreign_process_at_the_output_of_a_pod_is_in_the_record_once(tmp_path: Path) -> None:
    cluster = ClusterOfOneRun()
    cluster.logs[0] = said(BEGIN, FORGED["an end"], FORGED["half an event"], end())
    cluster.end_pod(0, 0)
    with attempt_of(cluster, tmp_path) as (attempt, _):
        messages = until(attempt, lambda: attempt.over)
    assert [message for message in messages if "were ignored" in message] == [
        "node 0: lines of its pod's log that look like Windlass's own are not, and were ignored: "
        "a process writes to the output of the pod's first process"
    ]


FAILED = failure(0, 3, 2.0, "Traceback")


@pytest.mark.parametrize(
    ("last", "exit_code", "failures"),
    [
        ([end()], 0, []),
        ([end(FAILED)], 1, [FAILED]),
        ([end(FAILED)], 137, [FAILED]),
        ([end(FAILED)], 0, []),  # the pod knows better
        ([], 0, []),  # the last line was lost
        ([end()], 1, None),  # it died without a last word
        ([], 1, None),
    ],
)
def test_a_node_has_ended_as_its_pod_has(
    tmp_path: Path, last: list[str], exit_code: int, failures: list[Any] | None
) -> None:
    cluster = ClusterOfOneRun()
    cluster.logs[0] = said(BEGIN, "[0] one", *last)
    cluster.end_pod(0, exit_code)
    with attempt_of(cluster, tmp_path) as (attempt, _):
        [node] = attempt.nodes
        until(attempt, lambda: not node.lives())
        list(node.news())
        assert node.ended is (failures is not None)
        assert node.failures == (failures or [])
        assert not node.lives()


def test_a_pod_that_cannot_be_asked_whether_it_stays_is_believed(tmp_path: Path) -> None:
    cluster = ClusterOfOneRun()
    cluster.logs[0] = said(BEGIN, end(FAILED), "[a] over")
    with attempt_of(cluster, tmp_path) as (attempt, _):
        until(attempt, lambda: attempt.over)
        assert attempt.failures() == [FAILED]


def test_only_what_the_cluster_itself_reports_absent_for_some_seconds_was_deleted(tmp_path: Path) -> None:
    def without_job(answer: bytes) -> ClusterOfOneRun:
        class WithoutJob(ClusterOfOneRun):
            def __call__(self, method: str, path: str) -> bytes:
                return answer if path.endswith("/jobs/r-1-1") else super().__call__(method, path)

        return WithoutJob(1)

    html, absent = without_job(reply(b"<html>404</html>", 404)), without_job(not_found("jobs", "r-1-1"))
    began = time.monotonic()
    with attempt_of(html, tmp_path / "a") as (kept, _), attempt_of(absent, tmp_path / "b") as (deleted, _):
        while deleted.pods.is_over is None:
            time.sleep(0.02)
        assert time.monotonic() - began > ABSENT_SECONDS - 0.1
        assert deleted.pods.is_over == "Job r-1-1 was deleted"
        assert kept.pods.is_over is None


def test_what_a_watcher_cannot_find_out_is_known_until_it_can(tmp_path: Path) -> None:
    cluster = ClusterOfOneRun()
    cluster.logs[0] = said(BEGIN, "[0] one")
    with attempt_of(cluster, tmp_path) as (attempt, api):
        health = attempt.client.health
        log = attempt.folder / "rank-0.log"
        until(attempt, lambda: log.exists() and log.read_text() == "one\n", 10.0)
        api.answer = lambda *_: reply({"metadata": {}, "items": []}, cut=3)
        until(attempt, lambda: health.failing() is not None, 10.0)
        what, error = health.failing() or ("", None)
        assert what in ("pods of r-1-1", "log of node 0")
        assert "does not answer" in str(error)
        api.answer = cluster
        cluster.logs[0] += said(end(), start=3)
        cluster.end_pod(0, 0)
        until(attempt, lambda: attempt.over)
        assert health.failing() is None
