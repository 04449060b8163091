"""Warnings of a node: files of another run, saves that were not used, processes left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from windlass.worker import process
from windlass.worker.protocol import NodeSpec, NodeWarning, RankSpec
from windlass.worker.ranks import Ranks
from windlass.worker.run_warnings import RunWarnings

BEGAN = 1_000.0


class Node:
    """Node whose script has these arguments, and its warnings."""

    def __init__(self, folder: Path, *words: str, attempt: int = 1) -> None:
        argv = ("python", "train.py", *words)
        env = {"WINDLASS_CHECKPOINT_DIR": str(folder / "ck"), "WINDLASS_OUTPUT_DIR": str(folder / "out")}
        self.spec = NodeSpec(
            0,
            "train.py",
            "python",
            str(folder),
            env,
            (RankSpec(0, 0, argv, {}),),
            1.0,
            attempt=attempt,
            world_size=2,
            since=BEGAN,
        )
        self.found: list[NodeWarning] = []
        self.warnings = RunWarnings(self.spec, SimpleNamespace(add=self.found.append))  # type: ignore[arg-type]

    @property
    def codes(self) -> list[str | None]:
        return [one.code for one in self.found]


class FakeRank:
    """Rank that has ended."""

    def __init__(self, folder: Path, pid: int = 0, code: int = 0, tail: str = "", **progress: Any) -> None:
        self.number, self.pid, self.code, self.base = 0, pid, code, str(folder / "rank-0")
        self.capture = SimpleNamespace(progress=progress, tail=tail, masked=str)

    def outcome(self) -> int:
        return self.code


def ranks_of(*ranks: FakeRank) -> Ranks:
    found = Ranks(1.0)
    found.extend(ranks)  # type: ignore[arg-type]
    return found


def others() -> set[int]:
    """Returns processes of other tests, which are not orphans of a rank."""
    return set(process.children(os.getpid()))


def log(line: str, **more: Any) -> dict[str, Any]:
    return {"action": "restored", "source": "log", "line": line, **more}


# -- files of another run ---------------------------------------------------------------------------------------------


def test_first_attempt_that_resumes_warns_of_another_runs_checkpoint(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for _ in range(2):
        node.warnings.restored(log("resumed from epoch 3", epoch=3))
    assert [(one.code, one.message) for one in node.found] == [
        ("resumed-from-another-run", "training began from epoch 3 of another run: resumed from epoch 3")
    ]
    own = Node(tmp_path)
    own.warnings.restored({"action": "restored", "step": 40, "name": "step-00000040-a1"})
    assert own.found[0].message == "training began from step 40 of another run: step-00000040-a1"


@pytest.mark.parametrize(
    ("words", "attempt", "line", "more"),
    [
        ((), 2, "resumed from epoch 3", {"epoch": 3}),
        ((), 1, "resumed from epoch 0", {"epoch": 0}),
        (("--resume", "old/last.pt"), 1, "Resuming training from old/last.pt", {}),
        (("--init=old/last.pt",), 1, "resumed from epoch 3", {"epoch": 3}),
        (("old/last.pt",), 1, "resumed from old/last.pt", {}),
    ],
)
def test_no_warning_for_intended_restores(
    tmp_path: Path, words: tuple[str, ...], attempt: int, line: str, more: dict[str, Any]
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/last.pt").touch()
    node = Node(tmp_path, *words, attempt=attempt)
    node.warnings.restored(log(line, **more))
    assert node.found == []


@pytest.mark.parametrize("words", [("--resume", "auto"), ("--data", "old"), ("--resume", "old/gone.pt")])
def test_unrelated_arguments_do_not_name_a_checkpoint(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "old").mkdir()
    node = Node(tmp_path, *words)
    node.warnings.restored(log("resumed from epoch 3", epoch=3))
    assert node.codes == ["resumed-from-another-run"]


LOADED = "=> loaded checkpoint 'best.pt' (epoch 12)"


def test_loaded_checkpoint_is_reported_once_a_step_or_loss_follows(tmp_path: Path) -> None:
    by_step, by_loss = Node(tmp_path), Node(tmp_path)
    for node in (by_step, by_loss):
        node.warnings.restored(log(LOADED, epoch=12))
        assert node.found == []
    by_step.warnings.began({"step": 1, "every": 1}, {})
    by_loss.warnings.began_epoch(13)  # also printed by an evaluation
    assert by_loss.found == []
    by_loss.warnings.trains()
    assert [one.message for one in (*by_step.found, *by_loss.found)] == [
        f"training began from epoch 12 of another run: {LOADED}"
    ] * 2


def test_evaluation_of_a_loaded_checkpoint_causes_no_warning(tmp_path: Path) -> None:
    evaluates, ends = Node(tmp_path), Node(tmp_path)
    validates = f"{LOADED}\n  Class Images   mAP50\n  all   128  0.605"
    for node, tail in ((evaluates, f"{LOADED}\naccuracy: 0.914"), (evaluates, validates), (ends, f"{LOADED}\ndone")):
        node.warnings.restored(log(LOADED, epoch=12))
        node.warnings.ended(ranks_of(FakeRank(tmp_path, tail=tail)), others())
    assert evaluates.found == []
    assert ends.codes == ["resumed-from-another-run", "no-steps"]
    assert ends.found[0].message == f"the script loaded epoch 12 of another run: {LOADED}"


def test_file_written_since_the_start_belongs_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "best.pt").touch()
    node = Node(tmp_path)
    node.warnings.restored(log(LOADED, epoch=12))
    node.warnings.trains()
    node.warnings.ended(ranks_of(FakeRank(tmp_path, tail=LOADED)), others())
    assert node.found == []


# -- saves that were not used -----------------------------------------------------------------------------------------


def saves(folder: Path) -> None:
    for number, name in enumerate(("ck/step_5/model.pt", "ck/step_15/model.pt", "ck/latest.txt", "out/old.pt")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        at = BEGAN - 1 if "old" in name else BEGAN + number
        os.utime(path, (at, at))


def test_later_attempt_that_starts_over_is_warned_with_the_newest_save(tmp_path: Path) -> None:
    saves(tmp_path)
    node = Node(tmp_path, attempt=2)
    node.warnings.began({"step": 1, "every": 1}, {})
    [warning] = node.found
    assert warning.message == "attempt 2 started over at step 1 although step_15/model.pt had been saved"
    assert "checkpoint: {find: …, resume: …}" in warning.fix


def test_later_attempt_that_reports_only_epochs_is_warned_too(tmp_path: Path) -> None:
    saves(tmp_path)
    anew, later = Node(tmp_path, attempt=2), Node(tmp_path, attempt=2)
    for epoch in (0, 1, 0):
        anew.warnings.began_epoch(epoch)
    assert anew.found[0].message == "attempt 2 started over at epoch 0 although step_15/model.pt had been saved"
    for epoch in (1, 0):
        later.warnings.began_epoch(epoch)
    assert (anew.codes, later.codes) == (["saves-not-used"], [])


def test_a_save_of_an_earlier_step_than_the_first_report_may_have_been_used(tmp_path: Path) -> None:
    saves(tmp_path)
    node = Node(tmp_path, attempt=2)
    node.warnings.began({"step": 20, "every": 20}, {})
    assert node.found == []


def test_a_save_that_was_read_since_it_was_written_was_used(tmp_path: Path) -> None:
    saves(tmp_path)
    os.utime(tmp_path / "ck/step_15/model.pt", (BEGAN + 100, BEGAN + 1))
    node = Node(tmp_path, attempt=2)
    node.warnings.began({"step": 1, "every": 1}, {})
    assert node.found == []


def test_no_warning_if_training_continued_or_nothing_was_saved(tmp_path: Path) -> None:
    nothing = Node(tmp_path, attempt=2)
    nothing.warnings.began({"step": 1}, {})
    saves(tmp_path)
    first, later, in_epoch, told = (Node(tmp_path, attempt=number) for number in (1, 2, 2, 2))
    first.warnings.began({"step": 1}, {})
    later.warnings.began({"step": 60, "every": 10}, {})
    in_epoch.warnings.began({"step": 1, "every": 1}, {"epoch": 4})
    told.warnings.restored({"action": "none-verified", "step": 0, "reason": "all 2 are damaged"})
    told.warnings.began({"step": 1, "every": 1}, {})
    assert [*nothing.found, *first.found, *later.found, *in_epoch.found, *told.found] == []


# -- the end ----------------------------------------------------------------------------------------------------------


def test_no_steps_is_a_warning_after_a_resume_or_with_an_empty_loader(tmp_path: Path) -> None:
    done, empty, other = Node(tmp_path), Node(tmp_path), Node(tmp_path)
    done.warnings.restored(log("resumed from epoch 3", epoch=3))
    done.warnings.ended(ranks_of(FakeRank(tmp_path)), others())
    assert done.codes == ["resumed-from-another-run", "no-steps"]
    empty.warnings.ended(ranks_of(FakeRank(tmp_path, tail="Epoch 0: 0it [00:00, ?it/s]\ndone")), others())
    assert empty.codes == ["no-steps"]
    other.warnings.ended(ranks_of(FakeRank(tmp_path, tail="download: 0it [00:00, ?it/s]\nscore 3")), others())
    other.warnings.ended(ranks_of(FakeRank(tmp_path, tail="Epoch 0: 0it [00:00", step=3)), others())
    assert other.codes == []


def test_ranks_alone_in_mpi_are_a_warning_only_if_all_are(tmp_path: Path) -> None:
    node, rank = Node(tmp_path), FakeRank(tmp_path)
    node.warnings.ended(ranks_of(rank), others())
    assert node.found == []
    Path(rank.base + ".alone-mpi").touch()
    node.warnings.ended(ranks_of(rank), others())
    assert [(one.code, one.fix) for one in node.found] == [("ranks-alone", "launcher: mpi starts the ranks by mpirun")]


def test_process_outliving_its_rank_is_named_unless_it_is_about_to_end(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    for sleep, codes in ((60, ["processes-outlived"]), (0, [])):
        wait = f"import time; time.sleep({sleep})"
        leader = subprocess.Popen([sys.executable, "-c", code, wait], preexec_fn=process.Birth())
        assert leader.wait() == 0
        node, rank = Node(tmp_path), FakeRank(tmp_path, leader.pid, step=1)
        if not sleep:
            until_gone(leader.pid)
        node.warnings.outlived(rank)  # type: ignore[arg-type]
        process.send_group(leader.pid, signal.SIGKILL)
        node.warnings.ended(ranks_of(rank), others())
        assert node.codes == codes


@pytest.mark.parametrize(("name", "is_viewer"), [("tensorboard", True), ("wandb-core", True), ("upload", False)])
def test_remaining_viewer_process_causes_no_warning(tmp_path: Path, name: str, is_viewer: bool) -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.argv[1], '60'], executable='/bin/sleep')"
    leader = subprocess.Popen([sys.executable, "-c", code, name], preexec_fn=process.Birth())
    assert leader.wait() == 0
    node, rank = Node(tmp_path), FakeRank(tmp_path, leader.pid, step=1)
    node.warnings.outlived(rank)  # type: ignore[arg-type]
    process.send_group(leader.pid, signal.SIGKILL)
    node.warnings.ended(ranks_of(rank), others())
    assert node.codes == ([] if is_viewer else ["processes-outlived"])


@pytest.mark.parametrize("progress", [{"step": 9}, {}])
def test_remaining_forks_cause_a_warning_only_if_the_script_has_not_trained(
    tmp_path: Path, progress: dict[str, Any]
) -> None:
    """Workers of a DataLoader end some seconds after a script that exits with os._exit."""
    (tmp_path / "train.py").write_text("import os, time\nif os.fork(): os._exit(0)\ntime.sleep(60)\n")
    leader = subprocess.Popen(
        ["python", "train.py"], executable=sys.executable, cwd=tmp_path, preexec_fn=process.Birth()
    )
    assert leader.wait() == 0
    node, rank = Node(tmp_path), FakeRank(tmp_path, leader.pid, **progress)
    node.warnings.outlived(rank)  # type: ignore[arg-type]
    process.send_group(leader.pid, signal.SIGKILL)
    node.warnings.ended(ranks_of(rank), others())
    assert node.codes == ([] if progress else ["processes-outlived"])


def until_gone(group: int) -> None:
    while any(line.group == group and line.state != "Z" for line in process.all_processes()):
        time.sleep(0.01)


def test_failed_or_stopped_run_has_no_warnings_at_its_end(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.warnings.restored(log("resumed from epoch 0", epoch=0))
    node.warnings.ended(ranks_of(FakeRank(tmp_path, code=1)), others())
    stopped = ranks_of(FakeRank(tmp_path))
    stopped.ended_by = "stop"
    node.warnings.ended(stopped, others())
    assert node.found == []
