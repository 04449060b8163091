"""Events fold into warnings of a run, every view shows them, and the documentation lists their kinds."""

from __future__ import annotations

from pathlib import Path

from windlass.cli.render import run_rows
from windlass.cli.statustext import status_lines, summary_lines
from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.observations import Observations
from windlass.plan.plan import NO_PLAN
from windlass.runs.events import (
    AttemptStarted,
    CheckpointChanged,
    Created,
    Entry,
    LossNotFinite,
    RunEnded,
    RunResumed,
    Warned,
    entry_of,
)
from windlass.runs.ledger import Ledger
from windlass.runs.phase import Phase
from windlass.runs.record import Status, fold
from windlass.runs.store import _dump, _load
from windlass.runs.warnings import KINDS, RunWarning
from windlass.views.run import run_of
from windlass.views.serialise import to_json

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "warnings.md"
ALONE = Warned("each trained alone", code="ranks-alone", fix="make a group", ranks=(1, 0))


def status_after(*entries: Entry) -> Status:
    """Returns the status of a run with these events."""
    began = [Created("r-1", "r", "local", "/o"), AttemptStarted(1, 2)]
    return fold(entry.event(number, float(number)) for number, entry in enumerate([*began, *entries], 1))


def plain(text: str, *_: object, **__: object) -> str:
    return text


def test_a_warning_with_a_code_is_in_the_status_and_one_without_is_an_event_alone() -> None:
    status = status_after(ALONE, Warned("no spare could be created"))
    assert status.warnings == (RunWarning("ranks-alone", "each trained alone", "make a group", (0, 1), 1),)
    assert _load(_dump(status)) == status


def test_one_kind_is_one_warning_which_counts() -> None:
    again = Warned("each trained alone", code="ranks-alone", ranks=(3,))
    [warning] = status_after(ALONE, again).warnings
    assert (warning.ranks, warning.times, warning.fix) == ((0, 1, 3), 2, "")


def test_warning_ends_when_its_condition_ends() -> None:
    unsaved, saved = CheckpointChanged("failed", 20, reason="No space"), CheckpointChanged("saved", 30)
    missing = CheckpointChanged("missing", find="ck-*", folder="/ck")
    end = RunEnded(Phase.FAILED, exit_code=1)

    def codes(*entries: Entry) -> list[str]:
        return [one.code for one in status_after(*entries).warnings]

    assert codes(ALONE, unsaved, missing) == ["ranks-alone", "checkpoints-not-saved", "checkpoint-not-found"]
    assert codes(ALONE, unsaved, missing, saved) == ["ranks-alone"]
    assert codes(missing, CheckpointChanged("restored", 10)) == []
    assert codes(ALONE, AttemptStarted(2, 2)) == []
    assert codes(Warned("x", code="model-away"), unsaved, end, RunResumed()) == ["checkpoints-not-saved"]


def test_a_loss_that_is_finite_again_is_no_warning_and_one_of_another_rank_is_no_proof() -> None:
    bad = LossNotFinite(0, "nan", 40)
    assert status_after(bad).warnings[0].message == "the loss became NaN at step 40"
    again = entry_of("progress", {"rank": 0, "step": 41, "loss": 0.5})
    other = entry_of("progress", {"rank": 1, "step": 41, "loss": 0.5})
    still = entry_of("progress", {"rank": 0, "step": 41, "loss": "inf"})
    assert [len(status_after(bad, one).warnings) for one in (again, other, still)] == [0, 1, 1]
    assert status_after(bad, AttemptStarted(2, 2)).warnings == ()


def test_refused_checkpoints_that_sent_training_back_to_the_beginning_stay_a_warning() -> None:
    refused = CheckpointChanged("none-verified", 0, reason="all 2 checkpoints in /ck are damaged")
    [warning] = status_after(refused, CheckpointChanged("saved", 30), RunEnded(Phase.SUCCEEDED)).warnings
    assert warning.code == "checkpoint-damaged"
    assert warning.message == "no checkpoint was verified, and training began at step 0: " + refused.reason


def test_every_view_shows_every_warning_in_full_and_the_list_its_code() -> None:
    status = status_after(ALONE, Warned("the model is there", code="model-away"), RunEnded(Phase.SUCCEEDED))
    run = run_of(status, NO_PLAN, Ledger({}, {}, 0.0, 1, 0), 200.0, is_here=True)
    for lines in (status_lines(run, 200.0, plain), summary_lines(run, 200.0, plain)):
        text = "\n".join(lines)
        assert "each trained alone (ranks 0–1)" in text
        assert "fix: make a group" in text
        assert "the model is there" in text
    assert "ranks-alone +1" in "\n".join(run_rows([run], 200.0, plain))
    assert to_json(run)["warnings"][1] == {
        "code": "model-away",
        "message": "the model is there",
        "fix": "",
        "ranks": [],
        "attempt": 1,
        "times": 1,
    }


def test_the_first_warning_is_the_verdict_on_a_run_that_did_not_fail() -> None:
    verdict = diagnose(Observations(status_after(ALONE, RunEnded(Phase.SUCCEEDED)))).verdict
    assert (verdict.code, verdict.summary) == ("ranks-alone", "the run succeeded, but each trained alone")
    assert (verdict.rank, verdict.fix) == (None, "make a group")
    assert diagnose(Observations(status_after(ALONE))).verdict.summary == "each trained alone"
    assert diagnose(Observations(status_after(ALONE, RunEnded(Phase.STOPPED)))).verdict.code == "stopped"


def test_a_pattern_without_a_match_names_where_saves_are_expected_and_what_was_saved_elsewhere() -> None:
    missing = CheckpointChanged(
        "missing", find="ck-*", folder="/r/checkpoints", absent=True, saved="out/ck-5.pt", at_end=True
    )
    [warning] = status_after(missing).warnings
    assert warning.message == (
        "nothing matches ck-* in /r/checkpoints, where saves are expected: it does not exist; "
        "a restart begins at step 0"
    )
    assert warning.fix == (
        "let the script save in that folder, or correct the job's checkpoint.find; "
        "the newest saved state is out/ck-5.pt"
    )


def test_the_page_lists_every_kind_as_the_code_has_it() -> None:
    assert "".join(f"| `{code}` | {what} |\n" for code, what in KINDS.items()) in PAGE.read_text()
