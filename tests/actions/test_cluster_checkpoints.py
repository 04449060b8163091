"""Checkpoints on a cluster are listed by a program in a pod; in these tests it runs on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.actions import checkpoints as actions
from windlass.errors import UsageError, WindlassError
from windlass.plan.plan import NO_PLAN
from windlass.runs.phase import Phase
from windlass.runs.record import Status, Times
from windlass.train.checkpoint import files
from windlass.worker import checkpoint_list

STATUS = Status("digits-7f3k2", "digits", "lab", Phase.TRAINING, Times(0.0, 0.0), "/windlass/results/output")
THERE = Path("/windlass/results/checkpoints")
ONE, TWO, HALF = "step-00000010-a1aaaa", "step-00000020-a1aaaa", "step-00000030-a1aaaa"


def saved(folder: Path, name: str, step: int) -> None:
    """Writes a checkpoint of one rank in the format of `train/checkpoint`."""
    place = folder / name
    place.mkdir(parents=True)
    (place / "rank-0.safetensors").write_bytes(b"x" * 1000)
    (place / "rank-0.json").write_bytes(b"{}")
    facts = {"rank-0.safetensors": {"bytes": 1000, "crc32": "0"}, "rank-0.json": {"bytes": 2, "crc32": "0"}}
    manifest = {
        "format": files.FORMAT,
        "step": step,
        "epoch": 0,
        "world_size": 1,
        "attempt": 1,
        "created_at": 1e9,
        "run_id": "digits-7f3k2",
        "files": facts,
    }
    (place / files.MANIFEST).write_bytes(files.seal(manifest))


def listing(folder: Path) -> Any:
    """Returns the output of the listing program, which is passed to an interpreter as text, as in a pod."""
    text = Path(checkpoint_list.__file__).read_text()
    done = subprocess.run([sys.executable, "-I", "-S", "-c", text, str(folder)], capture_output=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def seen(tmp_path: Path) -> actions.Checkpoints:
    saved(tmp_path, ONE, 10)
    saved(tmp_path, TWO, 20)
    (tmp_path / HALF).mkdir()
    (tmp_path / HALF / "rank-0.safetensors").write_bytes(b"x" * 7)
    (tmp_path / "mine.pt").write_bytes(b"x")
    (tmp_path / "step-00000040-a1aaaa").symlink_to("/etc")
    return actions.listed(STATUS, str(THERE), listing(tmp_path))


def test_checkpoints_in_a_claim_are_listed_with_step_size_and_state(seen: actions.Checkpoints) -> None:
    assert [(one.name, one.step, one.bytes, one.complete) for one in seen.found] == [
        (HALF, 30, 7, False),
        (TWO, 20, 1002, True),
        (ONE, 10, 1002, True),
    ]
    assert "no manifest" in seen.found[0].problem
    assert seen.found[0].created_at > 1e9, "the time of its folder"
    assert (seen.found[1].path, seen.others, seen.in_cluster) == (f"{THERE}/{TWO}", 2, True)


def test_checkpoint_with_a_changed_manifest_is_not_complete(tmp_path: Path) -> None:
    saved(tmp_path, ONE, 10)
    manifest = tmp_path / ONE / files.MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"epoch": 0', b'"epoch": 1'))
    [one] = actions.listed(STATUS, str(THERE), listing(tmp_path)).found
    assert (one.complete, "manifest is damaged" in one.problem) == (False, True)


def test_missing_checkpoint_folder_is_empty(tmp_path: Path) -> None:
    assert actions.listed(STATUS, str(THERE), listing(tmp_path / "nowhere")).found == ()


def test_operations_on_file_contents_are_refused_with_a_copy_command(seen: actions.Checkpoints) -> None:
    for act in (
        lambda: actions.verify(seen),
        lambda: actions.prune(seen, 1, None, NO_PLAN),
        lambda: actions.export(seen, None, Path("model.pt"), "model", NO_PLAN),
    ):
        with pytest.raises(UsageError) as refused:
            act()
        assert refused.value.hint == "windlass cp digits-7f3k2:checkpoints . copies them to this machine"


def test_resume_requires_an_existing_checkpoint(seen: actions.Checkpoints) -> None:
    assert actions.to_resume_from(seen, "20") == TWO
    assert actions.to_resume_from(seen, "/windlass/results/output/mine") == "/windlass/results/output/mine"
    with pytest.raises(UsageError, match="no checkpoint called '50'"):
        actions.to_resume_from(seen, "50")


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"checkpoints": 7, "others": 0},
        {"checkpoints": {ONE: {"files": {"a": -1}}}, "others": 0},
        {"checkpoints": {ONE: {"files": {}, "manifest": None, "changed_at": "now"}}, "others": 0},
    ],
)
def test_malformed_listing_is_an_error(told: Any) -> None:
    with pytest.raises(WindlassError, match="cannot be read"):
        actions.listed(STATUS, str(THERE), told)


def test_listing_with_path_traversal_writes_nothing_outside(tmp_path: Path) -> None:
    one = {"files": {"../../x": 1}, "manifest": None, "changed_at": 0.0}
    assert (
        actions.listed(STATUS, str(THERE), {"checkpoints": {"../x": one, ONE: one}, "others": 0}).found[0].name == ONE
    )
