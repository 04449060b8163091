"""What following a run shows beside its events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer
from tests.engines.kubernetes.supervisor.test_runs import BACK_OFF, RUN, Scene, ended, supervisor_pod

from windlass.cli.follow import Follower, PlainView
from windlass.cli.interrupts import Interrupts
from windlass.engines.kubernetes.supervisor import runs
from windlass.runs.events import AttemptStarted
from windlass.views.run import run_viewer


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(runs, "REFRESH_SECONDS", 0.0)
    with closing(ObjectServer()) as server, closing(Scene(server, tmp_path)) as scene:
        yield scene


def test_a_supervisor_that_crashes_is_reported_once_for_each_reason(
    scene: Scene, capsys: pytest.CaptureFixture[str]
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
