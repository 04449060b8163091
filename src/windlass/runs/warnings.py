"""Folds the events of a run into its warnings: problems that may affect its result but do not end it.

To add a kind of warning, add its code to `KINDS`, its row to `docs/concepts/warnings.md` (a test compares them), and
report it where it is detected:

- in a supervisor or engine: `record.note(Warned("one sentence", code="my-code", fix="what to do", ranks=(3,)))`
- in the worker: `self._events.add(NodeWarning(time.time(), "one sentence", code="my-code", fix="…", ranks=(3,)))`

If existing events show the problem, add a case to `warnings_after` instead. `run`, `status`, `ps`, `why`, their JSON
and the Python API show every warning of the status, so that nothing else must be changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from windlass.runs import events
from windlass.worker.protocol import GRACE_OVER, OF_ANOTHER_NODE, OUTPUTS_INCOMPLETE
from windlass.worker.values import Value

if TYPE_CHECKING:
    from windlass.runs.record import Status

RANKS_ALONE: Final = "ranks-alone"
NOT_SAVED: Final = "checkpoints-not-saved"
NOT_FOUND: Final = "checkpoint-not-found"
DAMAGED: Final = "checkpoint-damaged"
NAN_LOSS: Final = "nan-loss"
LOG_INCOMPLETE: Final = "log-incomplete"
CODE_CHANGED: Final = "code-changed"
NOT_COLLECTED: Final = "results-not-collected"
KINDS: Final = {
    RANKS_ALONE: "the ranks never made a process group, or each was alone in its own: each trained alone",
    "resumed-from-another-run": "the first attempt began from a checkpoint of another run",
    "no-steps": "the script succeeded and trained no step: it had loaded a finished training, or its loader was empty",
    NAN_LOSS: "the loss was NaN or infinite when it was last reported; ends with the next finite one",
    "saves-not-used": "a later attempt began at the first step, though the script had saved its state",
    DAMAGED: "no checkpoint was verified: training began at step 0 again",
    CODE_CHANGED: "an attempt ran program files that changed after the run was submitted",
    "processes-outlived": "processes that a rank had started were still running when it ended, and were ended too",
    NOT_SAVED: "the newest saves of checkpoints failed; ends with the next one that is saved",
    NOT_FOUND: "nothing matches the job's `checkpoint.find`; ends once a checkpoint is restored or saved",
    GRACE_OVER: "ranks had not exited when their grace period ended, and were killed",
    LOG_INCOMPLETE: "lines that ranks wrote are missing from their logs",
    NOT_COLLECTED: "files that match the job's `outputs.collect` were not copied, or no file matches it",
    OUTPUTS_INCOMPLETE: "files that the ranks wrote to their output are not in that of the run",
    events.MODEL_AWAY: "the files that the ranks wrote are at the target only",
}
"""Kinds of warnings, by code."""
_OF_ATTEMPT: Final = frozenset({RANKS_ALONE, NAN_LOSS, NOT_COLLECTED, OUTPUTS_INCOMPLETE})
"""Kinds that a new attempt clears, because it reports them again if they still apply."""
_OF_CHECKPOINTS: Final = frozenset({NOT_SAVED, NOT_FOUND})
"""Kinds that a saved checkpoint clears."""


NAN_FIX: Final = (
    "a lower learning rate, warm-up, gradient clipping, a check of the data for NaN; "
    "torch.autograd.set_detect_anomaly(True) names the first operation"
)
OWN_PATH: Final = "run: train.py --output-dir out/$WINDLASS_NODE_RANK"
DISK_FIX: Final = "free space under WINDLASS_HOME, or set it to a folder on another disk"
_NOT_FINITE: Final = {"nan": "NaN", "inf": "infinite", "-inf": "infinite"}


class RunWarning(Value):
    """A problem that did not end the run but that the user should see."""

    code: str
    """Stable name of the kind; listed in `docs/concepts/warnings.md`."""
    message: str
    """What happened, in one sentence without a full stop."""
    fix: str = ""
    """How to fix the problem; may be empty."""
    ranks: tuple[int, ...] = ()
    """Affected ranks; empty if all are affected, or no particular rank."""
    attempt: int = 0
    """Attempt in which the warning last occurred; 0 before the first attempt."""
    times: int = 1
    """Number of occurrences, as far as counted."""

    def _given(self) -> Iterator[tuple[str, Any]]:
        return ((name, self.__dict__[name]) for name in self.fields())


def warnings_after(status: Status, entry: events.Entry) -> tuple[RunWarning, ...]:
    """Returns the warnings of a run after one more event. `status` already includes the event, except in its
    warnings.
    """
    match entry:
        case events.Warned(message, code, fix=fix, ranks=ranks) if code:
            return _with(status, code, message, fix, ranks)
        case events.Warned() if status.dropped and (entry.dropped or entry.missing):
            return with_incomplete_logs(status)
        case events.CheckpointChanged(action="failed"):
            return _with(status, NOT_SAVED, *_not_saved(status, entry))
        case events.CheckpointChanged(action="missing"):
            newest = f"; the newest saved state is {entry.saved}" if entry.saved else ""
            fix = f"let the script save in that folder, or correct the job's checkpoint.find{newest}"
            return _with(status, NOT_FOUND, not_found_words(entry), fix)
        case events.CheckpointChanged(action="saved"):
            return _without(status, _OF_CHECKPOINTS)
        case events.CheckpointChanged(action="none-verified", reason=reason):
            message = "no checkpoint was verified, and training began at step 0" + (f": {reason}" if reason else "")
            return _with(status, DAMAGED, message, damaged_fix(status.id))
        case events.LossNotFinite(rank, loss, step):
            at = "" if step is None else f" at step {step:,}"
            return _with(status, NAN_LOSS, f"the loss became {_NOT_FINITE.get(loss, loss)}{at}", NAN_FIX, (rank,))
        case events.Progress() if is_finite_again(status, entry):
            return _without(status, {NAN_LOSS})
        case events.CheckpointChanged(action="restored"):
            return _without(status, {NOT_FOUND})
        case events.CodeFiles():
            words = _not_collected(status)
            return _with(status, NOT_COLLECTED, *words) if words else _without(status, {NOT_COLLECTED})
        case events.AttemptStarted():
            return _without(status, _OF_ATTEMPT)
        case events.RunResumed():
            return tuple(one for one in status.warnings if one.code in _OF_CHECKPOINTS)
    return status.warnings


def with_incomplete_logs(status: Status) -> tuple[RunWarning, ...]:
    """Returns the warnings of a run whose logs lack the lines counted in `status.dropped`."""
    return _with(status, LOG_INCOMPLETE, *_incomplete(status))


def _with(
    status: Status, code: str, message: str, fix: str = "", ranks: tuple[int, ...] = ()
) -> tuple[RunWarning, ...]:
    """Returns the warnings with one more, which replaces a warning of the same kind and includes its ranks."""
    known = next((one for one in status.warnings if one.code == code), None)
    attempt = status.attempts[-1].number if status.attempts else 0
    if known is None:
        return (*status.warnings, RunWarning(code, message, fix, tuple(sorted(ranks)), attempt))
    ranks = tuple(sorted({*known.ranks, *ranks})) if known.attempt == attempt else tuple(sorted(ranks))
    new = RunWarning(code, message, fix, ranks, attempt, known.times + 1)
    return tuple(new if one is known else one for one in status.warnings)


def _without(status: Status, codes: frozenset[str] | set[str]) -> tuple[RunWarning, ...]:
    return tuple(one for one in status.warnings if one.code not in codes)


def is_finite_again(status: Status, progress: events.Progress) -> bool:
    """Whether `progress` has a finite loss, which ends the warning of a loss that is not finite."""
    ranks = next((one.ranks for one in status.warnings if one.code == NAN_LOSS), ())
    loss = progress.loss
    return (progress.rank or 0) in ranks and isinstance(loss, int | float) and math.isfinite(loss)


# -- messages -----------------------------------------------------------------------------------------------------


def _not_saved(status: Status, entry: events.CheckpointChanged) -> tuple[str, str]:
    """Returns for example `no checkpoint was saved after step 20: the last 4 saves failed, the newest at step 68: No
    space left`.
    """
    failures = 1 + sum(one.times for one in status.warnings if one.code == NOT_SAVED)
    saved = status.checkpoint
    after = "" if saved is None else f" after step {saved.step or 0:,}"
    many, newest = ("save", "at") if failures == 1 else (f"{failures} saves", "the newest at")
    at = "" if entry.step is None else f", {newest} step {entry.step:,}"
    message = f"no checkpoint was saved{after}: the last {many} failed{at}: {entry.reason or 'no reason was reported'}"
    return message, (
        "free space in the folder of checkpoints, or correct its rights or its store (checkpoint.folder); what the "
        "script has written to its outputs is not affected"
    )


def _not_collected(status: Status) -> tuple[str, str] | None:
    """Returns message and fix for files that nodes did not copy to the output; None if all files named by the job were
    copied.
    """
    found = status.files.code_files
    if problems := list(dict.fromkeys(problem for one in found for problem in one.problems)):
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        fix = f"give each node paths of its own: {OWN_PATH}" if any(OF_ANOTHER_NODE in one for one in problems) else ""
        return f"files of the code folder are not in the output: {problems[0]}{more}", fix
    if all(one.has_none for one in found):
        return "no new or changed file of the code folder matches outputs.collect", (
            "correct the patterns; windlass status lists the files that are new or changed"
        )
    return None


def damaged_fix(run_id: str) -> str:
    """Returns the fix for checkpoints that were not verified."""
    return f"check the disk that they are on; windlass checkpoints {run_id} shows what was kept of them"


def not_found_words(missing: events.CheckpointChanged) -> str:
    """Returns for example `nothing matches checkpoint-* in /results/checkpoints: there are chkpt-100, chkpt-200 and 3
    more`.
    """
    rest = missing.entries - len(missing.near)
    verb = "is" if missing.entries == 1 else "are"
    found = f"there {verb} {', '.join(missing.near)}" + (f" and {rest} more" if rest > 0 else "")
    if missing.older:
        matches = "1 match is" if missing.older == 1 else f"{missing.older} matches are"
        found = f"{matches} there, but older than this run"
    elif not missing.near:
        found = "it does not exist" if missing.absent else "it is empty"
    where = "a restart begins at step 0" if missing.at_end else "training begins at step 0"
    return f"nothing matches {missing.find} in {missing.folder}, where saves are expected: {found}; {where}"


def _incomplete(status: Status) -> tuple[str, str, tuple[int, ...]]:
    """Returns for example `300 lines of ranks are missing from the logs: the disk was full`."""
    by_disk = [one for one in status.dropped if one.why == events.DISK_FULL]
    shown = by_disk or status.dropped
    lines, ranks = sum(one.lines for one in shown), tuple(sorted({one.rank for one in shown}))
    message = f"{lines:,} {'line is' if lines == 1 else 'lines are'} missing from the logs: "
    if by_disk:
        return f"{message}the disk was full", DISK_FIX, ranks
    fix = "keep a supervisor running while the job prints much: any windlass command starts one"
    return f"{message}the kubelet rotated the log before a supervisor read it", fix, ranks
