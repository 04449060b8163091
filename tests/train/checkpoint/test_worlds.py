"""One, two and three real ranks over gloo: all tests read the output of one session of `scripts/worlds.py`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.once import once

from windlass.train.checkpoint.export import read_tensors
from windlass.train.checkpoint.files import examine, list_checkpoints

SCRIPT = Path(__file__).with_name("scripts") / "worlds.py"
KINDS = ("ddp", "fsdp")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Session:
    """Results and output of the ranks."""

    def __init__(self, folder: Path, output: str) -> None:
        self.folder = folder
        self.output = output
        self.told: dict[tuple[str, int], dict[str, Any]] = {}
        for line in self.output.splitlines():
            if line.startswith(">>"):
                found = json.loads(line[2:])
                self.told.setdefault((found["phase"], found["rank"]), {}).update(found)

    @staticmethod
    def play(folder: Path) -> str:
        """Runs the session and returns the output of its ranks."""
        source = Path(__file__).parents[3] / "src"
        env = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        for name in [name for name in env if name.startswith("WINDLASS")]:
            del env[name]
        if shutil.which("cc"):
            library = folder / "read_errors.so"
            flags = ("-shared", "-fPIC", "-O2", "-Wall", "-Werror")
            subprocess.run(["cc", *flags, "-o", library, SCRIPT.with_name("read_errors.c"), "-ldl"], check=True)
            env |= {"LD_PRELOAD": str(library), "READ_ERRORS": str(folder / "read-errors")}
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(folder)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=550,
        )
        return done.stdout

    def ranks(self, phase: str) -> list[dict[str, Any]]:
        found = [told for (name, rank), told in sorted(self.told.items()) if name == phase and rank >= 0]
        assert found, self.output
        assert not [told["error"] for told in found if "error" in told], self.output
        return found

    def codes(self, phase: str) -> list[int]:
        codes: list[int] = self.told[(phase, -1)]["codes"]
        return codes


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    def play() -> str:
        folder = tmp_path_factory.mktemp("worlds")
        return json.dumps([str(folder), Session.play(folder)])

    folder, output = json.loads(once(tmp_path_factory, "worlds", play))
    return Session(Path(folder), output)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_the_same_in_two_ranks_in_one_and_in_three(session: Session, kind: str) -> None:
    first, one, three = session.ranks("first"), session.ranks("one"), session.ranks("three")
    assert [told[f"{kind} safe"] for told in (*first, *one, *three)] == [True] * 6
    assert one[0][f"{kind} steps"] == 5
    assert one[0][kind] == first[0][kind] == first[1][kind]
    assert [told[f"{kind} steps"] for told in three] == [6] * 3
    assert [told[kind] for told in three] == [one[0][f"{kind} after"]] * 3
    assert one[0][f"{kind} after"] != one[0][kind]


def test_sharded_and_replicated_models_continue_equally(session: Session) -> None:
    for phase in ("first", "one", "three"):
        for told in session.ranks(phase):
            assert told["ddp"] == told["fsdp"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_continues_with_its_own_random_numbers(session: Session, kind: str) -> None:
    first, one = session.ranks("first"), session.ranks("one")
    assert first[0][f"{kind} random"] != first[1][f"{kind} random"]
    torch.manual_seed(100)
    assert first[0][f"{kind} random"] == torch.rand(3).tolist()
    assert one[0][f"{kind} random"] == first[0][f"{kind} random"]


def test_custom_state_is_that_of_rank_0_with_its_types(session: Session) -> None:
    for told in (*session.ranks("one"), *session.ranks("three")):
        assert told["ddp mine"] == "{'tuple': (1, inf), 7: b'bytes', 'rank': 0}"


def test_two_ranks_write_half_each(session: Session) -> None:
    [stopped] = list_checkpoints(session.folder / "stopped")
    sizes = [stopped.files[f"rank-{rank}.safetensors"]["bytes"] for rank in range(2)]
    names = [read_tensors(str(Path(stopped.path) / f"rank-{rank}.safetensors")) for rank in range(2)]
    assert all(names)
    assert not set(names[0]) & set(names[1])
    assert abs(sizes[0] - sizes[1]) < 4096


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3])
def test_exports_are_plain_and_complete(session: Session, kind: str, size: int) -> None:
    loaded = torch.load(session.folder / f"{kind}-{size}.pt", weights_only=True)
    names = [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
        "3.weight",
        "3.bias",
        "4.weight",
        "4.bias",
    ]
    assert sorted(loaded) == sorted(names)
    assert loaded["0.weight"].shape == (9, 7)
    tensors = read_tensors(str(session.folder / f"{kind}-{size}.safetensors"))
    assert sorted(tensors) == sorted(names)
    for name in names:
        assert torch.equal(tensors[name], loaded[name])


def test_ranks_that_get_sigterm_at_different_times_save_the_same_step_and_end_with_143(session: Session) -> None:
    assert session.codes("stopped") == [143, 143]
    first, second = session.ranks("stopped")
    [found] = list_checkpoints(session.folder / "stopped")
    assert examine(found) == []
    assert found.step == first["at"] == second["at"]
    assert f"the state at step {found.step} is saved" in session.output


def test_ranks_save_every_step_if_saves_finish_in_time(session: Session) -> None:
    session.ranks("each")
    assert [found.step for found in list_checkpoints(session.folder / "each")] == [4, 3, 2, 1]


def test_flipped_bit_found_by_one_rank_makes_all_ranks_restore_the_previous_checkpoint(session: Session) -> None:
    name = session.told[("spoilt", -1)]["name"]
    first, second = session.ranks("refusing")
    assert first == {**second, "rank": 0}
    assert first["steps"] == 6
    assert first["digest"] == session.ranks("one")[0]["ddp after"]
    assert "step 7 refused: rank-1.safetensors is damaged" in session.output
    assert name.startswith("step-00000007")


def test_mismatching_model_is_reported_with_all_differences(session: Session) -> None:
    for told in session.ranks("other"):
        assert "lacks model.added.bias, model.added.weight" in told["said"]
        assert "model.0.weight was float32 [9, 7] and is now float32 [8, 7]" in told["said"]


def test_killed_writer_skips_one_save_and_leaves_nothing(session: Session) -> None:
    assert [told["safe"] for told in session.ranks("dies")] == [True, True]
    assert "step 1 failed" in session.output
    assert "rank 1: the writer process died" in session.output
    assert [(found.step, found.complete) for found in list_checkpoints(session.folder / "dies")] == [(2, True)]


def test_ranks_without_communication_save_at_the_same_step(session: Session) -> None:
    for phase in ("alone", "alone again"):
        assert session.codes(phase) == [143, 143]
        first, second = session.ranks(phase)
        assert first["at"] == second["at"]
    again = session.ranks("alone again")
    assert [told["began"] for told in again] == [session.ranks("alone")[0]["at"]] * 2
    assert [told["own"] for told in again] == [{"rank": rank, "again": 1} for rank in range(2)]
    found = list_checkpoints(session.folder / "alone")
    assert found[0].step == again[0]["at"]
    assert len(found) == 3
    assert [examine(one) for one in found] == [[]] * 3


def test_ranks_leave_no_temporary_files(session: Session) -> None:
    left = [path for path in session.folder.rglob("*") if path.name.startswith(".") or path.name.endswith(".failed")]
    assert left == []


def test_rank_does_not_unpickle_messages_of_others(session: Session) -> None:
    said = session.ranks("gather")[0]["said"]
    assert " bytes that Windlass did not write: " in said
    assert not (session.folder / "unpickled").exists()


# -- reads that fail --------------------------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


@needs_compiler
def test_single_read_error_is_retried(session: Session) -> None:
    assert session.codes("once") == [0, 0]
    saved = session.ranks("save")[0]["digest"]
    assert [(one["steps"], one["digest"]) for one in session.ranks("once")] == [(2, saved)] * 2


@needs_compiler
@pytest.mark.parametrize(
    ("phase", "said"),
    [
        ("file of rank 1", "/rank-1.safetensors: Stale file handle (ESTALE)"),
        ("folder", "/ck: Input/output error (EIO)"),
    ],
)
def test_checkpoint_unreadable_on_one_rank_fails_all_ranks(session: Session, phase: str, said: str) -> None:
    ranks = session.ranks(phase)
    assert [one.get("raised") for one in ranks] == ["UnreadableCheckpoint"] * 2
    assert len({one["said"] for one in ranks}) == 1
    assert said in ranks[0]["said"]
    assert len(list((session.folder / "ck").iterdir())) == 2, "none was removed"


@needs_compiler
def test_unreadable_older_checkpoint_is_not_needed(session: Session) -> None:
    assert [one["steps"] for one in session.ranks("older")] == [2, 2]
