"""A supervisor's pod keeps outputs until a machine has fetched them and marked them as fetched."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, status
from tests.engines.kubernetes.scene import SUPERVISED_RUN as RUN
from tests.engines.kubernetes.scene import SupervisedScene
from tests.engines.kubernetes.supervisor.test_elsewhere import Cluster, cluster
from tests.engines.kubernetes.supervisor.test_runs import OF_SUPERVISOR, scene
from tests.helpers.clock import FakeClock
from tests.helpers.until import BOUND_SECONDS, until

from windlass.actions import artifacts
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.running import markers
from windlass.engines.kubernetes.running.collection import move_to_outputs
from windlass.engines.kubernetes.supervisor import outputs
from windlass.engines.kubernetes.supervisor.runs import ClusterSupervised
from windlass.engines.values import ResultsLocation
from windlass.errors import EngineError, UsageError
from windlass.runs.clock import Clock
from windlass.runs.events import AttemptStarted, OutputsCollected, RunEnded, Warned, entries
from windlass.runs.phase import Phase
from windlass.runs.store import locked
from windlass.supervise.recorder import Recorder

__all__ = ["cluster", "scene"]

DIGEST = "5f" * 32
COLLECTED = OutputsCollected((0,), DIGEST, 1, 4)
MARK = layout.marker_name(RUN, layout.FETCHED_MARKER)


def brought(run_dir: Path, digest: str = DIGEST) -> Path:
    """Creates outputs in the folder of a run."""
    source = run_dir.parent / "came"
    source.mkdir(parents=True)
    (source / "model").write_text("done")
    run_dir.mkdir(exist_ok=True)
    move_to_outputs(source, run_dir, digest)
    return run_dir


# -- the pod ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(server: ObjectServer) -> ObjectServer:
    server.owner_config_map(RUN)
    return server


def holding(client: Client, run_dir: Path) -> threading.Thread:
    thread = threading.Thread(target=outputs.keep_until_fetched, args=(client, RUN, run_dir, Clock()), daemon=True)
    thread.start()
    return thread


def is_watched(server: ObjectServer) -> bool:
    return any("watch" in request.query for request in server.requests)


def test_pod_keeps_outputs_until_they_are_fetched(server: ObjectServer, client: Client, tmp_path: Path) -> None:
    thread = holding(client, brought(tmp_path / "run"))
    until(lambda: is_watched(server))
    assert thread.is_alive()
    server.marker(RUN, layout.FETCHED_MARKER)
    thread.join(BOUND_SECONDS)
    assert not thread.is_alive()


def test_pod_does_not_keep_outputs_of_a_removed_run(server: ObjectServer, client: Client, tmp_path: Path) -> None:
    server.remove("ConfigMap", RUN)
    outputs.keep_until_fetched(client, RUN, brought(tmp_path / "run"), Clock())
    assert not is_watched(server)


def test_pod_keeps_outputs_if_the_server_reports_the_run_as_missing_once(
    server: ObjectServer, client: Client, tmp_path: Path
) -> None:
    answers = [status(404, "NotFound", name=RUN, kind="configmaps")]
    server.fails = lambda request: answers.pop() if answers and request.name == RUN else None
    thread = holding(client, brought(tmp_path / "run"))
    until(lambda: is_watched(server) or not thread.is_alive())
    assert thread.is_alive()
    assert not answers
    server.marker(RUN, layout.FETCHED_MARKER)
    thread.join(BOUND_SECONDS)


def test_pod_without_collected_outputs_ends_at_once(server: ObjectServer, client: Client, tmp_path: Path) -> None:
    outputs.keep_until_fetched(client, RUN, tmp_path, Clock())
    assert server.requests == []


class Hours(FakeClock):
    """Clock on which each wait lasts a third of the time for which outputs are kept."""

    def wait(self, seconds: float) -> None:
        super().wait(outputs.HELD_SECONDS / 3)


def test_pod_keeps_outputs_for_a_limited_time_in_spite_of_an_unreachable_server(
    server: ObjectServer, client: Client, tmp_path: Path
) -> None:
    run_dir, clock = brought(tmp_path / "run"), Hours(time.time())
    server.fails = lambda request: status(503, "ServiceUnavailable") if request.plural == "configmaps" else None

    outputs.keep_until_fetched(client, RUN, run_dir, clock)
    assert len(clock.waits) == 3


def test_a_pod_that_replaces_one_with_outputs_records_once_that_they_are_lost(
    scene: SupervisedScene, tmp_path: Path
) -> None:
    scene.write(AttemptStarted(1, 1), COLLECTED, RunEnded(Phase.SUCCEEDED, exit_code=0))
    scene.engine.status(RUN)
    run_dir, writer = tmp_path / "pod", scene.store.writer(RUN)
    assert writer is not None
    with closing(writer):
        for _ in range(2):
            outputs.note_loss(Recorder(writer), run_dir, scene.client)
        [warned] = entries(writer.events(), Warned)
        assert warned.message.startswith(outputs.LOST)
        assert writer.status.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("how", ["here", "fetched"])
def test_outputs_that_are_here_or_were_fetched_are_not_lost(scene: SupervisedScene, tmp_path: Path, how: str) -> None:
    scene.write(AttemptStarted(1, 1), COLLECTED, RunEnded(Phase.SUCCEEDED, exit_code=0))
    scene.engine.status(RUN)
    run_dir, writer = tmp_path / "pods" / "run", scene.store.writer(RUN)
    if how == "here":
        brought(run_dir)
    else:
        scene.server.marker(RUN, layout.FETCHED_MARKER)
    assert writer is not None
    with closing(writer):
        outputs.note_loss(Recorder(writer), run_dir, scene.client)
        assert not [*entries(writer.events(), Warned)]


# -- the machine ------------------------------------------------------------------------------------------------------


def test_run_without_outputs_causes_no_fetch(scene: SupervisedScene) -> None:
    scene.write(AttemptStarted(1, 1), RunEnded(Phase.SUCCEEDED, exit_code=0))
    assert scene.engine.status(RUN).output_dir == "in the pods"
    assert not [request for request in scene.server.requests if request.plural == "pods"]


def test_fetched_outputs_have_a_local_path_and_a_marker(scene: SupervisedScene, tmp_path: Path) -> None:
    scene.write(AttemptStarted(1, 1), COLLECTED, RunEnded(Phase.SUCCEEDED, exit_code=0))
    run_dir = brought(scene.store.run_dir(RUN))
    seen = scene.engine.status(RUN)
    assert seen.output_dir == str(run_dir / "output")
    assert [one.output_dir for one in scene.store.statuses()] == [seen.output_dir]
    copied = scene.engine.fetch(RUN, 0, "output/model", tmp_path / "model", lambda _: None)
    assert (copied.files, (tmp_path / "model").read_text()) == (1, "done")
    assert outputs.fetch(scene.client, seen, run_dir, "my-host", is_patient=True)
    assert scene.client.get("v1", "ConfigMap", MARK)["data"] == {"by": "my-host"}


def test_outputs_of_a_later_end_are_fetched_again(scene: SupervisedScene) -> None:
    scene.write(AttemptStarted(1, 1), COLLECTED, RunEnded(Phase.FAILED, exit_code=1))
    seen = scene.engine.status(RUN)
    run_dir = brought(scene.store.run_dir(RUN), "00" * 32)
    assert outputs.is_due(seen, run_dir)
    (run_dir / "output.sha256").write_text(DIGEST)
    assert not outputs.is_due(seen, run_dir)


def test_status_succeeds_without_outputs_and_copy_names_the_machine_that_has_them(
    scene: SupervisedScene, tmp_path: Path
) -> None:
    scene.write(AttemptStarted(1, 1), COLLECTED, RunEnded(Phase.SUCCEEDED, exit_code=0))
    assert scene.engine.status(RUN).phase is Phase.SUCCEEDED
    with pytest.raises(UsageError, match="no longer in the cluster: its supervisor's pod has ended"):
        scene.engine.fetch(RUN, 0, "output", tmp_path / "got", lambda _: None)
    scene.server.marker(RUN, layout.FETCHED_MARKER, by="another-host")
    with pytest.raises(UsageError, match="were fetched by another-host"):
        scene.engine.fetch(RUN, 0, "/windlass/results/output/model", tmp_path / "got", lambda _: None)
    supervised = ClusterSupervised(scene.store)
    seen = supervised.with_outputs(supervised.status(scene.store.status(RUN)))
    assert supervised.elsewhere(RUN) == f"the outputs of {RUN} were fetched by another-host"
    place = ResultsLocation("pods", layout.OUTPUT, elsewhere=supervised.elsewhere(RUN))
    listed = artifacts._outputs(seen, place, None)
    assert (listed.copy, listed.note) == ("", supervised.elsewhere(RUN))
    assert not (tmp_path / "got").exists()


@pytest.mark.parametrize("before", [{}, {"restartCount": 1, "lastState": {"terminated": {"exitCode": 137}}}])
def test_outputs_are_read_from_the_supervisors_container(scene: SupervisedScene, before: dict[str, object]) -> None:
    running = {"containerStatuses": [{"name": "supervisor", "state": {"running": {}}, **before}]}
    ended = {"containerStatuses": [{"name": "supervisor", "state": {"terminated": {"exitCode": 0}}}]}
    spec = {"containers": [{"name": "injected"}, {"name": "supervisor", "command": ["python3.13", "-I"]}]}
    scene.server.put("Pod", "ended", OF_SUPERVISOR, status=ended, spec=spec)
    scene.server.put("Pod", "runs", OF_SUPERVISOR, status=running, spec=spec)
    found = outputs._pod(scene.client, RUN)
    assert (found["metadata"]["name"], layout.container_of(found)) == ("runs", "supervisor")
    assert outputs._python(found) == "python3.13"


def test_one_process_fetches_at_a_time(scene: SupervisedScene) -> None:
    scene.write(AttemptStarted(1, 1), COLLECTED, RunEnded(Phase.SUCCEEDED, exit_code=0))
    seen, run_dir = scene.engine.status(RUN), scene.store.run_dir(RUN)
    with locked(run_dir / "output.lock", is_patient=False) as is_held:
        assert is_held
        assert not outputs.fetch(scene.client, seen, run_dir, "host", is_patient=False)
    with pytest.raises(UsageError):
        outputs.fetch(scene.client, seen, run_dir, "host", is_patient=False)


@pytest.mark.parametrize(
    "container",
    [
        {"state": {"running": {}}},
        {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 137}}},
    ],
    ids=["exec fails", "restarting"],
)
def test_resume_is_refused_while_the_only_copy_of_the_outputs_cannot_be_fetched(
    scene: SupervisedScene, container: dict[str, object]
) -> None:
    scene.write(AttemptStarted(1, 1), COLLECTED, RunEnded(Phase.FAILED, exit_code=1))
    seen = {"containerStatuses": [{"name": "supervisor", **container}]}
    spec = {"containers": [{"name": "supervisor", "command": ["python3.13", "-I"]}]}
    scene.server.put("Pod", "holder", OF_SUPERVISOR, status=seen, spec=spec)
    scene.server.put("Job", layout.supervisor_name(RUN), {layout.RUN_LABEL: RUN}, api="batch/v1", status={})
    with pytest.raises(EngineError, match="its outputs, which are only in the cluster and could not be fetched"):
        scene.engine.resume(RUN)
    assert layout.supervisor_name(RUN) in scene.server.names("Job")
    assert scene.store.status(RUN).phase is Phase.FAILED


@pytest.mark.parametrize("by", ["", "another-host"])
def test_outputs_that_are_lost_or_fetched_elsewhere_do_not_prevent_a_resume(cluster: Cluster, by: str) -> None:
    engine = cluster.machine("a")
    cluster.write(AttemptStarted(1, 1), COLLECTED, RunEnded(Phase.FAILED, exit_code=1))
    if by:
        cluster.server.marker(RUN, layout.FETCHED_MARKER, by=by)
    with pytest.raises(ValueError, match="not enough values"):  # the plan of this run has no supervisor to start
        engine.resume(RUN)
    assert layout.supervisor_name(RUN) not in cluster.server.names("Job")


def test_resume_removes_the_fetched_marker(scene: SupervisedScene) -> None:
    scene.server.marker(RUN, layout.FETCHED_MARKER)
    markers.forget(scene.client, RUN)
    assert MARK not in scene.server.names("ConfigMap")
