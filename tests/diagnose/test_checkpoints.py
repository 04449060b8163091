"""`why` and `status` report checkpoints that are damaged or unreadable."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.diagnose.test_rules import TRACE, failed, seen

from windlass.cli.render import run_rows
from windlass.cli.statustext import status_lines, summary_lines
from windlass.diagnose.diagnose import diagnose
from windlass.plan.plan import NO_PLAN
from windlass.runs.ledger import Ledger
from windlass.runs.phase import Phase
from windlass.train.checkpoint.faults import Fault, Problem
from windlass.train.checkpoint.restore import unreadable
from windlass.views.run import run_of

Told = list[tuple[str, dict[str, Any]]]
SAVED: Told = [("checkpoint", {"action": "saved", "step": step, "name": f"step-{step}"}) for step in (20, 40)]
AGAIN: Told = [
    *SAVED,
    ("attempt-end", {"phase": "failed"}),
    ("attempt", {"number": 2, "world_size": 1, "nodes": [[0]]}),
]


def refused(step: int) -> tuple[str, dict[str, Any]]:
    return (
        "checkpoint",
        {"action": "refused", "step": step, "name": f"step-{step}", "reason": "rank-0.json is damaged"},
    )


NONE = ("checkpoint", {"action": "none-verified", "step": 0, "reason": "all 2 checkpoints in /ck are damaged"})
RESTORED = ("checkpoint", {"action": "restored", "step": 20, "name": "step-20"})


def test_a_start_at_step_0_though_there_were_checkpoints_is_what_is_wrong() -> None:
    verdict = diagnose(seen(Phase.TRAINING, more=[*AGAIN, refused(40), refused(20), NONE])).verdict
    assert verdict.code == "checkpoint-damaged"
    assert verdict.summary == (
        "2 checkpoints were not verified; no checkpoint is verified, and training began at step 0"
    )
    assert verdict.evidence == ("step-40: rank-0.json is damaged", "step-20: rank-0.json is damaged")


def test_restore_of_older_checkpoint_is_reported() -> None:
    verdict = diagnose(seen(Phase.TRAINING, more=[*AGAIN, refused(40), RESTORED])).verdict
    assert (verdict.code, verdict.summary) == (
        "checkpoint-damaged",
        "the checkpoint of step 40 was not verified; training went on from step 20",
    )


def test_a_later_attempt_and_the_end_of_the_run_are_not_about_them() -> None:
    later = ("attempt", {"number": 3, "world_size": 1, "nodes": [[0]]})
    assert diagnose(seen(Phase.TRAINING, more=[*AGAIN, refused(40), RESTORED, later])).verdict.code == "none"
    assert diagnose(seen(Phase.SUCCEEDED, more=[*AGAIN, refused(40), RESTORED])).verdict.code == "none"
    raised = failed(TRACE + "KeyError: 'w'\n", more=[*AGAIN, refused(40), RESTORED])
    assert [raised.verdict.code, *(other.code for other in raised.others)] == ["exception", "checkpoint-damaged"]


def test_the_status_names_no_damaged_checkpoint_as_the_one_to_go_on_from() -> None:
    text = shown(refused(40), refused(20), NONE)
    assert "not verified: rank-0.json is damaged" in text
    assert re.search(r"windlass resume r-1 +start again", text)
    assert re.search(r"windlass resume r-1 +continue from step 20", shown(refused(40), RESTORED))
    assert re.search(r"windlass resume r-1 +continue from step 40", shown(refused(40), refused(20), NONE, *SAVED))


FAILED = [("checkpoint", {"action": "failed", "step": step, "reason": f"No space {step}"}) for step in (50, 60, 68)]


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.TRAINING])
def test_saves_that_failed_last_are_what_is_wrong_with_a_run_that_goes_well(phase: Phase) -> None:
    verdict = diagnose(seen(phase, more=[*SAVED, *FAILED])).verdict
    assert verdict.code == "checkpoints-not-saved"
    assert "no checkpoint was saved after step 40: the last 3 saves failed" in verdict.summary
    assert verdict.summary.startswith("the run succeeded, but") is (phase is Phase.SUCCEEDED)
    none = diagnose(seen(phase, more=FAILED)).verdict
    assert "no checkpoint was saved: the last 3" in none.summary


def test_a_save_that_succeeds_ends_that_and_it_is_no_cause_of_a_failure() -> None:
    assert diagnose(seen(Phase.SUCCEEDED, more=[*FAILED, *SAVED])).verdict.code == "none"
    assert diagnose(seen(Phase.FAILED, more=FAILED)).verdict.code == "unknown"
    raised = failed(TRACE + "KeyError: 'w'\n", more=FAILED)
    assert (raised.verdict.code, raised.others) == ("exception", ())


def test_status_summary_and_list_name_the_steps_that_are_in_no_checkpoint() -> None:
    words = "no checkpoint was saved after step 40: the last 3 saves failed, the newest at step 68: No space 68"
    status = seen(Phase.SUCCEEDED, more=[*SAVED, *FAILED]).status
    run = run_of(status, NO_PLAN, Ledger({}, {}, 0.0, 1, 0), 200.0, is_here=True)
    assert words in "\n".join(status_lines(run, 200.0, plain))
    assert words in "\n".join(summary_lines(run, 200.0, plain))
    assert "checkpoints-not-saved" in "\n".join(run_rows([run], 200.0, plain))
    one = seen(Phase.SUCCEEDED, more=FAILED[:1]).status
    assert one.warnings[0].message == "no checkpoint was saved: the last save failed, at step 50: No space 50"


def plain(text: str, *_: Any, **__: Any) -> str:
    return text


def shown(*more: tuple[str, dict[str, Any]]) -> str:
    """Returns the `status` output for a failed run with these events."""
    status = seen(Phase.FAILED, more=[*AGAIN, *more]).status
    run = run_of(status, NO_PLAN, Ledger({}, {}, 0.0, 1, 0), 200.0, is_here=True)
    return "\n".join(status_lines(run, 200.0, plain))


@pytest.mark.parametrize("reason", ["Stale file handle (ESTALE)", "Too many open files (EMFILE)", "Permission denied"])
def test_a_checkpoint_that_cannot_be_read_has_a_code_of_its_own(reason: str) -> None:
    path = "/ck/step-00000040-a1f3c1"
    error = unreadable(path, [Problem(Fault.UNREADABLE, f"{path}/manifest.json: {reason}")])
    said = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    verdict = failed(TRACE + said + "\n").verdict
    assert verdict.code == "checkpoint-unreadable"
    assert verdict.summary.startswith(f"the script could not read {path}: {path}/manifest.json: {reason}")
    assert "windlass resume" in verdict.fix
    assert "file system is mounted" in verdict.fix


def test_a_store_that_cannot_be_read_is_no_file_system() -> None:
    error = unreadable("s3://nowhere/ck", [Problem(Fault.UNREADABLE, "s3://nowhere/: there is no bucket nowhere")])
    verdict = failed(f"{TRACE}{type(error).__module__}.{type(error).__qualname__}: {error}\n").verdict
    assert verdict.code == "checkpoint-unreadable"
    assert verdict.summary.startswith("the script could not read s3://nowhere/ck: s3://nowhere/: there is no bucket")
    assert verdict.fix.startswith("check the address, the credentials and the network; ")


LIBRARY = '  File "/env/lib/python3.11/site-packages/torch/serialization.py", line 7, in load\n'
LOAD = f"{TRACE}{LIBRARY}OSError: [Errno 22] Invalid argument\n"
GIVEN = ("checkpoint", {"action": "restored", "source": "found", "step": 20, "name": "step-20"})


def test_a_checkpoint_that_the_script_picked_and_that_is_cut_short_is_named_with_what_to_move() -> None:
    facts = {"damaged_files": [{"path": "/ck/step 40/model.pt", "problem": "it is empty"}]}
    found = failed(LOAD, host=facts, more=[*AGAIN, GIVEN], reason="same-step-twice").verdict
    assert (found.code, found.rank) == ("checkpoint-damaged", 0)
    assert (
        found.summary == "the script failed to load a file at train.py:7, and step 40/model.pt is damaged: it is empty"
    )
    assert "mv '/ck/step 40' '/ck/step 40.damaged'; then windlass resume r-1." in found.fix
    assert "checkpoint.find has given step-20 to the script: see whether it loads that one" in found.evidence


@pytest.mark.parametrize(
    ("path", "code", "fix"),
    [
        ("/ck/last.pt", "checkpoint-damaged", "mv /ck/last.pt /ck/last.pt.damaged"),
        ("/exp3/last.pt", "checkpoint-damaged", "mv /exp3/last.pt /exp3/last.pt.damaged"),
        ("/runs/20/model.pt", "checkpoint-damaged", "mv /runs/20 /runs/20.damaged"),
        ("/data/shard-3.npz", "file-corrupt", "fetch or write /data/shard-3.npz again"),
    ],
)
def test_what_to_do_about_a_damaged_file_depends_on_what_it_is(path: str, code: str, fix: str) -> None:
    found = failed(LOAD, host={"damaged_files": [{"path": path, "problem": "it is empty"}]}).verdict
    assert (found.code, fix in found.fix) == (code, True)


def test_a_checkpoint_of_an_unknown_step_is_named_and_has_no_step() -> None:
    refused = ("checkpoint", {"action": "refused", "name": "last.pt", "reason": "it is empty"})
    restored = ("checkpoint", {"action": "restored", "source": "found", "name": "best.pt"})
    verdict = diagnose(seen(Phase.TRAINING, more=[*AGAIN, refused, restored])).verdict
    assert verdict.summary == "last.pt was not verified; the script was given best.pt"
