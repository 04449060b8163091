"""The restart policy decides in one place, for every engine, what follows an attempt."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.plan.plan import Policy
from windlass.runs.events import RootCause, entry_of
from windlass.runs.history import LONG_SECONDS, History
from windlass.runs.phase import Phase
from windlass.runs.restart_policy import Outcome, outcome, wait_seconds

POLICY = Policy(60.0, 0.0, None, 2, ("failure", "preemption", "hang"), 1)
CAUSE = RootCause("exit code 3", rank=1, exit_code=3)
TERMINATED = RootCause("ended by SIGTERM", rank=0, exit_code=-15, signal="SIGTERM")


def raised(line: str) -> RootCause:
    return RootCause(line, rank=0, exit_code=1, traceback=f"Traceback …\n{line}")


OUTSIDE = raised("OSError: [Errno 116] Stale file handle: '/data/x'").replace(transient=True)


def died(name: str) -> RootCause:
    return RootCause(name, rank=0, exit_code=-11, signal=name)


def played(*attempts: tuple[RootCause | None, int | None], restored: int | None = None) -> History:
    """Returns a history of attempts, each with its root cause and the step it reached; the last one is in progress."""
    history = History()
    left = POLICY.max_restarts
    for number, (cause, step) in enumerate(attempts, 1):
        history.take(entry_of("attempt", {"number": number}))
        if restored is not None and number > 1:
            history.take(entry_of("checkpoint", {"action": "restored", "step": restored}))
        if step is not None:
            history.reach(step)
        if number == len(attempts):
            break
        found = outcome(None, cause, history, POLICY.replace(max_restarts=99))
        left -= 1
        history.take(cause or RootCause(""))
        history.take(found.attempt_end().replace(restarts_left=max(left, 0)))
    return history


@pytest.mark.parametrize(
    ("ended_by", "cause", "attempts", "phase", "exit_code"),
    [
        (None, None, 1, Phase.SUCCEEDED, 0),
        ("stop", None, 1, Phase.STOPPED, 0),
        ("stop", CAUSE, 1, Phase.STOPPED, 3),
        ("timeout", CAUSE, 1, Phase.FAILED, 124),
        ("failure", CAUSE, 1, None, 3),
        ("failure", CAUSE, 2, None, 3),
        ("failure", CAUSE, 3, Phase.FAILED, 3),
        ("failure", CAUSE.replace(node_lost=0), 1, Phase.FAILED, 3),
        ("preemption", TERMINATED, 2, None, -15),
        ("preemption", TERMINATED, 3, Phase.STOPPED, -15),
        ("preemption", None, 1, None, 0),
        (None, TERMINATED, 1, None, -15),
        (None, TERMINATED, 3, Phase.FAILED, -15),
        ("hang", CAUSE, 1, None, 3),
        ("hang", None, 1, Phase.SUCCEEDED, 0),
    ],
)
def test_an_attempt_leads_to_one_outcome(
    ended_by: str | None, cause: RootCause | None, attempts: int, phase: Phase | None, exit_code: int
) -> None:
    found = outcome(ended_by, cause, played(*[(CAUSE, None)] * attempts), POLICY)
    assert (found.phase, found.exit_code) == (phase, exit_code)


def test_a_stop_leaves_nothing_to_explain() -> None:
    assert outcome("stop", CAUSE, History(), POLICY) == Outcome(Phase.STOPPED, 3, reason="stop")


def test_unobserved_end_is_a_lost_node_or_a_lost_run() -> None:
    lost = RootCause("gone")
    assert outcome(None, lost, History(), POLICY, nothing_left=True).phase is Phase.LOST
    policy = POLICY.replace(restart_on=("node-loss",))
    found = outcome(None, lost, History(), policy, nothing_left=True)
    assert (found.phase, found.reason, found.restarts_left) == (None, "node-loss", 1)


def test_resize_uses_up_no_restart() -> None:
    history = played((CAUSE, None), (CAUSE, None), (CAUSE, None))
    found = outcome("resize", TERMINATED, history, POLICY)
    assert (found.phase, found.restarts_left, found.wait_seconds) == (None, 0, 0.0)
    found = outcome(None, CAUSE.replace(node_lost=1), history, POLICY, is_free=True)
    assert (found.phase, found.reason, found.restarts_left) == (None, "node-loss", 0)


@pytest.mark.parametrize(
    ("policy", "phase"),
    [
        ({"max_restarts": 1, "restart_on": ["preemption"]}, None),
        ({"max_restarts": 0, "restart_on": ["preemption"]}, Phase.STOPPED),
        ({"max_restarts": 1, "restart_on": ["failure"]}, Phase.STOPPED),
    ],
)
def test_a_planned_eviction_follows_the_policy_and_uses_up_no_restart(policy: dict[str, Any], phase: Phase) -> None:
    history = played((CAUSE, None), (CAUSE, None), (CAUSE, None))
    assert history.restarts_left == 0
    found = outcome("preemption", TERMINATED, history, POLICY.replace(**policy), is_planned=True)
    assert (found.phase, found.reason, found.restarts_left) == (phase, "preemption", 0)
    assert outcome("preemption", TERMINATED, history, POLICY.replace(**policy)).phase is Phase.STOPPED


def test_planned_evictions_without_progress_are_limited() -> None:
    left = []
    for before in range(9):
        history = played(*[(CAUSE, 7)] * before)
        history.restarts_left = 3
        left.append(outcome("preemption", TERMINATED, history, POLICY, is_planned=True).restarts_left)
    assert left == [3, 3, 3, 3, 3, 3, 3, 2, 2]  # the first attempt reaches step 7, and none gets further


# -- the same step twice ----------------------------------------------------------------------------------------------


def end_of(history: History, cause: RootCause) -> str | None:
    return outcome(None, cause, history, POLICY).reason


def test_same_failure_at_same_step_is_not_retried_again() -> None:
    found = outcome(None, raised("ValueError: x"), played((raised("ValueError: x"), 7), (None, 7)), POLICY)
    assert (found.phase, found.reason, found.step) == (Phase.FAILED, "same-step-twice", 7)
    assert end_of(played((died("SIGSEGV"), 7), (None, 7)), died("SIGSEGV")) == "same-step-twice"


def test_failure_after_checkpoint_counts_at_step_of_checkpoint() -> None:
    history = played((raised("ValueError: x"), 20), (None, None), restored=20)
    assert end_of(history, raised("ValueError: x")) == "same-step-twice"


@pytest.mark.parametrize(
    ("before", "step", "cause"),
    [
        ([(raised("ValueError: x"), 7)], 8, raised("ValueError: x")),
        ([(raised("ValueError: x"), 7)], 7, raised("ValueError: y")),
        ([(died("SIGSEGV"), 7)], 7, died("SIGBUS")),
        ([(died("SIGKILL"), 7)], 7, died("SIGKILL")),
        ([(CAUSE, 7)], 7, CAUSE),
        ([(raised("ValueError: x"), 7), (died("SIGKILL"), 9)], 7, raised("ValueError: x")),
        (
            [(raised("RuntimeError: closed by peer").replace(blames_peer=True), 7)],
            7,
            raised("RuntimeError: closed by peer").replace(blames_peer=True),
        ),
        ([(OUTSIDE, 7)], 7, OUTSIDE),
    ],
)
def test_different_failure_is_retried(
    before: list[tuple[RootCause, int | None]], step: int | None, cause: RootCause
) -> None:
    assert end_of(played(*before, (None, step)), cause) == "failure"


USAGE = "exit code 2; its last line: train.py: error: unrecognized arguments: fit"


@pytest.mark.parametrize(
    "cause",
    [
        raised("ModuleNotFoundError: No module named 'timm'"),
        raised("AssertionError"),
        raised("RuntimeError: saved by 2 data-parallel ranks, loaded by 1"),
        raised("SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"),
        RootCause(USAGE, rank=0, exit_code=2),
    ],
)
def test_same_failure_at_start_is_not_retried_again(cause: RootCause) -> None:
    found = outcome(None, cause, played((cause, None), (None, None)), POLICY)
    assert (found.phase, found.reason) == (Phase.FAILED, "same-error-twice")
    between = played((cause, None), (died("SIGTERM"), None), (None, None))
    between.restarts_left = 5
    assert end_of(between, cause) == "same-error-twice"
    assert end_of(played((cause, None), (None, None)), cause.replace(rank=3)) == "same-error-twice"


def test_same_failure_after_restore_of_same_file_is_not_retried_again() -> None:
    history = played((raised("EOFError: x"), None))
    for number, line in ((1, "loading a"), (2, "loading b"), (3, "loading b"), (4, "")):
        if line:
            history.take(entry_of("checkpoint", {"action": "restored", "source": "log", "line": line}))
        found = end_of(history, raised("EOFError: x"))
        assert found == ("same-error-twice" if number == 3 else "failure"), number
        history.take(raised("EOFError: x"))
        history.take(entry_of("attempt-end", {"reason": "failure", "restarts_left": 5}))
        history.take(entry_of("attempt", {"number": number + 1}))


def test_varying_parts_of_message_do_not_make_a_different_failure() -> None:
    first, second = (
        RootCause(f"exit code 1; its last line: {line}", rank=0, exit_code=1)
        for line in ("12:00:01,7 [pid 71] no config at 0x7f01", "12:00:02,9 [pid 82] no config at 0x7fa0")
    )
    assert end_of(played((first, None), (None, None)), second) == "same-error-twice"


def placed(line: int) -> RootCause:
    return raised("AssertionError").replace(
        traceback=f'Traceback …\n  File "/job/train.py", line {line}, in f\nAssertionError'
    )


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (placed(7), placed(8)),
        (RootCause(USAGE, rank=0, exit_code=2), RootCause(USAGE, rank=0, exit_code=3)),
        (CAUSE, CAUSE),  # the attempt has reported nothing
        (RootCause("exit code 3; no output", rank=0, exit_code=3),) * 2,
        (died("SIGSEGV"), died("SIGSEGV")),
        (raised("ConnectionError: x").replace(transient=True),) * 2,
        (raised("RuntimeError: x").replace(blames_peer=True),) * 2,
        (raised("RuntimeError: x").replace(node_lost=1),) * 2,
    ],
)
def test_a_failure_at_the_start_that_may_be_gone_or_is_another_one_is_tried_again(
    before: RootCause, now: RootCause
) -> None:
    assert end_of(played((before, None), (None, None)), now) in ("failure", "node-loss")


@pytest.mark.parametrize("said", [{"loss": 0.5}, {"epoch": 1}, {"message": "reads 7 shards"}])
def test_a_script_that_reports_its_training_without_steps_has_started(said: dict[str, Any]) -> None:
    history = played((raised("ValueError: x"), None), (None, None))
    history.take(entry_of("progress", said))
    assert end_of(history, raised("ValueError: x")) == ("same-error-twice" if "message" in said else "failure")


def test_an_error_of_the_program_after_a_longer_attempt_is_tried_again() -> None:
    error = raised("ImportError: x")
    history = played((error, None), (died("SIGTERM"), 5000), (None, None))
    history.restarts_left = 5
    assert end_of(history, error) == "failure"


def test_an_error_of_the_program_after_the_last_restart_ends_the_run_for_that() -> None:
    history = played((raised("ImportError: x"), None), (None, None))
    history.restarts_left = 0
    assert end_of(history, raised("ImportError: x")) == "failure"


def test_steps_that_begin_anew_are_no_failed_start() -> None:
    history = played((raised("NameError: x"), None), (None, 7))
    history.reach(3)
    assert end_of(history, raised("NameError: x")) == "failure"


@pytest.mark.parametrize(
    ("before", "step", "error"),
    [
        ([], None, "ImportError: x"),
        ([("ImportError: x", None)], None, "ImportError: y"),
        ([("ImportError: x", 7)], None, "ImportError: x"),
        ([("ImportError: x", None), ("ValueError: x", None)], None, "ImportError: x"),
    ],
)
def test_other_errors_at_the_start_are_tried_again(
    before: list[tuple[str, int | None]], step: int | None, error: str
) -> None:
    history = played(*((raised(words), reached) for words, reached in before), (None, step))
    assert end_of(history, raised(error)) == "failure"


def test_an_error_of_the_program_after_ten_minutes_is_tried_again() -> None:
    history = played((raised("ImportError: x"), None), (None, None))
    found = outcome(None, raised("ImportError: x"), history, POLICY, at=LONG_SECONDS)
    assert found.reason == "failure"


def test_external_kill_between_equal_failures_changes_nothing() -> None:
    history = played((raised("ValueError: x"), 7), (died("SIGKILL"), 5), (None, 7))
    assert end_of(history, raised("ValueError: x")) == "same-step-twice"


def test_steps_that_begin_anew_are_no_step_that_is_known() -> None:
    history = played((raised("ValueError: x"), 7), (None, 7))
    history.reach(3)
    assert end_of(history, raised("ValueError: x")) == "failure"


def test_resume_resets_repeated_failures() -> None:
    history = played((raised("ValueError: x"), 7), (None, None))
    history.take(entry_of("resume", {"reason": "asked"}))
    history.take(entry_of("attempt", {"number": 3}))
    history.reach(7)
    found = outcome(None, raised("ValueError: x"), history, POLICY)
    assert (found.reason, found.restarts_left) == ("failure", 1)


# -- back-off ---------------------------------------------------------------------------------------------------------


def waits(*steps: int | None) -> list[float]:
    """Returns the back-off after each of these attempts."""
    return [
        wait_seconds([*history.ended, history.ending("failure", CAUSE)])
        for number in range(1, len(steps) + 1)
        for history in [played(*((CAUSE, step) for step in steps[:number]))]
    ]


def test_restarts_without_progress_are_delayed_increasingly() -> None:
    assert waits(*[None] * 10) == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert waits(5, 5, 5, 5) == [0, 0, 1, 2]


def test_progress_makes_the_next_restart_immediate() -> None:
    assert waits(None, None, 5, 5, 5, 6) == [0, 1, 0, 0, 1, 0]


def test_a_checkpoint_is_progress() -> None:
    history = played((CAUSE, 9), (CAUSE, 3), (CAUSE, 3))
    history.take(entry_of("checkpoint", {"action": "saved", "step": 3, "name": "a"}))
    assert wait_seconds([*history.ended, history.ending("failure", CAUSE)]) == 0


def lived(*seconds: float, step: int | None = None) -> History:
    """Returns a history of attempts with these durations; the last one is in progress since 0 s."""
    history, now = History(), 1000.0
    for number, life in enumerate((*seconds, 0.0), 1):
        history.take(entry_of("attempt", {"number": number}), now)
        if step is not None:
            history.reach(step)
        now += life
        if number <= len(seconds):
            history.take(entry_of("attempt-end", {"reason": "failure", "step": step}), now)
    return history


def test_long_attempt_without_steps_counts_as_progress() -> None:
    def wait(history: History, life: float) -> float:
        at = history.now.began_at + life
        return wait_seconds([*history.ended, history.ending("failure", CAUSE, at)])

    assert wait(lived(5, 5, 5), 5) == 4
    assert wait(lived(5, 5, 5), 600) == 0
    assert [wait(lived(5, 5, 3600), 5), wait(lived(5, 5, 3600, 5), 5)] == [0, 1]
    assert wait(lived(5, 5, 3600, step=7), 3600) == 2, "its steps say that it came no further"


def test_an_attempt_whose_end_no_supervisor_saw_lived_until_its_last_sign_of_life() -> None:
    history = History()
    for number in range(3):
        history.take(entry_of("attempt", {"number": number + 1}), 1000.0)
        history.take(entry_of("attempt-end", {"reason": "node-loss", "died_at": 1001.0}), 99_000.0)
    assert [ended.gained for ended in history.ended] == [False] * 3


# -- making up for what was lost --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("restored", "steps", "caught_up_at"),
    [
        (6, [7, 8, 9, 10], 9),
        (6, [12], 12),  # progress is reported several times per second
        (9, [10, 11], None),
        (None, [1, 5, 9, 10], 9),
        (None, [10, 11], None),  # the script restored by itself
        (6, [7, 8], None),
        (6, [7, 3, 9], None),  # steps restart in each epoch
    ],
)
def test_catching_up_is_recorded_once(restored: int | None, steps: list[int], caught_up_at: int | None) -> None:
    history = played((CAUSE, 9), (None, None), restored=restored)
    told = [step for step in steps if history.reach(step)]
    assert told == ([] if caught_up_at is None else [caught_up_at])
    assert not told or not history.reach(max(steps) + 1)


def test_requested_checkpoint_that_is_unavailable_is_not_requested_again() -> None:
    cause = raised("FileNotFoundError: WINDLASS_RESUME_FROM=/etc: there is no checkpoint /etc")
    found = outcome(None, cause, played((cause, None)), POLICY)
    assert (found.phase, found.reason, found.restarts_left) == (Phase.FAILED, "failure", 2)


def test_restore_logged_by_each_rank_is_recorded_once() -> None:
    history = History()
    history.take(entry_of("attempt", {"number": 2}), 1000.0)
    line = {"action": "restored", "source": "log", "line": "Resuming training from out"}
    assert history.now.is_new_restore(None)
    history.take(entry_of("checkpoint", line), 1001.0)
    assert not history.now.is_new_restore(None)
    assert history.now.is_new_restore(40)
    assert history.now.restored is None
    history.take(entry_of("attempt", {"number": 3}), 1002.0)
    history.take(entry_of("checkpoint", {"action": "restored", "name": "checkpoint-40", "step": 40}), 1003.0)
    assert not history.now.is_new_restore(40)
