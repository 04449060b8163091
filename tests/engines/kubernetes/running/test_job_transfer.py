"""A supervisor reads progress, results and every kind of failure from the Job that transfers files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, Request, Response, status
from tests.engines.kubernetes.planning.test_plan import planned
from tests.engines.kubernetes.planning.test_transfers import CLAIM, DIGITS
from tests.helpers.clock import START, FakeClock

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.labels import COMPONENT, TRANSFER
from windlass.engines.kubernetes.running.job_transfer import LOOK_SECONDS, JobTransfer
from windlass.errors import EngineError
from windlass.plan.steps import StageJobStep
from windlass.runs.events import AttemptStarted, Warned, entries
from windlass.runs.store import Store
from windlass.supervise.backend import TargetUnavailable
from windlass.supervise.recorder import Recorder
from windlass.supervise.transfers import Line

PLAN = planned(data=[DIGITS], kubernetes=CLAIM)
RUN = PLAN.run_id
NAME = f"{RUN}-data"
RESULT = {"name": "digits", "digest": "set:ab", "files": 3, "bytes": 1000, "moved": 1000}


class Scene:
    """A namespace, and the transfer of one supervisor."""

    def __init__(self, server: ObjectServer, client: Client, record: Recorder) -> None:
        self.server, self._client, self.record = server, client, record
        self.clock = FakeClock()
        self.transfer = self.another()
        self.log = b""
        server.fails = self._logs

    def another(self) -> JobTransfer:
        """Returns the transfer of another supervisor."""

        def create(made: Any) -> Any:
            return self._client.create_if_absent(made) or self._client.get("batch/v1", "Job", NAME)

        [made] = PLAN.manifests(StageJobStep)
        return JobTransfer(self._client, made, create)

    def look(self, transfer: JobTransfer | None = None) -> list[Line]:
        """Returns the lines that are reported a moment later."""
        self.clock.now += LOOK_SECONDS
        return list((transfer or self.transfer).reports(self.record, self.clock))

    def pod(
        self, name: str = "p1", created: str = "2026-11-22T10:00:00Z", others: tuple[str, ...] = (), **status: Any
    ) -> None:
        """Adds a pod of the Job with this status."""
        uid = self.server.objects["jobs", NAME]["metadata"]["uid"]
        labels = {layout.RUN_LABEL: RUN, COMPONENT: TRANSFER}
        self.server.put(
            "Pod",
            name,
            labels,
            created=created,
            metadata={"ownerReferences": [{"uid": uid}]},
            spec={"containers": [{"name": one} for one in ("transfer", *others)], "nodeName": "bed-a"},
            status=status,
        )

    def runs(self, name: str = "p1", **more: Any) -> None:
        self.pod(name, phase="Running", **_container({"running": {}}), **more)

    def ended(self, code: int, told: Any = None, name: str = "p1", reason: str = "Error", **more: Any) -> None:
        message = json.dumps(told) if told is not None else ""
        where = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
        self.pod(name, phase="Failed" if code else "Succeeded", **_container(where), **more)

    @property
    def warnings(self) -> list[Warned]:
        return list(entries(self.record.writer.events(), Warned))

    def _logs(self, request: Request) -> Response | None:
        return Response(200, self.log, "text/plain") if request.plural.endswith("/log") else None


def _container(state: dict[str, Any]) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "transfer", "state": state}]}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    server = ObjectServer()
    client = server.client(tmp_path)
    with Store(tmp_path / "home") as store:
        writer = store.create(
            PLAN.run_id, name="digits", target="lab", output_dir="out", plan=PLAN.to_text(), time=START
        )
        yield Scene(server, client, Recorder(writer))
        writer.close()
    client.close()
    server.close()


def test_a_job_reports_its_progress_and_then_its_sets(scene: Scene) -> None:
    assert scene.look() == []
    assert scene.server.names("Job") == [NAME]
    scene.runs()
    scene.log = b'2026-11-22T10:00:01Z {"name": "digits", "done": 400, "of": 1000, "moved": 400}\n'
    assert scene.look() == [{"name": "digits", "done": 400, "of": 1000, "moved": 400}]
    scene.log = b'2026-11-22T10:00:01Z {"name": "digits", "waits": "process 1 on other-data-x"}\n'
    assert scene.look() == [{"name": "digits", "waits": "process 1 on other-data-x"}]
    scene.log = b"2026-11-22T10:00:01Z Welcome to this image\n"
    assert scene.look() == []
    scene.ended(0, {"results": [RESULT]})
    assert (scene.look(), scene.transfer.is_done, scene.warnings) == ([RESULT], True, [])
    assert scene.look(scene.another()) == [RESULT], "a supervisor that takes over makes no second Job"
    scene.transfer.end()
    assert scene.server.names("Job") == []


def test_a_job_whose_pod_an_injected_container_keeps_running_is_deleted_at_its_end(scene: Scene) -> None:
    scene.look()
    scene.ended(0, {"results": [RESULT]}, others=("mesh",))
    assert scene.look() == [RESULT]
    assert (scene.transfer.is_done, scene.server.names("Job")) == (True, [])


def test_results_for_which_the_outcome_of_the_pod_has_no_room_are_warned_of(scene: Scene) -> None:
    scene.look()
    scene.ended(0, {"results": [RESULT], "left_out": 12})
    assert (scene.look(), scene.transfer.is_done) == ([RESULT], True)
    [warned] = scene.warnings
    assert warned.message.startswith("the digests of 12 more data sets are not recorded: ")


def test_transfer_job_is_read_at_intervals(scene: Scene) -> None:
    scene.look()
    num_requests = len(scene.server.requests)
    assert list(scene.transfer.reports(scene.record, scene.clock)) == []
    assert len(scene.server.requests) == num_requests


def test_permanent_error_ends_the_transfer_with_the_pods_message(scene: Scene) -> None:
    scene.look()
    scene.ended(64, {"error": "s3://bucket/: there is no bucket", "hint": "see: windlass data ls"})
    with pytest.raises(EngineError, match="there is no bucket") as raised:
        scene.look()
    assert raised.value.hint == "see: windlass data ls"


def test_lost_transfer_pod_is_warned_of_once_and_another_continues(scene: Scene) -> None:
    scene.look()
    scene.ended(137, reason="OOMKilled")
    scene.look()
    scene.runs("p2", created="2026-11-22T10:01:00Z")
    scene.look()
    scene.look()
    [warned] = scene.warnings
    assert warned.message == "pod p1: OOMKilled"
    assert warned.pod is not None
    scene.ended(0, {"results": [RESULT]}, "p2")
    assert scene.look() == [RESULT]


def test_failed_job_ends_the_transfer_with_its_last_reason(scene: Scene) -> None:
    scene.look()
    scene.ended(137, reason="OOMKilled")
    scene.ended(1, name="p2", created="2026-11-22T10:01:00Z")
    job = scene.server.objects["jobs", NAME]
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}
    with pytest.raises(EngineError, match="its pods have failed 2 times, the last with Error"):
        scene.look()


def test_job_with_an_unreachable_store_retries_in_another_pod_and_fails_with_its_error(scene: Scene) -> None:
    scene.look()
    scene.ended(75, {"error": "s3://bucket/: it does not answer", "hint": ""})
    assert scene.look() == []
    [warned] = scene.warnings
    assert "it does not answer" in warned.message
    assert "{" not in warned.message
    scene.ended(75, {"error": "s3://bucket/: it does not answer", "hint": ""}, "p2", created="2026-11-22T10:01:00Z")
    job = scene.server.objects["jobs", NAME]
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}
    with pytest.raises(EngineError, match="the last with Error: s3://bucket/: it does not answer"):
        scene.look()


def test_a_pod_that_waits_is_explained_by_the_events_of_it_and_of_its_claim(scene: Scene) -> None:
    scene.look()
    scene.pod(phase="Pending", **_container({"waiting": {"reason": "ContainerCreating"}}))
    scene.server.event("windlass-data", "ProvisioningFailed", "no such storage class", "PersistentVolumeClaim")
    scene.server.objects["events", next(iter(scene.server.names("Event")))]["type"] = "Warning"
    scene.look()
    scene.look()
    [warned] = scene.warnings
    assert warned.message == "pod p1: ProvisioningFailed: no such storage class"
    assert warned.waits


def test_a_quota_that_admits_no_pod_is_named(scene: Scene) -> None:
    scene.look()
    scene.server.event(NAME, "FailedCreate", "exceeded quota: small", "Job")
    scene.server.objects["events", next(iter(scene.server.names("Event")))]["type"] = "Warning"
    scene.look()
    scene.look()
    assert [one.message for one in scene.warnings] == [f"Job {NAME}: FailedCreate: exceeded quota: small"]


def test_a_job_that_a_queue_holds_back_is_warned_of(scene: Scene) -> None:
    scene.look()
    scene.server.objects["jobs", NAME]["spec"]["suspend"] = True
    scene.look()
    scene.look()
    assert [one.message for one in scene.warnings] == [
        f"Job {NAME} is suspended: a queue of the cluster has not admitted it"
    ]


def test_deleted_transfer_job_is_created_again(scene: Scene) -> None:
    scene.look()
    scene.server.remove("Job", NAME)
    scene.look()
    scene.look()
    assert scene.server.names("Job") == [NAME]


def test_results_removed_with_their_pod_are_produced_again(scene: Scene) -> None:
    scene.look()
    job = scene.server.objects["jobs", NAME]
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    scene.look()
    assert scene.server.names("Job") == []
    scene.look()
    assert scene.server.names("Job") == [NAME]


def test_busy_cluster_is_retried(scene: Scene) -> None:
    def busy(_: Request) -> Response:
        return status(503, "ServiceUnavailable")

    scene.server.fails = busy
    with pytest.raises(TargetUnavailable):
        scene.look()


def test_refusal_of_the_cluster_is_raised(scene: Scene) -> None:
    scene.server.forbidden = {"jobs"}
    with pytest.raises(Refused, match="jobs is forbidden"):
        scene.look()


@pytest.mark.parametrize("has_attempts", [False, True])
def test_upload_pods_do_not_count_as_training_pods(scene: Scene, has_attempts: bool) -> None:
    if has_attempts:
        scene.record.note(AttemptStarted(1, 1, ((0,),), (0,), "start"))
    scene.look()
    scene.ended(137, reason="OOMKilled")
    scene.look()
    assert [one.pod is None for one in scene.warnings] == [has_attempts]
