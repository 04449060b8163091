"""Logs of an ended training job are read completely, although they lag. The service is in memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.until import until

from windlass.engines.sagemaker.attempt import LOG_SECONDS, JobAttempt
from windlass.engines.sagemaker.description import write_description
from windlass.engines.sagemaker.host_log import START_SEQ, HostLog
from windlass.engines.sagemaker.late_logs import LATE, read_late_logs
from windlass.engines.sagemaker.service import Description, LogPage, NotLoggedIn, Refused, Request, Unavailable
from windlass.errors import EngineError
from windlass.runs.metrics import MetricsFile, read_metrics
from windlass.runs.node_events import StageReached
from windlass.supervise.backend import Intent
from windlass.worker.protocol import (
    CheckpointReported,
    MetricsReported,
    NodeEnded,
    NodeEvent,
    NodeSpec,
    NodeStarted,
    NodeWarning,
    PreemptionNotice,
    RankChanged,
    RankFailing,
    RankFailure,
    RankSpec,
    WorkerFailed,
)


class LaggingService:
    """A job whose state and logs the test sets; logs may arrive late."""

    poll_seconds = 0.005
    logs_are_prompt = False
    settle_seconds = 0.02

    def __init__(self) -> None:
        self.job: Description = {"TrainingJobStatus": "InProgress", "SecondaryStatus": "Training"}
        self.lines: dict[str, list[str]] = {}
        """Log lines by host, or by host and start."""
        self.num_turns = self.num_stops = 0

    def fail(self, reason: str) -> None:
        """Ends the job as failed."""
        self.num_turns = 0
        self.job = {
            "TrainingJobStatus": "Failed",
            "SecondaryStatus": "Failed",
            "TrainingStartTime": 1.0,
            "FailureReason": reason,
        }

    def create(self, request: Request) -> None: ...

    def describe(self, name: str) -> Description:
        self.num_turns += 1
        return self.job

    def stop(self, name: str) -> None:
        self.num_stops += 1

    def delete(self, name: str) -> None: ...

    def log_streams(self, name: str, *, is_over: bool = False) -> list[str]:
        return [f"{name}/{host}-1732400000" for host in self.lines]

    def read_log(self, stream: str, *, since: int = 0, token: str | None = None) -> LogPage:
        lines = self.lines[stream.split("/")[1].rpartition("-")[0]]
        start = int(token or 0)
        return LogPage([(1732400000000 + n, text) for n, text in enumerate(lines) if n >= start], str(len(lines)))

    def close(self) -> None: ...


class SparseService(LaggingService):
    """A service that, like CloudWatch, may return a page without events before the first page with events."""

    def read_log(self, stream: str, *, since: int = 0, token: str | None = None) -> LogPage:
        return LogPage([], "0") if token is None else super().read_log(stream, since=since, token=token)


def last(event: NodeEvent) -> str:
    """Returns a line of a host's log with an event."""
    return f"[n] {json.dumps(event.to_json())}"


@pytest.fixture
def service() -> LaggingService:
    return LaggingService()


@pytest.fixture
def attempt(service: LaggingService, tmp_path: Path) -> Iterator[JobAttempt]:
    """Returns an attempt with two hosts."""
    ranks = [RankSpec(rank, 0, ("python3", "train.py"), {}) for rank in range(2)]
    specs = [NodeSpec(rank.rank, "train.py", "python3", "/", {}, (rank,), 5.0) for rank in ranks]
    made = JobAttempt(service, "digits-1", 1, specs, tmp_path, threading.Event().set)
    with contextlib.closing(made):
        yield made


def test_the_first_host_reports_the_phases_of_the_job(attempt: JobAttempt, service: LaggingService) -> None:
    service.job = {**service.job, "SecondaryStatusTransitions": [{"Status": "Training", "StartTime": 1.0}]}
    found: list[int] = []

    def read() -> bool:
        found.extend(
            node.number for node in attempt.nodes for event in node.updates() if isinstance(event, StageReached)
        )
        return bool(found)

    until(read, seconds=10)
    assert found == [0]
    assert attempt.num_staged == len(found)


def test_empty_page_does_not_end_log(tmp_path: Path) -> None:
    service = SparseService()
    service.lines = {"algo-1": ["[0] step 1", "[0] step 2"]}
    log = HostLog(service, tmp_path, 0, (0,), 1, threading.Event())
    assert log.read("digits-1/algo-1-1732400000")
    assert (tmp_path / "rank-0.log").read_bytes() == b"step 1\nstep 2\n"
    assert not log.read("digits-1/algo-1-1732400000")


