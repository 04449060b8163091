"""A run removes its own checkpoints beyond the number to keep, and nothing that may still be useful."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.train.checkpoint.saved import build, flip, make, train
from tests.train.checkpoint.test_files import change, newest

from windlass.train.checkpoint import Checkpoint, files, retention
from windlass.train.checkpoint.faults import Fault
from windlass.train.checkpoint.files import Found, list_checkpoints

RUN = "digits-7f3k2"


@pytest.fixture(autouse=True)
def _under_windlass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_RUN_ID", RUN)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make(tmp_path / "ck", 5)
    return tmp_path / "ck"


def found(step: int, attempt: int = 1, *, at: float = 0.0, fault: Fault | None = None, run: str = RUN) -> Found:
    name = files.name_of(step, attempt, "abcd")
    return Found(name, "", step, 0, at, 1, attempt, 1, run, fault)


def pruned(there: list[Found], keep: int | None, keep_for: float | None = None, now: float = 1000.0) -> list[int]:
    return [one.step for one in retention.to_prune(there, RUN, keep, keep_for, now)]


def steps(folder: Path) -> list[int]:
    return [one.step for one in list_checkpoints(folder)]


# -- the policy -------------------------------------------------------------------------------------------------------


def test_newest_checkpoints_are_kept_and_the_last_is_never_removed() -> None:
    there = [found(step, at=float(step)) for step in (5, 4, 3, 2, 1)]
    assert pruned(there, 3) == [2, 1]
    assert pruned(there, None, 7.5, now=10.0) == [2, 1]
    assert pruned(there, 1, 0.001, now=10.0) == [4, 3, 2, 1]
    assert pruned([], 1) == []


@pytest.mark.parametrize("fault", [Fault.UNREADABLE, Fault.UNKNOWN_FORMAT])
@pytest.mark.parametrize("place", range(4))
def test_possibly_intact_checkpoints_are_never_removed_and_do_not_count(fault: Fault, place: int) -> None:
    there = [found(step) for step in (9, 7, 5)]
    there.insert(place, found(10 - 2 * place, fault=fault))
    assert pruned(there, 1, 0.001) == [7, 5]
    assert pruned(there, 2) == [5]
    assert pruned([found(1, fault=fault)] * 5, 1, 0.001) == []


def test_run_removes_only_its_own_checkpoints() -> None:
    there = [found(step, run=run) for step in (9, 8, 7, 6) for run in ("other", RUN, "")]
    assert [one.run_id for one in retention.to_prune(there, RUN, 1, None, 1000.0)] == [RUN] * 3
    assert retention.to_prune(there, "", 1, None, 1000.0) == [], "of no known run are not those of one run"
    assert retention.to_prune([one for one in there if not one.run_id], RUN, 1, 0.1, 1000.0) == []


def test_damaged_checkpoints_are_removed_only_after_enough_newer_ones() -> None:
    damaged = found(7, fault=Fault.DAMAGED)
    assert pruned([damaged, found(5), found(3)], 1) == [3]
    assert pruned([found(9), damaged, found(5)], 2) == []
    assert pruned([found(9), found(8), damaged, found(5)], 2) == [7, 5]
    assert pruned([damaged] * 5, 1, 0.1) == []


def test_only_saves_that_cannot_be_finished_are_removed() -> None:
    half = Fault.UNFINISHED
    late, same = found(9, at=1000.0, fault=half), found(4, fault=half)
    recent, old = found(7, 2, at=900.0, fault=half), found(6, 2, at=1.0, fault=half)
    of_another, of_none = found(3, 3, fault=half, run="other"), found(2, 3, fault=half, run="")
    assert pruned([late, found(5, at=999.0), same, recent, old, of_another, of_none], 3) == [4, 6]


# -- on a disk --------------------------------------------------------------------------------------------------------


def test_prune_removes_folders(folder: Path) -> None:
    done = retention.prune(folder, RUN, 2)
    assert len(done.removed) == 3
    assert steps(folder) == [5, 4]
    assert len(list(folder.iterdir())) == 2


def test_prune_completes_removals_whose_process_was_killed(folder: Path) -> None:
    oldest, other = min(folder.iterdir()), folder / ".cache.removed"
    oldest.rename(folder / f".{oldest.name}.removed")
    other.mkdir()
    assert retention.prune(folder, RUN, 9) == retention.Pruned()
    assert steps(folder) == [5, 4, 3, 2]
    assert sorted(folder.glob(".*")) == [other]


def test_damaged_checkpoint_is_set_aside_and_removed_after_a_newer_verified_one(folder: Path) -> None:
    flip(newest(folder) / "rank-0.safetensors")
    name = newest(folder).name
    done = retention.prune(folder, RUN, 1, faults={name: Fault.DAMAGED})
    assert (done.set_aside, len(done.removed)) == ([name], 3)
    aside, kept = list_checkpoints(folder)
    assert (aside.name, aside.complete, aside.fault) == (f"{name}.damaged", False, Fault.DAMAGED)
    assert files.parse_name(aside.name) is None, "earlier versions take it for none of theirs"
    [problem] = files.examine(aside)
    assert problem.text == "rank-0.safetensors is damaged: its crc32 is not the manifest's"
    assert (kept.step, kept.complete) == (4, True)
    assert retention.prune(folder, RUN, 1).removed == []

    make(folder, 1)
    unverified = retention.prune(folder, RUN, 1, verify=lambda one: ["damaged too"])
    assert (unverified.removed, steps(folder)) == ([files.name_of(4, kept.attempt, kept.name[-4:])], [1, 5])
    assert retention.prune(folder, RUN, 1).removed == [aside.name]
    assert steps(folder) == [1]


def test_damaged_checkpoint_of_another_run_is_unchanged(folder: Path) -> None:
    change(newest(folder), lambda manifest: manifest.update(run_id="other"))
    name = newest(folder).name
    assert retention.prune(folder, RUN, 9, faults={name: Fault.DAMAGED}) == retention.Pruned()
    assert (folder / name).exists()


def test_newer_format_is_not_damage_and_is_kept(folder: Path) -> None:
    paths = [Path(one.path) for one in list_checkpoints(folder)]
    for path in paths[1:]:
        change(path, lambda manifest: manifest.update(format=2))
    flip(paths[-1] / files.MANIFEST, 60)
    assert [one.fault for one in list_checkpoints(folder)[1:]] == [Fault.UNKNOWN_FORMAT] * 3 + [Fault.DAMAGED]
    retention.prune(folder, RUN, 1, 0.001)
    assert sorted(folder.iterdir()) == sorted(paths[:-1]), "the damaged one alone is gone"


def test_unknown_checksum_kind_of_a_newer_format_is_not_damage(folder: Path) -> None:
    path = newest(folder) / files.MANIFEST
    path.write_text('{"format": 2, "sha256": "…"}')
    assert list_checkpoints(folder)[0].fault is Fault.UNKNOWN_FORMAT
    path.write_text('{"format": 1, "sha256": "…"}')
    assert list_checkpoints(folder)[0].fault is Fault.DAMAGED


def test_a_link_in_a_checkpoint_is_not_damage(folder: Path, tmp_path: Path) -> None:
    path = newest(folder) / "rank-0.json"
    path.rename(tmp_path / "outside.json")
    path.symlink_to(tmp_path / "outside.json")
    assert [problem.fault for problem in files.examine(list_checkpoints(folder)[0])] == [Fault.UNKNOWN_FORMAT]


def test_unfinished_save_of_a_killed_process_belongs_to_its_run(tmp_path: Path) -> None:
    from windlass.train.checkpoint.storage import Folder

    Folder(str(tmp_path)).begin(files.name_of(3, 1, "abcd"), RUN)
    Folder(str(tmp_path)).begin(files.name_of(4, 1, "ef01"), "other")
    Folder(str(tmp_path)).begin(files.name_of(5, 1, "2345"))
    for path in tmp_path.iterdir():
        os.utime(path, (time.time() - 10_000, time.time() - 10_000))
    make(tmp_path, 1)
    assert [one.step for one in list_checkpoints(tmp_path) if not one.complete] == [5, 4]


# -- by saves ---------------------------------------------------------------------------------------------------------


def test_saves_do_not_remove_checkpoints_of_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, 2)
    monkeypatch.setenv("WINDLASS_RUN_ID", "other")
    make(tmp_path, 4, keep=1)
    assert sorted(steps(tmp_path)) == [1, 2, 4]


def test_two_scripts_in_one_folder_do_not_remove_each_others_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WINDLASS_RUN_ID")
    pairs = []
    for _ in range(2):
        model, optimizer = build()
        saved = Checkpoint(model=model, optimizer=optimizer, folder=tmp_path, every=1, keep=2, when_busy="wait")
        pairs.append((model, optimizer, saved))
    for _ in range(4):
        for model, optimizer, saved in pairs:
            train(model, optimizer)
            saved.step()
    for _, _, saved in pairs:
        saved.close()
    assert sorted(steps(tmp_path)) == [3, 3, 4, 4]


def test_resumed_script_prunes_the_checkpoint_that_it_resumed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WINDLASS_RUN_ID")
    make(tmp_path, 2, keep=2)
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=tmp_path, every=1, keep=2, when_busy="wait")
    assert saved.restore() == 2
    for _ in range(2):
        train(model, optimizer)
        saved.step()
    saved.close()
    assert steps(tmp_path) == [4, 3]


def test_checkpoints_of_versions_without_run_ids_are_restored_and_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WINDLASS_RUN_ID")
    make(tmp_path, 2)
    for one in list_checkpoints(tmp_path):
        change(Path(one.path), lambda manifest: manifest.update(run_id=""))
        next(Path(one.path).glob("run-*")).unlink()
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=tmp_path, every=1, keep=1, when_busy="wait")
    assert saved.restore() == 2
    for _ in range(3):
        train(model, optimizer)
        saved.step()
    saved.close()
    assert steps(tmp_path) == [5, 2, 1]


def test_training_restarts_if_all_checkpoints_are_damaged_and_set_aside(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in list_checkpoints(folder):
        flip(Path(one.path) / "rank-0.safetensors")
    monkeypatch.delenv("WINDLASS_RUN_ID")  # output for the user
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=folder, every=1, keep=3, when_busy="wait")
    assert saved.restore() == 0
    train(model, optimizer)
    saved.step()
    saved.close()
    said = capfd.readouterr().out
    assert said.count("refused: rank-0.safetensors is damaged") == 5
    assert f"none-verified: all 5 checkpoints in {folder} are damaged; they are kept" in said
    states: dict[str, Any] = {one.name: one.complete for one in list_checkpoints(folder)}
    assert sorted(states.values()) == [False] * 5 + [True]
    assert sum(name.endswith(".damaged") for name in states) == 5
