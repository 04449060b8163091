"""Statuses, events, plans and logs are formatted from values, without starting a run."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.engines.kubernetes.planning.test_plan import planned
from tests.engines.local.planning import plan_local
from tests.statuses import changed

from windlass.cli import eventtext, plantext, statustext
from windlass.cli.follow import Pace, PlainView
from windlass.cli.formatting import cut
from windlass.cli.interrupts import AFTER_INTERRUPT, AFTER_KEY, Choice
from windlass.cli.live import panel
from windlass.cli.logs import terminal_lines
from windlass.cli.render import run_rows
from windlass.cli.whytext import restart_words, why_lines
from windlass.diagnose.verdict import Diagnosis, Verdict
from windlass.plan.notes import Note
from windlass.plan.plan import NO_PLAN, Plan, Policy
from windlass.plan.steps import FolderStep, NodeStep, Step
from windlass.runs.events import (
    CheckpointChanged,
    CodeFiles,
    ConditionChanged,
    Entry,
    Event,
    Progress,
    RootCause,
    RunEnding,
)
from windlass.runs.ledger import Ledger, Restart
from windlass.runs.logs import LogBlock
from windlass.runs.phase import Phase
from windlass.runs.record import Attempt, RankState, Status, Times
from windlass.runs.start import Origin, Start
from windlass.runs.time_accounting import Spent
from windlass.spec.job import Job
from windlass.spec.labels import SERVICE_LABEL
from windlass.views.run import Run, advance_of, run_of
from windlass.views.verdict import Why
from windlass.worker.protocol import NodeSpec, RankSpec


def plain(text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
    return text


ENTRIES: dict[str, type[Entry]] = {
    "progress": Progress,
    "cause": RootCause,
    "checkpoint": CheckpointChanged,
    "condition": ConditionChanged,
    "ending": RunEnding,
}


def training(**changes: Any) -> Status:
    """Returns the status of a run in training; entries are given as JSON."""
    status = Status(
        id="digits-7f3k2",
        name="digits",
        target="local",
        phase=Phase.TRAINING,
        times=Times(100.0, 110.0, phases={Phase.QUEUED: 1.0, Phase.STARTING: 9.0}),
        output_dir="s3://bucket/digits",
        attempts=(Attempt(1, 2, Phase.TRAINING, 101.0),),
        ranks=(RankState(0, 0, 11), RankState(1, 1, 12)),
        progress=Progress.from_json({"step": 100, "total": 400, "loss": 0.5, "at": 120.0}),
    )
    for name, kind in ENTRIES.items():
        if isinstance(changes.get(name), dict):
            changes[name] = kind.from_json(changes[name])
    if "code_files" in changes:
        changes["code_files"] = tuple(map(CodeFiles.from_json, changes["code_files"]))
    return changed(status, **changes)


CAUSE = {
    "rank": 2,
    "exit_code": 1,
    "signal": None,
    "summary": "ValueError: bad \x1b[2Jbatch",
    "traceback": "Traceback (most recent call last):\n"
    + "\n".join(f"  line {n}" for n in range(40))
    + "\nValueError: bad",
    "victims": [0, 1, 3],
}
LEDGER = Ledger({Spent.QUEUED: 1.0, Spent.STARTING: 9.0, Spent.TRAINING: 10.0}, {}, 20.0, 1, 0)
FAILED = {"phase": Phase.FAILED, "ended_at": 130.0, "exit_code": 1, "cause": CAUSE}


PLAN = replace(NO_PLAN, policy=NO_PLAN.policy.replace(max_restarts=3), num_nodes=1, procs_per_node=2)


def viewed(status: Status, now: float = 120.0, ledger: Ledger = LEDGER) -> Run:
    return run_of(status, PLAN, ledger, now, is_here=True)


def shown(status: Status, now: float = 120.0, verbose: int = 0, ledger: Ledger = LEDGER) -> str:
    return "\n".join(statustext.status_lines(viewed(status, now, ledger), now, plain, verbose=verbose))


def summed(status: Status, now: float, ledger: Ledger = LEDGER) -> str:
    return "\n".join(statustext.summary_lines(viewed(status, now, ledger), now, plain))


# -- status -----------------------------------------------------------------------------------------------------------


def test_time_left_comes_from_the_rate_since_training_began() -> None:
    advance = advance_of(viewed(training()), 120.0)
    assert advance.share == 0.25
    assert advance.left_seconds == pytest.approx(30.0)  # 100 steps in 10 s, 300 to go


def test_rate_reported_by_the_script_takes_precedence() -> None:
    status = training(progress={"step": 100, "total": 400, "rate": 100.0})
    advance = advance_of(viewed(status), 120.0, rate=1.0)
    assert advance.left_seconds == 3.0


def test_time_left_reported_by_the_script_is_used_without_a_known_rate() -> None:
    status = training(progress={"percent": 25.0, "eta_seconds": 90.0})
    advance = advance_of(viewed(status), 120.0)
    assert (advance.share, advance.left_seconds) == (0.25, 90.0)


def test_a_resumed_run_has_no_time_left_before_its_rate_is_measured() -> None:
    attempts = (Attempt(1, 2, Phase.FAILED, 101.0, 105.0), Attempt(2, 2, Phase.TRAINING, 106.0))
    status = training(attempts=attempts)
    advance = advance_of(viewed(status), 120.0)
    measured = advance_of(viewed(status), 120.0, rate=10.0)
    assert advance.left_seconds is None
    assert measured.left_seconds == pytest.approx(30.0)


def test_run_without_progress_has_no_bar() -> None:
    assert statustext.advance_lines(viewed(training(progress={})), 120.0) == []
    assert "progress" not in shown(training(progress={}))


@pytest.mark.parametrize(
    "progress",
    [
        {"step": 5},
        {"step": 5, "total": 0},
        {"step": 9, "total": 3, "rate": 1.0},
        {"percent": 140},
        {"loss": "nan"},
        {"step": "x", "total": None, "rate": "inf", "samples_per_second": "nan"},
        {"metrics": "odd"},
        {"message": "\x1b[2J"},
    ],
)
def test_unusual_progress_values_are_shown(progress: dict[str, Any]) -> None:
    text = shown(training(progress=progress))
    assert "\x1b" not in text


def test_wasted_time_is_always_shown_with_the_goodput() -> None:
    ledger = Ledger({Spent.TRAINING: 996.0, Spent.REDONE: 3.0, Spent.HUNG: 1.0}, {}, 1000.0, 2, 12)
    assert statustext.time_line(ledger) == "training 16m36s (100%), redone 3.0s (0%), hung 1.0s (0%)"
    assert statustext.time_rows(ledger, plain)[-1] == "goodput 100%  2 attempts  12 steps redone"


def test_run_without_waste_shows_no_goodput() -> None:
    assert len(statustext.time_rows(LEDGER, plain)) == 3


def test_status_shows_attempt_ranks_time_output_and_next_command() -> None:
    text = shown(training())
    for word in (
        "training",
        "attempt     1, 3 restarts left",
        "25%",
        "100/400",
        "loss 0.5",
        "10 steps/s",
        "30s left",
        "starting",
        "s3://bucket/digits",
        "windlass logs -f digits-7f3k2",
    ):
        assert word in text


def test_failure_shows_the_root_cause_and_the_ranks_that_failed_as_a_result() -> None:
    text = shown(training(**FAILED))
    assert "rank 2 failed first (exit code 1): ValueError: bad" in text
    assert "ranks 0–1, 3 failed because rank 2 failed" in text
    assert "Traceback (most recent call last)" in text
    assert "ValueError: bad" in text.splitlines()[-4]


def test_traceback_is_shown_without_caret_lines() -> None:
    marked = {**CAUSE, "traceback": "Traceback (most recent call last):\n    step()\n    ~~~~^^\nValueError: bad"}
    text = shown(training(**{**FAILED, "cause": marked}))
    assert "step()" in text
    assert "^" not in text
    assert "\x1b" not in text
    assert "windlass logs digits-7f3k2 --rank 2 --tail 50" in text


def test_a_long_traceback_is_cut_in_the_middle_and_whole_with_verbose() -> None:
    assert "line 3\n" not in shown(training(**FAILED))
    assert "line 3\n" in shown(training(**FAILED), verbose=1)


def test_many_ranks_are_shown_as_groups() -> None:
    ranks = [RankState(rank, rank // 8, 100 + rank) for rank in range(512)]
    ranks[5] = replace(ranks[5], exit_code=-9)
    lines = statustext.rank_rows(ranks, plain, RootCause("", rank=5))
    assert len(lines) == 3
    assert "0–4, 6–511" in lines[1]
    assert "SIGKILL" in lines[2]
    assert "root cause" in lines[2]


def test_ranks_are_summarized_on_one_line() -> None:
    assert statustext.ranks_line([RankState(0, 0, 1), RankState(1, 0, 2)]) == "2 of 2 running"
    failed = [RankState(0, 0, 1, 0), RankState(1, 0, 2, 3)]
    assert statustext.ranks_line(failed) == "1 of 2 done, 1 failed with exit code 3"
    assert statustext.ranks_line([RankState(0, 0), RankState(1, 0)]) == "0 of 2 running, 2 starting"
    lost = [RankState(0, 0, 1, 0), RankState(1, 0, 2)]
    waiting = [RankState(0, 0), RankState(1, 0)]
    assert statustext.ranks_line(waiting, Phase.QUEUED) == "0 of 2 running, 2 not started"
    assert statustext.ranks_line(lost, Phase.LOST) == "1 of 2 done, 1 gone"


def test_node_lost_before_starting_a_rank_is_reported() -> None:
    status = training(**{**FAILED, "cause": {"summary": "CapacityError: no instances", "node_lost": 0}})
    assert "node 0 was lost before a rank was started" in shown(status)


def test_root_cause_without_a_rank_is_shown() -> None:
    status = training(**{**FAILED, "cause": {"summary": "the timeout of 3 s was reached"}})
    assert "the timeout of 3 s was reached" in shown(status)
    assert "next        windlass why digits-7f3k2   explain it: cause, evidence, fix" in shown(status)
    assert "windlass events digits-7f3k2" in summed(status, 200.0)


def test_summary_has_duration_time_output_and_next_command() -> None:
    done = training(phase=Phase.SUCCEEDED, ended_at=160.0)
    ledger = Ledger({Spent.STARTING: 20.0, Spent.TRAINING: 40.0}, {}, 60.0, 1, 0)
    text = summed(done, 999.0, ledger)
    assert "digits-7f3k2 succeeded after 1m00s" in text
    assert "starting 20s (33%), training 40s (67%)" in text
    assert "s3://bucket/digits" in text
    assert "windlass logs digits-7f3k2" in text


SAVED = {"action": "saved", "step": 120, "name": "step-00000120-a2f3c1", "bytes": 5 << 20, "at": 108.0}
RESTARTED = replace(LEDGER, start=Start(Origin.CHECKPOINT, 120))
HUNG = (Attempt(1, 2, Phase.FAILED, 101.0, 105.0, "hang"), Attempt(2, 2, Phase.TRAINING, 106.0, restored_step=120))


def test_a_run_that_failed_is_not_restarted_while_its_outputs_are_uploaded() -> None:
    assert "cause       rank 2 failed first" in shown(training(phase=Phase.UPLOADING, cause=CAUSE))
    assert "restarted   rank 2 failed first" in shown(training(phase=Phase.RESTARTING, cause=CAUSE))


def test_restarted_run_shows_cause_step_and_remaining_restarts() -> None:
    text = shown(training(attempts=HUNG, restarts_left=1, checkpoint=SAVED), ledger=RESTARTED)
    assert "attempt     2 after a hang, from step 120, 1 restart left" in text
    assert "checkpoint  step 120, 12s ago, 5.0 MiB (step-00000120-a2f3c1)" in text


def test_resumed_run_is_reported_as_resumed() -> None:
    resumed = training(attempts=(HUNG[0], replace(HUNG[1], is_resume=True)))
    assert "attempt     2 by a resume, from step 120" in shown(resumed, ledger=RESTARTED)


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.LOST, Phase.FAILED])
def test_unfinished_run_shows_its_checkpoint_and_how_to_resume(phase: Phase) -> None:
    status = training(phase=phase, ended_at=130.0, checkpoint=SAVED)
    text = summed(status, 130.0)
    assert "checkpoint  step 120, 22s ago" in text
    assert "windlass resume digits-7f3k2" in text
    assert "continue from step 120" in text


def test_stopped_run_without_a_checkpoint_is_reported() -> None:
    text = summed(training(phase=Phase.STOPPED, ended_at=130.0), 130.0)
    assert "checkpoint  none reported" in text, "the script may have saved by itself"
    assert "start again" in text


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.FAILED])
def test_unfinished_run_shows_the_newest_state_saved_by_its_script(phase: Phase) -> None:
    reports = [
        {"node": node, "folder": "/code", "save": {"path": path, "bytes": 1024, "at": at}}
        for node, path, at in ((0, "out/last.pt", 118.0), (1, "out/old.pt", 110.0))
    ]
    text = summed(training(phase=phase, ended_at=130.0, code_files=tuple(reports)), 130.0)
    assert "checkpoint  none reported; newest saved state: out/last.pt, 12s ago, 1.0 KiB, not verified" in text


def test_saved_state_deleted_with_its_pod_is_reported() -> None:
    save = {"path": "last.pt", "bytes": 1024, "at": 118.0}
    report = {
        "node": 0,
        "folder": "/code",
        "left": 1,
        "left_bytes": 1024,
        "save": save,
        "largest": [{"path": "last.pt", "bytes": 1024}],
    }
    text = summed(training(phase=Phase.FAILED, ended_at=130.0, code_files=(report,)), 130.0)
    assert "newest saved state: last.pt, 12s ago, 1.0 KiB, deleted with its machine" in text


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.FAILED])
def test_run_shows_checkpoints_saved_by_its_script(phase: Phase) -> None:
    job = {"name": "digits", "run": "train.py", "checkpoint": {"find": "model-*.pt", "resume": "--resume {path}"}}
    run = run_of(training(phase=phase, ended_at=130.0), replace(PLAN, job=job), LEDGER, 130.0, is_here=True)
    text = "\n".join(statustext.summary_lines(run, 130.0, plain))
    assert "none reported" not in text
    assert ("checkpoint  saved by the script: model-*.pt" in text) is (phase is Phase.STOPPED)
    assert "continue from the newest verified model-*.pt, if there is one" in text


def test_status_after_a_supervisor_gap_says_that_it_is_being_read() -> None:
    ledger = Ledger({Spent.TRAINING: 10.0, Spent.UNOBSERVED: 7200.0}, {}, 7210.0, 1, 0)
    live = shown(training(), 7310.0, ledger=ledger)
    assert "no supervisor for 2h00m; reading what the nodes reported meanwhile" in live
    assert re.search(r"unobserved +2h00m", live)
    ended = training(phase=Phase.SUCCEEDED, ended_at=7310.0)
    assert "reading what" not in shown(ended, 7310.0, ledger=ledger)


def test_successful_run_does_not_suggest_resume() -> None:
    done = training(phase=Phase.SUCCEEDED, ended_at=130.0, checkpoint=SAVED)
    assert "resume" not in summed(done, 130.0)


def test_ps_shows_checkpoint_and_attempt_columns_only_if_needed() -> None:
    quiet = run_rows([viewed(training())], 120.0, plain)
    busy = run_rows([viewed(training(attempts=HUNG, checkpoint=SAVED)), viewed(training())], 120.0, plain)
    assert "CHECKPOINT" not in quiet[0]
    assert "ATTEMPT" not in quiet[0]
    assert "step 120" in busy[1]
    assert busy[1].endswith("2 after a hang")
    assert busy[2].endswith("1")


@pytest.mark.parametrize(
    ("columns", "lost", "kept"),
    [
        (None, [], "the best of all"),
        (120, [], "the best of all"),
        (100, ["NAME"], "team=vision sweep=3  the best of…"),
        (80, ["NAME", "NOTE"], "30s left  20s  20s   team=vision…"),
        (66, ["NAME", "LABELS", "NOTE"], "30s left  20s  20s"),
        (60, ["NAME", "TIME", "LABELS", "NOTE"], "30s left  20s"),
        (56, ["NAME", "TARGET", "TIME", "LABELS", "NOTE"], "30s left  20s"),
        (48, ["NAME", "TARGET", "AGE", "TIME", "LABELS", "NOTE"], "30s left"),
        (20, ["NAME", "TARGET", "PROGRESS", "AGE", "TIME", "LABELS", "NOTE"], "training"),
    ],
)
def test_list_of_runs_drops_columns_on_a_narrow_terminal_and_names_them(
    columns: int | None, lost: list[str], kept: str
) -> None:
    run = viewed(training(labels={"team": "vision", "sweep": "3"}, note="the best of all\nand more"))
    head, row, *rest = run_rows([run], 120.0, plain, columns)
    assert max(len(head), len(row)) <= max(columns or 1000, 22)
    assert rest == ([f"not in {columns} columns: {', '.join(lost)}; -o yaml has all"] if lost else [])
    assert row.startswith("digits-7f3k2")
    assert row.endswith(kept)


def test_wide_letters_are_cut_by_the_columns_that_they_take() -> None:
    assert [cut("ノート", width) for width in (6, 5, 4, 1)] == ["ノート", "ノー…", "ノ…", "…"]


def restart(**changes: Any) -> Restart:
    known = Restart(2, "failure", 2.0, 1.0, 1, 57, 40, 17, Start(Origin.CHECKPOINT, 40))
    return replace(known, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "attempt 2 after a failure at step 57: 2.0s lost (1.0s of it back-off), from step 40, 17 steps redone, "
             "1 restart left"),
        ({"reason": "preemption", "wait_seconds": 0.0, "steps_redone": 0, "restarts_left": None,
          "start": Start(Origin.CHECKPOINT, 57)},
         "attempt 2 after a preemption at step 57: 2.0s lost, from step 57"),
        ({"start": Start(Origin.BEGINNING, 0)}, "from the beginning, 17 steps redone"),
        ({"start": Start(Origin.SCRIPT, 40)}, "resumed by the script at step 40, 17 steps redone"),
        ({"start": Start(Origin.SCRIPT, None, 12), "steps_redone": None},
         "resumed by the script at epoch 12, steps redone not known"),
        ({"start": Start(Origin.SCRIPT, None, None, "Resuming"), "steps_redone": None},
         "resumed by the script, steps redone not known"),
        ({"start": Start(), "steps_redone": None}, "2.0s lost (1.0s of it back-off), start step not known, 1 restart"),
        ({"reason": None, "reached_step": None, "restored_step": None, "steps_redone": 0, "restarts_left": None,
          "wait_seconds": None, "start": Start()}, "attempt 2: 2.0s lost, start step not known"),
    ],
)  # fmt: skip
def test_restart_is_shown_with_its_reason_and_lost_time(changes: dict[str, Any], said: str) -> None:
    assert said in restart_words(restart(**changes))


def test_first_and_last_of_many_restarts_are_shown() -> None:
    diagnosis = Diagnosis(Verdict("none", "all is well"))
    many = [restart(attempt=number) for number in range(2, 42)]
    lines = why_lines(Why(training(), diagnosis, tuple(many)), plain)
    assert len(lines) == 2 + 9
    assert "… 32 more" in lines[6]
    assert len(why_lines(Why(training(), diagnosis, tuple(many)), plain, verbose=1)) == 2 + 40


def test_fix_keeps_a_leading_command_and_capitalizes_a_sentence() -> None:
    for fix, shown in (
        ("windlass resume d-1 starts it again", "windlass resume d-1"),
        ("chmod +x it", "chmod +x it"),
        ("aws s3 ls", "aws s3 ls"),
        ("free some space", "Free some space"),
    ):
        verdict = Verdict("lost", "the machine was restarted during the run", fix=fix)
        said = "\n".join(why_lines(Why(training(), Diagnosis(verdict), ()), plain))
        assert "The machine was restarted" in said
        assert f"fix       {shown}" in said


# -- where results are -------------------------------------------------------------------------------------------------


def test_result_location_is_formatted_with_one_preposition(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    here = plan_local(Job(name="d", run="train.py"), tmp_path, tmp_path, "d-1")
    claim = planned(kubernetes={"results": {"size": "1GiB"}})
    wanted = [
        (planned(), "results in the pods of digits-7f3k2, until they are fetched  ·"),
        (claim, "results in claim digits-7f3k2: windlass/digits-7f3k2/output  ·"),
        (here, f"results in {here.output_dir}  ·"),
    ]
    for made, words in wanted:
        created = {"id": made.run_id, "target": made.target, "output_dir": made.output_dir}
        shown = "\n".join(plantext.plan_lines(made, plain)), eventtext.sentence(Event(1, 0.0, "created", created))
        assert words in shown[0]
        assert shown[1].endswith(words.replace("results in", "results are kept in").removesuffix("  ·"))
        assert not re.search(r"\bin in\b|to in\b", " ".join((*shown, statustext.output_words(made.output_dir))))


def test_missing_results_are_not_announced() -> None:
    words = planned().output_dir
    assert statustext.output_words(words) == words
    assert statustext.output_words(words, is_over=True) == "no outputs were fetched from the pods"
    claim = "claim results: windlass/d-1/output"
    assert statustext.output_words(claim, is_over=True) == claim


def test_a_plan_shows_setup_once_for_the_nodes_of_this_machine(tmp_path: Path) -> None:
    here = plan_local(Job(name="d", run="train.py", nodes=2, setup="./fetch"), tmp_path, tmp_path, "d-1")
    on_cluster = planned(nodes=2, setup="./fetch")
    shown = ["\n".join(plantext.plan_lines(made, plain)) for made in (here, on_cluster)]
    assert [text.count("./fetch") for text in shown] == [1, 2]


# -- events -----------------------------------------------------------------------------------------------------------

EVENTS: list[tuple[str, dict[str, Any], str]] = [
    ("created", {"id": "d-1", "name": "d", "target": "local", "output_dir": "/o"}, "d-1 begins on local"),
    ("attempt", {"number": 2, "world_size": 4, "nodes": [[0, 1], [2, 3]]}, "attempt 2 starts 4 ranks on 2 nodes"),
    ("node", {"node": 1, "pid": 7, "start_ticks": 1}, "node 1 started (process 7)"),
    ("rank", {"rank": 3, "pid": 9}, "rank 3 started (process 9)"),
    ("rank", {"rank": 3, "exit_code": 0}, "rank 3 is done"),
    ("rank", {"rank": 3, "exit_code": -9}, "rank 3 ended: SIGKILL"),
    ("phase", {"phase": "training"}, "now training"),
    ("progress", {"step": 5, "total": 1000, "loss": 0.25}, "step 5 of 1,000, loss 0.25"),
    ("collecting", {"node": 1, "files": 2, "bytes": 2048}, "node 1 copies 2 files to the output: 2.0 KiB"),
    ("code-files", {"node": 0, "folder": "/c", "copied": 2, "left": 3}, "node 0: 2 files copied to the output, 3 not"),
    ("cause", CAUSE, "root cause: rank 2 failed first"),
    ("attempt", {"number": 3, "world_size": 1, "nodes": [[0]], "reason": "node-loss"}, "after the loss of a node"),
    ("attempt", {"number": 1, "world_size": 1, "nodes": [[0]], "reason": "first"}, "starts 1 rank on 1 node"),
    ("attempt-end", {"phase": "failed"}, "the attempt failed; another one follows"),
    (
        "attempt-end",
        {"phase": "failed", "reason": "hang", "step": 57, "restarts_left": 1, "wait_seconds": 2.0},
        "the attempt failed: it hung, at step 57; another one follows after 2.0s of back-off; 1 restart left",
    ),
    (
        "attempt-end",
        {"phase": "preempted", "reason": "preemption", "restarts_left": 0, "wait_seconds": 0.0},
        "the attempt was preempted; another one follows; 0 restarts left",
    ),
    ("attempt-end", {"phase": "stopped", "reason": "stop"}, "the attempt was stopped"),
    (
        "checkpoint",
        {"action": "saved", "step": 1200, "name": "s", "bytes": 1 << 20, "seconds": 0.5, "blocked_seconds": 0.04},
        "checkpoint of step 1,200 saved (s): 1.0 MiB in 500ms, training paused for 40ms",
    ),
    ("checkpoint", {"action": "restored", "step": 40, "name": "s"}, "continues from step 40 (s)"),
    ("checkpoint", {"action": "restored", "name": "checkpoint-40"}, "continues from checkpoint-40"),
    (
        "checkpoint",
        {"action": "restored", "source": "found", "step": 40, "name": "c-40"},
        "the script is given step 40 (c-40) to continue from",
    ),
    ("checkpoint", {"action": "refused", "name": "s", "reason": "cut \x1b[2J short"}, "checkpoint s refused: cut"),
    ("checkpoint", {"action": "failed", "step": 4, "reason": "disk full"}, "step 4 could not be saved: disk full"),
    ("checkpoint", {"action": "skipped", "step": 4, "reason": "busy"}, "checkpoint of step 4 skipped: busy"),
    (
        "checkpoint",
        {"action": "missing", "find": "c-*", "folder": "/r", "near": ["d-1", "d-2"], "entries": 5},
        "in /r, where saves are expected: there are d-1, d-2 and 3 more; training begins at step 0",
    ),
    (
        "checkpoint",
        {"action": "missing", "find": "c-*", "folder": "/r", "near": [], "entries": 0, "at_end": True},
        "warning: nothing matches c-* in /r, where saves are expected: it is empty; a restart begins at step 0",
    ),
    (
        "checkpoint",
        {"action": "missing", "find": "c-*", "folder": "/r", "near": ["c-1"], "entries": 1, "older": 1},
        "where saves are expected: 1 match is there, but older than this run; training begins at step 0",
    ),
    ("caught-up", {"step": 57}, "caught up with step 57"),
    ("first-step", {"rank": 0, "step": 7001, "every": 1}, "first step reported: 7,001"),
    (
        "loss",
        {"rank": 0, "loss": "nan", "step": 61, "last": {"loss": 0.25, "step": 60}},
        "the loss of rank 0 is nan at step 61; the last finite one was 0.25, at step 60",
    ),
    ("loss", {"rank": 0, "loss": "nan"}, "the loss of rank 0 is nan"),
    (
        "checkpoint",
        {"action": "restored", "source": "log", "line": "Resuming training from out"},
        "the script resumed by itself: Resuming training from out",
    ),
    ("hang-end", {"since": 1.0, "at": 6.0, "seconds": 5.0}, "output again, after 5.0s without"),
    ("notice", {"source": "imds", "action": "terminate", "time": "8:22"}, "the instance will be terminated at 8:22"),
    ("notice", {"source": "sigterm", "action": "terminate"}, "a node received SIGTERM"),
    ("notice", {"source": "queue", "action": "evict"}, "the queue evicts all pods"),
    (
        "queue",
        {"state": "waiting", "queue": "team-a", "reason": "WaitingForQuota", "message": "500m more needed"},
        "queue team-a has not admitted the attempt: WaitingForQuota: 500m more needed",
    ),
    ("queue", {"state": "admitted", "queue": "team-a", "reason": "Admitted"}, "queue team-a has admitted the attempt"),
    ("queue", {"state": "evicted", "reason": "Preempted", "by": "Job b"}, "evicted the attempt: Preempted; for Job b"),
    ("machine", {"name": "gpus-7x2kq", "state": "asked", "pool": "gpus"}, "node gpus-7x2kq of gpus is requested"),
    (
        "machine",
        {
            "name": "gpus-7x2kq",
            "state": "registered",
            "pool": "gpus",
            "instance_type": "g5.12xlarge",
            "zone": "a",
            "capacity_type": "spot",
            "machine": "ip-7",
            "reason": "NodeNotReady",
            "message": "no network",
        },
        "node g5.12xlarge (spot, a) of gpus has joined the cluster: ip-7: NodeNotReady: no network",
    ),
    ("machine", {"name": "gpus-7x2kq", "state": "gone", "left": 0}, "it was the last one provisioned for the run"),
    ("machine", {"name": "gpus-7x2kq", "state": "kept"}, "still exists; its deletion is no longer watched"),
    ("lost-node", {"node": 2, "why": "no heartbeat"}, "node 2 is lost: no heartbeat"),
    (
        "not-started",
        {"node": 2, "why": "ended because node 1 failed"},
        "node 2 had not started: ended because node 1 failed",
    ),
    ("node-back", {"node": 2}, "node 2 takes part in the next attempt"),
    ("resume", {"reason": "asked", "nodes": 2, "from": "step-4"}, "the run is resumed on 2 nodes from step-4"),
    ("resume", {"reason": "asked"}, "the run is resumed"),
    ("end", {"phase": "failed", "exit_code": 1, "reason": "same-step-twice"}, "the same step failed twice"),
    (
        "end",
        {"phase": "failed", "exit_code": 1, "reason": "same-error-twice"},
        "its start failed twice in the same way",
    ),
    ("stop", {"reason": "asked", "now": True}, "stop: requested by the user, without a grace period"),
    ("adopted", {"observed_until": 1.0}, "supervisor restarted"),
    ("observed", {"node": 1}, "node 1 is running"),
    ("pods", {"attempt": 2, "made_for": 1}, "attempt 2 runs in the pods of attempt 1"),
    (
        "pods",
        {"attempt": 3, "made_for": 1, "pods": [[1, 0], [3, 0], [2, 0]]},
        "attempt 3 runs in the pods of attempt 1, 1 of 3 pods is new",
    ),
    ("warning", {"message": "slow disk"}, "warning: slow disk"),
    ("condition", {"type": "LoginFailed", "message": "token expired", "fix": "log in again"}, "expired; log in again"),
    ("end", {"phase": "failed", "exit_code": 3}, "ended: failed (exit code 3)"),
    ("unheard-of", {"some": "thing"}, "unheard-of some thing"),
]


@pytest.mark.parametrize(("kind", "data", "said"), EVENTS, ids=[f"{kind}-{n}" for n, (kind, *_) in enumerate(EVENTS)])
def test_every_kind_of_event_is_a_sentence(kind: str, data: dict[str, Any], said: str) -> None:
    line = eventtext.event_line(Event(1, 103.5, kind, data), 100.0, plain)
    assert line.strip().startswith("+3.5s")
    assert said in line
    assert "\x1b" not in line


def test_unreachable_target_is_shown_while_following_a_run() -> None:
    gone = Event(1, 0.0, "condition", {"type": "ServiceUnavailable", "message": "AWS does not answer"})
    assert eventtext.is_notable(gone)
    assert eventtext.notable_text(gone) == "AWS does not answer"


# -- plans ------------------------------------------------------------------------------------------------------------


def plan(num_nodes: int = 2, **changes: Any) -> Plan:
    steps: list[Step] = [FolderStep("make /out", "/out", "/checkpoints")]
    for node in range(num_nodes):
        ranks = tuple(RankSpec(2 * node + k, k, ("python", "a b.py"), {"RANK": str(2 * node + k)}) for k in (0, 1))
        spec = NodeSpec(node, "a b.py", "python", "/code", {"A": "x y", "NODE": str(node)}, ranks, 30.0)
        steps.append(NodeStep(f"start node {node}, ranks {2 * node}–{2 * node + 1}: python a", spec))
    policy = Policy(60.0, 30.0, None, 2, ("failure",), num_nodes)
    made = Plan("d-xxxxx", "d", "local", "local", "/out", num_nodes, 2, policy, {}, tuple(steps))
    return replace(made, **changes)


def test_loss_reported_by_a_pod_cannot_move_the_cursor_of_the_live_view() -> None:
    status = replace(training(), progress=Progress.from_json({"step": 1, "loss": "\x1b[2J", "epoch": "\x1b[1;1H"}))
    assert "\x1b" not in "".join(statustext.advance_lines(viewed(status), 120.0))


def test_plan_shows_each_node_with_ranks_and_a_shell_command() -> None:
    text = "\n".join(plantext.plan_lines(plan(), plain))
    assert "d on local: 2 nodes × 2 ranks" in text
    assert "start node 1, ranks 2–3" in text
    assert "ranks 2–3  python 'a b.py'" in text
    assert "at most 2 restarts" in text
    assert "RANK=" not in text


def test_verbose_plan_shows_the_environment_once_and_what_differs_beside_each_rank() -> None:
    text = "\n".join(plantext.plan_lines(plan(), plain, verbose=1))
    assert text.count("A='x y'") == 1
    assert "NODE=1" in text
    assert "rank 3  RANK=3" in text


def test_a_plan_of_many_nodes_shows_the_first_ones() -> None:
    lines = plantext.plan_lines(plan(500), plain)
    assert len(lines) < 60
    assert any("492 steps more" in line for line in lines)
    assert len(plantext.plan_lines(plan(500), plain, verbose=1)) > 1000


def test_blocking_problems_come_first_with_their_fix() -> None:
    notes = (Note("slow", "it is slow", "wait"), Note("gone", "it is gone", "find it", blocks=True))
    text = "\n".join(plantext.plan_lines(plan(notes=notes), plain))
    assert text.index("error:   it is gone") < text.index("warning: it is slow")
    assert "→ find it" in text
    assert "1 error: this plan cannot be run" in text


# -- logs on a terminal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"plain\n", "plain"),
        (b"\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m\x1b[0m"),
        (b" 10%|#   |\r 99%|####|\r\n", " 99%|####|"),
        (b"\x1b[2J\x1b[Hcleared\n", "cleared\x1b[0m"),
        (b"\x1b]0;title\x07after\n", "after\x1b[0m"),
        (b"a\x07\x08b\n", "ab"),
        (b"tab\there\n", "tab\there"),
        (b"\xff\xfe\n", "��"),
        (b"end\x1b\n", "end\x1b[0m"),
    ],
)
def test_rank_output_cannot_move_the_cursor(data: bytes, said: str) -> None:
    assert terminal_lines(LogBlock(1, 1, 3, data)) == f"\x1b[33m[3]\x1b[0m {said}\n"


def test_each_line_of_a_block_starts_with_its_rank() -> None:
    text = terminal_lines(LogBlock(1, 1, 0, b"a\nb\nunended"))
    assert text.count("[0]") == text.count("\n") == 3


# -- hands and pace ---------------------------------------------------------------------------------------------------


def test_ctrl_c_asks_then_stops_then_kills_then_detaches() -> None:
    choice, seen = Choice.WATCH, []
    for _ in range(4):
        choice = AFTER_INTERRUPT[choice]
        seen.append(choice)
    assert seen == [Choice.ASK, Choice.STOP, Choice.KILL, Choice.LEAVE]


def test_enter_and_escape_continue_watching() -> None:
    assert {AFTER_KEY[key] for key in ("c", "\n", "\x1b")} == {Choice.WATCH}
    assert AFTER_KEY["d"] is Choice.LEAVE
    assert AFTER_KEY["s"] is Choice.STOP


def test_pace_is_measured_over_the_last_half_minute() -> None:
    pace = Pace()
    assert pace.note(Progress.from_json({"step": 0, "at": 0.0})) is None
    rates = [pace.note(Progress.from_json({"step": 10 * second, "at": float(second)})) for second in range(1, 60)]
    rates += [pace.note(Progress.from_json({"step": 590 + second, "at": 59.0 + second})) for second in range(1, 62)]
    assert rates[0] == pytest.approx(10.0)
    assert rates[-1] == pytest.approx(1.0)


def test_progress_in_a_pipe_is_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    view = PlainView("digits-7f3k2", viewed, 2, 2)
    for _ in range(250):
        clock[0] += 0.1
        view.state(training(), 10.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["digits-7f3k2: 25%, 100/400, 30s left, loss 0.5, 10 steps/s"] * 2


def test_an_attempt_of_fewer_nodes_is_shown_with_its_own_size(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView("digits-7f3k2", viewed, 4, 2)
    for world_size in (4, 2):
        view.event(Event(1, 0.0, "attempt", {"number": 1, "world_size": world_size}))
        view.event(Event(2, 0.0, "phase", {"phase": "training"}))
    said = [line for line in capsys.readouterr().err.splitlines() if "training" in line]
    assert [line.partition("training ")[2] for line in said] == ["(2 nodes × 2 ranks)", "(1 node × 2 ranks)"]
    plan = replace(PLAN, num_nodes=2)
    out = io.StringIO()
    Console(file=out, width=80).print(panel(run_of(training(), plan, LEDGER, 120.0, is_here=True), 120.0))
    assert "1 node × 2 ranks on local" in out.getvalue()


def test_pace_restarts_when_steps_restart() -> None:
    pace = Pace()
    for step in range(5):
        pace.note(Progress.from_json({"step": step, "at": float(step)}))
    assert pace.note(Progress.from_json({"step": 1, "at": 100.0})) is None
    assert pace.note(Progress.from_json({})) is None


def test_stopped_service_is_not_offered_to_be_resumed() -> None:
    run = training(phase=Phase.STOPPED, ended_at=130.0)
    service = replace(run, about=replace(run.about, labels={SERVICE_LABEL: "deployment"}))
    assert ("windlass resume" in shown(run), "windlass resume" in shown(service)) == (True, False)