def test_logs_of_failed_or_stopped_hosts_are_not_awaited(service: LaggingService, attempt: JobAttempt) -> None:
    service.lines = {
        "algo-1": ["[w] this host cannot start: no archive", last(WorkerFailed(time.time(), "no archive"))],
        "algo-2": [last(WorkerFailed(time.time()))],
    }
    first, second = attempt.nodes
    until(lambda: first.path("events").exists())
    [told] = until(lambda: [one for one in first.updates() if isinstance(one, NodeWarning)])
    assert told.message == "the worker of host 1 has failed: no archive"
    assert first.lives(), "the job has not ended yet"
    service.fail("AlgorithmError: no archive, exit code: 1")
    until(lambda: attempt.all_read, seconds=10)
    assert [*first.updates(), *second.updates()] == []
    assert (first.ended, first.worker_failed, second.worker_failed) == (False, True, False)
    assert first.last_words().splitlines() == [
        "this host cannot start: no archive",
        "AlgorithmError: no archive, exit code: 1",
    ]


def test_files_missing_from_store_are_reported_once(service: LaggingService, attempt: JobAttempt) -> None:
    left_out = [f"model/pipe-{number}: it is neither file, folder nor link" for number in range(7)]
    service.job = {**service.job, "TrainingJobStatus": "Completed", "WindlassSkipped": left_out}
    until(lambda: attempt.all_read, seconds=10)
    found = [one for _ in range(2) for one in attempt.nodes[0].updates() if "pipe" in getattr(one, "message", "")]
    assert [one.message for one in found if isinstance(one, NodeWarning)] == [
        f"files that the hosts have written were not uploaded: {'; '.join(left_out[:5])}; and 2 more",
    ]


@pytest.mark.parametrize("failures", [(), (RankFailure(1, 3, 1.0, "x"),)])
def test_job_that_fails_after_all_hosts_succeeded_has_lost_model(
    service: LaggingService, attempt: JobAttempt, failures: tuple[RankFailure, ...]
) -> None:
    ends = {"algo-1": NodeEnded(time.time(), ()), "algo-2": NodeEnded(time.time(), failures)}
    service.lines = {host: [last(end)] for host, end in ends.items()}
    service.fail("ClientError: Artifact upload failed: access denied")
    until(lambda: attempt.all_read, seconds=10)
    for node in attempt.nodes:
        list(node.updates())
    assert attempt.has_failed_after_ranks == (not failures)


def test_log_without_end_of_host_is_awaited(service: LaggingService, attempt: JobAttempt) -> None:
    service.lines = {
        "algo-1": ["[w] this host cannot start: no archive"],  # an error message of Windlass 0.1
        "algo-2": [last(NodeEnded(time.time(), ()))],
    }
    service.fail("AlgorithmError: no archive, exit code: 1")
    until(lambda: service.num_turns > 5)
    assert not attempt.all_read
    service.lines["algo-1"].append(last(WorkerFailed(time.time(), "no archive")))
    until(lambda: attempt.all_read, seconds=10)


@pytest.mark.parametrize("error", [Refused("AccessDeniedException", "no right"), Unavailable("no answer")])
def test_completed_job_whose_logs_cannot_be_read_ends_its_attempt_with_a_warning(
    service: LaggingService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: EngineError
) -> None:
    def refuse(stream: str, *, since: int = 0, token: str | None = None) -> LogPage:
        raise error

    monkeypatch.setattr(service, "read_log", refuse)
    service.lines = {"algo-1": ["step 1"]}
    (spec,) = of_one_host(tmp_path)
    (tmp_path / LATE).unlink()
    made = JobAttempt(service, "digits-1", 1, (spec,), tmp_path, threading.Event().set, log_seconds=0.05)
    with contextlib.closing(made):
        until(lambda: made.trouble is not None)
        until(lambda: service.num_turns > 20)
        assert not made.all_read, "the job still runs"
        service.job = {"TrainingJobStatus": "Completed", "SecondaryStatus": "Completed", "TrainingStartTime": 1.0}
        until(lambda: made.all_read, seconds=10)
        warned = [one.message for one in made.nodes[0].updates() if isinstance(one, NodeWarning)]
    assert (made.trouble, made.nodes[0].ended, made.nodes[0].failures) == (None, True, [])
    assert f"the job has ended, and its last log lines cannot be read: {error.message}" in warned
    assert (tmp_path / LATE).exists(), "later commands read the log"


def test_end_of_killed_host_is_awaited_only_briefly(service: LaggingService, attempt: JobAttempt) -> None:
    service.lines = {"algo-1": ["step 7"], "algo-2": []}
    service.fail("AlgorithmError: , exit code: 137")
    until(lambda: service.num_turns > 5)
    assert not attempt.all_read, "the log of the other host will have an end"
    service.lines["algo-2"].append(last(NodeEnded(time.time(), ())))
    until(lambda: attempt.all_read, seconds=LOG_SECONDS - 10)


