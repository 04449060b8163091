"""Messages shown while following a run, in addition to its events."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer
from tests.engines.kubernetes.scene import SUPERVISED_RUN as RUN
from tests.engines.kubernetes.scene import SupervisedScene
from tests.engines.kubernetes.supervisor.test_runs import BACK_OFF, ended, supervisor_pod

from windlass.cli.follow import Follower, PlainView
from windlass.cli.interrupts import Interrupts
from windlass.engines.kubernetes.supervisor import runs
from windlass.errors import EngineError
from windlass.runs.events import AttemptStarted, RunEnded
from windlass.runs.phase import Phase
from windlass.views.run import run_viewer


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SupervisedScene]:
    monkeypatch.setattr(runs, "REFRESH_SECONDS", 0.0)
    with closing(ObjectServer()) as server, closing(SupervisedScene(server, tmp_path)) as scene:
        yield scene


def test_a_supervisor_that_crashes_is_reported_once_for_each_reason(
    scene: SupervisedScene, capsys: pytest.CaptureFixture[str]
) -> None:
    view = PlainView(RUN, run_viewer(RUN, scene.store), 2, 1)
    with Interrupts(can_ask=False) as interrupts:
        follower = Follower(RUN, scene.engine, view, interrupts, show_logs=False, since_seq=1)
        for restarts in (1, 1, 2):
            supervisor_pod(scene.server, {"state": BACK_OFF, "lastState": ended("Error", 1), "restartCount": restarts})
            follower._look(0.0)
        supervisor_pod(scene.server, {"state": {"running": {}}})
        scene.write(AttemptStarted(1, 2))
        follower._look(0.0)
    lines = [line for line in capsys.readouterr().err.splitlines() if "no supervisor" in line]
    assert ["1 restart so far" in lines[0], "2 restarts so far" in lines[1], len(lines)] == [True, True, 2]
    assert lines[0].endswith(f"windlass why {RUN}")


def test_reasons_that_alternate_are_reported_once_each(
    scene: SupervisedScene, capsys: pytest.CaptureFixture[str]
) -> None:
    view = PlainView(RUN, run_viewer(RUN, scene.store), 2, 1)
    with Interrupts(can_ask=False) as interrupts:
        follower = Follower(RUN, scene.engine, view, interrupts, show_logs=False, since_seq=1)
        for reason in 2 * (
            "ErrImagePull",
            "ImagePullBackOff",
        ):  # the kubelet does not repeat the reason of a failed pull
            supervisor_pod(scene.server, {"state": {"waiting": {"reason": reason}}})
            follower._look(0.0)
    lines = [line for line in capsys.readouterr().err.splitlines() if "no supervisor" in line]
    assert ["ErrImagePull" in lines[0], "ImagePullBackOff" in lines[1], len(lines)] == [True, True, 2]


def test_a_run_whose_logs_cannot_be_read_is_followed_to_its_end(
    scene: SupervisedScene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def refuse(*_: object, **__: object) -> Iterator[None]:
        raise EngineError("the cluster does not answer")
        yield

    monkeypatch.setattr(scene.engine, "logs", refuse)
    scene.write(AttemptStarted(1, 2), RunEnded(Phase.SUCCEEDED, 0))
    view = PlainView(RUN, run_viewer(RUN, scene.store), 2, 1)
    with Interrupts(can_ask=False) as interrupts:
        status = Follower(RUN, scene.engine, view, interrupts, show_logs=True).run()
    assert status.phase is Phase.SUCCEEDED
    assert f"its logs cannot be read: the cluster does not answer; windlass logs -f {RUN}" in capsys.readouterr().err
