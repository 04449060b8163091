"""Outputs are uploaded during training after checkpoints, one upload at a time, and failures do not end the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.supervise.fakes import FakeRun

from windlass.errors import EngineError
from windlass.runs.events import CheckpointChanged, OutputsUploaded, Warned, entries
from windlass.supervise.backend import HeldElsewhere, TargetUnavailable
from windlass.supervise.recorder import Recorder
from windlass.supervise.transfers import CheckpointUploads, Line, Transfer

WHERE = "s3://bucket/runs/r-1/"


class Scripted(Transfer):
    """Transfer with scripted reports, one per turn."""

    def __init__(self) -> None:
        self.answers: list[list[Line] | Exception] = []
        self.has_ended = False

    def reports(self, record: Any, clock: Any) -> Iterator[Line]:
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        for line in answer:
            self.is_done |= "digest" in line
            yield line

    def end(self) -> None:
        self.has_ended = True


class Scene:
    """A run that trains, and its uploads."""

    def __init__(self, run: FakeRun) -> None:
        self.run = run
        run.begin()
        self.record = Recorder(run.writer)
        self.made: dict[int, Scripted] = {}
        self.uploads = CheckpointUploads(self._make, WHERE)

    def _make(self, step: int) -> Transfer:
        return self.made.setdefault(step, Scripted())

    def save(self, step: int) -> None:
        self.record.note(CheckpointChanged("saved", step=step, name=f"step-{step}"))

    def turn(self, *answers: list[Line] | Exception) -> None:
        if answers:
            newest = self.made[max(self.made)]
            newest.answers += answers
        self.uploads.turn(self.record, self.run.clock)

    def events(self, kind: Any) -> list[Any]:
        return list(entries(self.run.writer.events(), kind))


@pytest.fixture
def scene(make_run: Callable[..., FakeRun]) -> Scene:
    return Scene(make_run())


def done(digest: str = "set:ab") -> list[Line]:
    return [{"name": "outputs", "digest": digest, "files": 2, "bytes": 10, "moved": 5, "refused": ["x: changed"]}]


def test_nothing_is_uploaded_before_a_checkpoint(scene: Scene) -> None:
    scene.turn()
    assert scene.made == {}


def test_one_upload_runs_at_a_time_and_the_newest_checkpoint_is_next(scene: Scene) -> None:
    scene.save(1)
    scene.turn()
    for step in (2, 3):
        scene.save(step)
        scene.turn()
    assert list(scene.made) == [1]
    scene.turn(done())
    scene.turn()
    assert list(scene.made) == [1, 3]
    scene.turn(done("set:cd"))
    scene.turn()
    assert list(scene.made) == [1, 3], "there is no newer one"
    assert all(one.has_ended for one in scene.made.values())
    found = scene.events(OutputsUploaded)
    assert [(one.destination, one.digest) for one in found] == [(WHERE, "set:ab"), (WHERE, "set:cd")]
    assert scene.events(Warned) == [], "a file that changes meanwhile is uploaded at the end"


def test_a_set_that_is_there_already_is_not_recorded_again(scene: Scene) -> None:
    for step in (1, 2):
        scene.save(step)
        scene.turn()
        scene.turn(done())
    assert len(scene.events(OutputsUploaded)) == 1


def test_a_failure_is_a_warning_and_the_next_checkpoint_is_tried(scene: Scene) -> None:
    scene.save(1)
    scene.turn()
    scene.turn(EngineError("s3://bucket: access denied", "check the role"))
    [warned] = scene.events(Warned)
    failed = "the outputs could not be uploaded at a checkpoint"
    assert warned.message == f"{failed}: s3://bucket: access denied (check the role)"
    assert scene.made[1].has_ended
    scene.turn()
    assert list(scene.made) == [1]
    scene.save(2)
    scene.turn()
    assert list(scene.made) == [1, 2]


@pytest.mark.parametrize("error", [TargetUnavailable("ClusterUnreachable", "no answer"), HeldElsewhere("another")])
def test_a_target_that_does_not_answer_is_asked_again_and_nothing_is_written(scene: Scene, error: Exception) -> None:
    scene.save(1)
    scene.turn()
    scene.turn(error)
    assert scene.events(Warned) == []
    scene.turn(done())
    assert len(scene.events(OutputsUploaded)) == 1


def test_the_end_of_the_run_ends_what_is_under_way(scene: Scene) -> None:
    scene.save(1)
    scene.turn()
    scene.uploads.end()
    assert scene.made[1].has_ended


def test_run_without_checkpoint_uploads_has_none(scene: Scene) -> None:
    uploads = CheckpointUploads(None, "")
    scene.save(1)
    uploads.turn(scene.record, scene.run.clock)
    uploads.end()
    assert scene.events(OutputsUploaded) == []