def test_restart_of_one_host_does_not_hide_failing_rank_of_another(
    service: LaggingService, attempt: JobAttempt
) -> None:
    """A stop would end the job before the host of that rank has reported its exit code."""
    first, second = attempt.nodes
    began = [last(RankChanged(1.0, rank, pid=7)) for rank in range(2)]
    service.lines = {f"algo-{place + 1}-1": [began[place]] for place in range(2)}
    until(lambda: list(first.updates()))
    until(lambda: list(second.updates()))
    # A line with the time of the last one counts as read.
    service.lines["algo-1-2"] = [began[0], last(RankFailing(2.0, 0))]
    service.lines["algo-2-2"] = [began[1], began[1]]
    until(lambda: all(len(attempt_starts(node.path("starts"))) == 2 for node in attempt.nodes))
    until(lambda: any(isinstance(event, RankFailing) for event in first.updates()))
    until(lambda: list(second.updates()))
    attempt.send(Intent.STOP)
    service.num_turns = 0
    until(lambda: service.num_turns > 2)
    assert service.num_stops == 0


def test_checkpoint_saved_before_another_rank_ends_job_is_reported(
    service: LaggingService, attempt: JobAttempt
) -> None:
    saved = CheckpointReported(2.0, "saved", 0, 30, "step-30")
    told = PreemptionNotice(1.0, "sigterm", "terminate")
    service.lines = {"algo-1": [last(told), last(saved), last(RankChanged(3.0, 0, exit_code=0))], "algo-2": []}
    until(lambda: saved in list(attempt.nodes[0].updates()))
    service.job = {"TrainingJobStatus": "Stopped", "SecondaryStatus": "Stopped"}
    until(lambda: attempt.all_read, seconds=10)
    assert list(attempt.nodes[0].updates()) == []
    assert (attempt.nodes[0].ended, attempt.nodes[0].exit_code) == (False, -signal.SIGTERM)


def attempt_starts(path: Path) -> list[object]:
    """Returns the recorded starts of a host."""
    return list(json.loads(path.read_bytes())) if path.exists() else []


def test_last_sign_of_life_is_time_of_last_line(service: LaggingService, attempt: JobAttempt) -> None:
    service.lines = {"algo-1": ["[0] step 1", "[0] step 2"], "algo-2": ["[1] step 1"]}
    until(lambda: attempt.last_sign_of_life() == 1732400000.001, lambda: attempt.last_sign_of_life())


@pytest.mark.parametrize("stream", ["algo-2", "algo-2 in part"])
def test_lines_that_arrive_after_the_end_are_read_on_demand(
    service: LaggingService, tmp_path: Path, stream: str
) -> None:
    ranks = [RankSpec(rank, 0, ("python3", "train.py"), {}) for rank in range(2)]
    specs = [NodeSpec(rank.rank, "train.py", "python3", "/", {}, (rank,), 5.0) for rank in ranks]
    service.lines = {"algo-1": ["[0] step 1", last(NodeEnded(time.time(), ()))]}
    if stream != "algo-2":
        service.lines["algo-2"] = ["[1] step 1"]
    attempt = JobAttempt(service, "digits-1", 1, specs, tmp_path, threading.Event().set, log_seconds=0.02)
    with contextlib.closing(attempt):
        service.fail("ClientError: Artifact upload failed: access denied")
        until(lambda: attempt.all_read, seconds=10)
    assert (tmp_path / LATE).exists()
    service.lines["algo-2"] = ["[1] step 1", "[1] step 2"]
    read_late_logs(lambda: service, "digits-1", 1, specs, tmp_path)
    assert (tmp_path / "rank-1.log").read_bytes() == b"step 1\nstep 2\n"
    assert (tmp_path / LATE).exists(), "more may come: it has no end"
    service.lines["algo-2"] += ["[1] step 3", last(NodeEnded(time.time(), ()))]
    read_late_logs(lambda: service, "digits-1", 1, specs, tmp_path)
    assert (tmp_path / "rank-1.log").read_bytes() == b"step 1\nstep 2\nstep 3\n"
    assert not (tmp_path / LATE).exists()

    def never() -> LaggingService:
        raise AssertionError("a whole log is not asked for")

    read_late_logs(never, "digits-1", 1, specs, tmp_path)


