"""The note on a run with its record in the cluster can be read and changed by every user of the namespace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, Request, status
from tests.engines.kubernetes.scene import SUPERVISED_RUN as RUN
from tests.engines.kubernetes.scene import SupervisedScene

from windlass.cli.listtext import list_lines
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.reading.discovery import discovery
from windlass.engines.kubernetes.running import run_note
from windlass.errors import EngineError
from windlass.runs.events import AttemptStarted, CheckpointChanged, RunEnded
from windlass.runs.phase import Phase
from windlass.runs.store import NOTE_CHARS
from windlass.views.cluster_runs import on_cluster


@pytest.fixture
def scene(server: ObjectServer, tmp_path: Path) -> Iterator[SupervisedScene]:
    with closing(SupervisedScene(server, tmp_path)) as scene:
        scene.write(AttemptStarted(1, 2))
        yield scene


def test_a_note_is_seen_by_a_list_and_by_another_machine(scene: SupervisedScene) -> None:
    scene.engine.write_note(RUN, "diverges after step 400")
    [seen] = discovery.look(scene.client).runs(scene.began)
    assert seen.state("lab").status.about.note == "diverges after step 400"
    run_note.write(scene.client, RUN, "not with batch 64")  # like another machine
    assert scene.engine.note(RUN) == scene.store.status(RUN).about.note == "not with batch 64"


def test_removed_note_is_read_and_an_earlier_local_note_is_kept(scene: SupervisedScene) -> None:
    scene.store.write_note(RUN, "from a time when notes stayed here")
    assert scene.engine.note(RUN) == "from a time when notes stayed here"
    run_note.write(scene.client, RUN, "")
    assert scene.engine.note(RUN) == scene.store.status(RUN).about.note == ""


def test_owner_config_map_keeps_annotations_of_others(scene: SupervisedScene, server: ObjectServer) -> None:
    server.owner_config_map(RUN, metadata={"annotations": {layout.SPARES_ANNOTATION: "1"}})
    answers = [status(409, "Conflict")]
    server.fails = lambda request: answers.pop() if request.verb == "PUT" and answers else None
    scene.engine.write_note(RUN, "x")
    found = scene.client.get("v1", "ConfigMap", RUN)["metadata"]["annotations"]
    assert found == {layout.SPARES_ANNOTATION: "1", layout.NOTE_ANNOTATION: "x"}


def test_a_note_that_another_user_made_too_long_is_cut(scene: SupervisedScene, server: ObjectServer) -> None:
    server.owner_config_map(RUN, metadata={"annotations": {layout.NOTE_ANNOTATION: "x" * 100_000}})
    assert len(scene.engine.note(RUN)) == NOTE_CHARS


def test_a_note_that_cannot_be_shared_is_not_written_here_either(scene: SupervisedScene, server: ObjectServer) -> None:
    def refuse(request: Request) -> object:
        return status(403, "Forbidden", "may not update configmaps") if request.verb == "PUT" else None

    server.fails = refuse  # type: ignore[assignment]
    with pytest.raises(EngineError, match="may not update configmaps"):
        scene.engine.write_note(RUN, "x")
    assert scene.store.status(RUN).about.note == ""


def test_note_of_a_run_that_left_the_cluster_is_local(scene: SupervisedScene, server: ObjectServer) -> None:
    server.remove("ConfigMap", RUN)
    scene.engine.write_note(RUN, "x")
    assert scene.engine.note(RUN) == "x"


def test_unreachable_cluster_keeps_the_last_note(scene: SupervisedScene, server: ObjectServer) -> None:
    scene.engine.write_note(RUN, "x")
    server.stop()
    assert scene.engine.note(RUN) == "x"


def test_a_list_of_a_cluster_shows_that_the_last_saves_failed(scene: SupervisedScene) -> None:
    saves = [
        CheckpointChanged(action, step, reason="No space left")
        for action, step in (("saved", 10), ("failed", 20), ("failed", 30))
    ]
    scene.write(AttemptStarted(1, 1), *saves, RunEnded(Phase.SUCCEEDED, exit_code=0))
    [seen] = discovery.look(scene.client).runs(scene.began)
    view = on_cluster(seen.state("lab"))
    [warning] = view.warnings
    assert (warning.code, warning.times, warning.attempt) == ("checkpoints-not-saved", 2, 1)
    assert warning.message.endswith("step 10: the last 2 saves failed, the newest at step 30: No space left")
    head, row = list_lines([view], scene.began, lambda text, *_, **__: text)
    assert ("WARNINGS" in head, "checkpoints-not-saved" in row) == (True, True)
