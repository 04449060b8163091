"""Artifacts of runs on clusters are listed from the record, without querying the cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.planning.test_plan import planned

from windlass.actions.artifacts import list_artifacts
from windlass.cli.artifacts import where_words
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.runs.events import entry_of
from windlass.runs.store import Store
from windlass.views.artifacts import Artifact

SAVED = ("checkpoint", {"action": "saved", "step": 120, "name": "step-00000120-a1f3c1", "bytes": 4096})


class Recorded(KubernetesEngine):
    """An engine whose runs keep their recorded state."""

    def status(self, run_id: str) -> Any:
        return self.store.status(run_id)


Look = Callable[..., dict[str, Artifact]]


@pytest.fixture
def looked(tmp_path: Path) -> Look:
    """Returns a function that lists the artifacts, by kind, of a run with a saved checkpoint."""

    def look_at(*, ended: bool = False, copied: bool = False, **fields: Any) -> dict[str, Artifact]:
        made = planned(**fields)
        with Store(tmp_path / "home") as store:
            writer = store.create(
                made.run_id,
                name="digits",
                target="lab",
                output_dir=made.output_dir,
                plan=made.to_text(),
                time=1.0,
                restarts=0,
            )
            begun = ("attempt", {"number": 1, "world_size": 1, "nodes": [[0]], "members": [0], "reason": "first"})
            for kind, data in (begun, SAVED, *([("end", {"phase": "succeeded", "exit_code": 0})] if ended else [])):
                writer.append(entry_of(kind, data))
            writer.close()
            if copied:
                folder = store.run_dir(made.run_id) / "output"
                folder.mkdir(parents=True)
                (folder / "model.pt").write_bytes(b"x" * 7)
            found = list_artifacts(Recorded(store), made.run_id)
        assert found.files is None
        return {one.kind: one for one in found.artifacts}

    return look_at


def test_results_in_a_claim_are_listed_without_reading_them(looked: Look) -> None:
    found = looked(ended=True, kubernetes={"results": {"size": "1GiB"}})
    outputs, checkpoints = found["outputs"], found["checkpoints"]
    assert (outputs.place, outputs.claim, outputs.files) == ("claim", "digits-7f3k2", None)
    assert outputs.copy == "windlass cp digits-7f3k2:output ."
    assert where_words(outputs) == "claim digits-7f3k2: windlass/digits-7f3k2/output"
    assert (checkpoints.steps, checkpoints.newest_step) == (None, 120)
    assert where_words(checkpoints) == "claim digits-7f3k2 (the newest of step 120, 4.0 KiB)"
    assert outputs.note == checkpoints.note == ""


def test_results_without_a_claim_are_deleted_with_the_pods(looked: Look) -> None:
    live = looked()["outputs"]
    assert (live.place, live.note) == ("pods", "deleted with the pods when the run ends")
    assert live.copy == "windlass cp digits-7f3k2:output ."


def test_results_deleted_with_the_pods_have_no_copy_command(looked: Look) -> None:
    found = looked(ended=True)
    assert {(one.copy, one.note) for one in found.values()} == {("", "deleted with the pods")}


def test_outputs_fetched_to_this_machine_are_listed(looked: Look) -> None:
    found = looked(ended=True, copied=True)
    outputs = found["outputs"]
    assert (outputs.place, outputs.files, outputs.bytes, outputs.note) == ("folder", 1, 7, "")
    assert outputs.copy.startswith("cp -r /")
    assert found["checkpoints"].copy == "", "they were not copied"


def test_outputs_and_checkpoints_in_a_store_have_addresses(looked: Look) -> None:
    found = looked(
        outputs="s3://bucket/runs",
        checkpoint={"folder": "s3://bucket/checkpoints"},
        kubernetes={"results": {"size": "1GiB"}},
    )
    assert found["checkpoints"].place == "store"
    assert found["checkpoints"].copy == "windlass data copy s3://bucket/checkpoints/digits-7f3k2 FOLDER"
    assert (found["uploaded"].where, found["uploaded"].copy) == ("s3://bucket/runs/digits-7f3k2/", "")
    assert found["uploaded"].note == "uploaded when the run ends"