def test_repeated_stop_does_not_shorten_poll_interval(tmp_path: Path) -> None:
    service = LaggingService()
    service.poll_seconds = 0.2

    def wake() -> None:
        attempts[0].stop()

    attempts: list[JobAttempt] = []
    attempts.append(JobAttempt(service, "run-1", 1, (), tmp_path, lambda: wake() if attempts else None))
    try:
        attempts[0].stop()
        until(lambda: service.num_turns >= 2, "the service is not asked")
        begun, turns = time.monotonic(), service.num_turns
        until(lambda: service.num_turns >= turns + 5, "the service is not asked again")
        assert time.monotonic() - begun >= 4 * service.poll_seconds
    finally:
        attempts[0].close()


def of_one_host(folder: Path) -> list[NodeSpec]:
    """Writes the attempt of one host, with logs that may be incomplete, to its folder."""
    (folder / LATE).touch()
    return [NodeSpec(0, "train.py", "python3", "/", {}, (RankSpec(0, 0, ("python3", "train.py"), {}),), 5.0)]


def test_late_lines_of_restarted_host_are_read(service: LaggingService, tmp_path: Path) -> None:
    specs = of_one_host(tmp_path)
    write_description(tmp_path, {"SecondaryStatusTransitions": [{"Status": "Interrupted"}]})
    service.lines = {"algo-1-1": ["[0] step 1", last(NodeEnded(time.time(), ()))]}
    read_late_logs(lambda: service, "digits-1", 1, specs, tmp_path)
    # A line with the time of the last one counts as read.
    service.lines["algo-1-2"] = ["[0] before"] * 2 + ["[0] step 2", last(NodeEnded(time.time(), ()))]
    read_late_logs(lambda: service, "digits-1", 1, specs, tmp_path)
    assert (tmp_path / "rank-0.log").read_bytes() == b"step 1\nstep 2\n"
    assert not (tmp_path / LATE).exists()


def reported(seq: int, value: float) -> str:
    """Returns a line of a host's log with one point."""
    points = {"rank": 0, "source": "report", "name": "loss", "steps": [seq], "times": [1e9], "values": [value]}
    return last(MetricsReported(time.time(), seq, (points,)))


def test_points_that_arrive_after_the_end_are_added_once(service: LaggingService, tmp_path: Path) -> None:
    (folder := tmp_path / "attempt-1").mkdir()
    specs = of_one_host(folder)
    MetricsFile(tmp_path).append(1, 0, 1, [{"rank": 0, "source": "report", "name": "loss"}
                                           | {"steps": [1], "times": [1e9], "values": [0.5]}])  # fmt: skip
    service.lines = {"algo-1-1": [reported(1, 0.5), reported(2, 0.4)]}
    for _ in range(2):
        read_late_logs(lambda: service, "digits-1", 1, specs, folder)
    service.lines["algo-1-2"] = ["[0] before"] * 2 + [reported(1, 0.3), last(NodeEnded(time.time(), ()))]
    read_late_logs(lambda: service, "digits-1", 1, specs, folder)
    (found,) = read_metrics(tmp_path / "metrics.jsonl")
    assert found.values == (0.5, 0.4, 0.3)


def test_points_of_a_restarted_host_have_other_numbers(service: LaggingService, attempt: JobAttempt) -> None:
    """Each start of a host counts its events from 1; the points before an interruption are kept."""
    began = NodeStarted(time.time(), 1, 1, "boot", "cold")
    notice = PreemptionNotice(time.time(), "sigterm", "terminate")
    service.lines = {"algo-1-1": [last(began), reported(1, 0.5), last(notice), reported(2, 0.4)]}
    seen: list[MetricsReported] = []

    def is_read(count: int) -> bool:
        seen.extend(event for event in attempt.nodes[0].updates() if isinstance(event, MetricsReported))
        return len(seen) == count

    until(lambda: is_read(2))
    service.lines["algo-1-2"] = ["[0] before"] * 4 + [last(began), reported(1, 0.3)]
    until(lambda: is_read(3))
    assert [event.seq for event in seen] == [1, 2, START_SEQ + 1]


def test_login_of_another_account_keeps_late_logs_marked(
    service: LaggingService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> Description:
        raise NotLoggedIn(f"the login is of account 2, and training job {name} is in account 1")

    specs = of_one_host(tmp_path)
    os.utime(tmp_path / LATE, (0, 0))
    with monkeypatch.context() as patched:
        patched.setattr(service, "describe", refuse)
        with pytest.raises(NotLoggedIn):
            read_late_logs(lambda: service, "digits-1", 1, specs, tmp_path)
    service.lines = {"algo-1": ["[0] step 1"]}
    read_late_logs(lambda: service, "digits-1", 1, specs, tmp_path)
    assert (tmp_path / "rank-0.log").read_bytes() == b"step 1\n"
