"""Rules on recordings made while the ranks ran: collectives by torch's flight recorder, losses by the worker.

The flight recorder is more precise than stacks for ranks that hang or fail in a collective.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from windlass.diagnose.flights import Finding, crossed, find, named, verb
from windlass.diagnose.observations import Observations
from windlass.diagnose.reading import main_stack, own_frame
from windlass.diagnose.verdict import Verdict
from windlass.runs.events import AttemptStarted, Event, LossNotFinite, Progress, entries, of_newest_attempt

MISMATCH_FIX: Final = (
    "let every rank call the same collectives in the same order with tensors of the same shape and type; "
    "env: {TORCH_DISTRIBUTED_DEBUG: DETAIL} names the two calls"
)
ABSENT_FIX: Final = (
    "see why rank {} does not come to {}: a branch that only some ranks take, uneven data, or a wait for something else"
)
MAX_LINES: Final = 6


def collectives(case: Observations) -> Iterator[Verdict]:
    """Explains that ranks made different calls, or that some ranks did not make a call."""
    found = findings(case)
    score = _score(case)
    if not found or not score:
        return
    first, others = found[0], crossed(found)
    if first.kind == "mismatch":
        yield _mismatch(case, first, score + 2)
    elif others is not None:
        yield _crossed(case, others, score + 2)
    elif first.kind == "not-joined" and (missing := _without_excuse(case, first)):
        waiting = [rank for rank in first.joined if first.group.calls[rank][first.call.number].is_open]
        yield Verdict(
            "collective-not-joined",
            f"{named(missing)} did not join {first.label}, in which {named(waiting)} {verb(waiting, 'waits', 'wait')}",
            missing[0],
            _evidence(case),
            ABSENT_FIX.format(missing[0], first.call.op),
            score - 1,
        )


def findings(case: Observations) -> tuple[Finding, ...]:
    """Returns the problems that the recorders of all ranks show together."""
    return find(case.flights())


def lines(case: Observations) -> list[str]:
    """Returns the recorders' problems as evidence, for verdicts of other rules."""
    return [line for finding in findings(case)[:2] for line in finding.lines()][:MAX_LINES]


def label(case: Observations, call: str) -> str:
    """Returns a collective from a stack with its number in the recorder: `all_reduce #6 of …`."""
    found = next((finding for finding in findings(case) if finding.kind == "not-joined"), None)
    if found is None:
        return call
    return found.label if found.call.op == call else f"{call} ({found.label})"


def _evidence(case: Observations) -> tuple[str, ...]:
    silence = case.silence()
    places = []
    for rank, text in sorted(silence.stacks.items())[:8] if silence and not case.failed else ():
        own = own_frame(main_stack(text), case.code_dir, innermost_first=True)
        places += [f"{case.name(rank)}: {case.at(own)}"] if own else []
    return (*lines(case), *(places or case.calls.values()))


def _score(case: Observations) -> float:
    """Returns the score of the recorders' verdict; 0 if the run neither hung nor failed in a collective."""
    silence = case.silence()
    if silence is not None and silence.reason in ("silence", "timeout", "stop") and not case.failed:
        return 0.0 if case.went_on_after(silence) else 60.0 if silence.reason == "stop" else 110.0
    in_collective = any(flight.failed_in for flight in case.flights().values())
    return 97.0 if case.failed and in_collective else 0.0


def _without_excuse(case: Observations, finding: Finding) -> list[int]:
    """Returns the missing ranks that are alive. Ranks that failed or left are left to other rules."""
    if case.failed and not case.only_victims:
        return []
    gone = {seen.rank for seen in case.ranks if seen.exit_code is not None and not seen.ended_by_us}
    return [rank for rank in finding.missing if rank not in gone]


def _mismatch(case: Observations, finding: Finding, score: float) -> Verdict:
    calls = finding.group.calls
    number = finding.call.number
    said = dict.fromkeys(str(calls[rank][number]) for rank in finding.joined)
    return Verdict(
        "collective-mismatch",
        f"ranks disagree on collective #{number} of {finding.group.name}: {' against '.join(list(said)[:4])}",
        finding.odd if len(case.status.ranks) > 2 else None,
        _evidence(case),
        MISMATCH_FIX,
        score,
    )


def _crossed(case: Observations, both: tuple[Finding, Finding], score: float) -> Verdict:
    one, other = both
    return Verdict(
        "collective-mismatch",
        f"ranks wait for each other: {named(one.joined)} in {one.label}, {named(other.joined)} in {other.label}",
        None,
        _evidence(case),
        "let every rank use its process groups in the same order",
        score,
    )


# -- losses -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Losses:
    """Reported losses of the newest attempt."""

    loss: object
    """Newest reported loss."""
    bad: LossNotFinite | Progress | None = None
    """First report with a loss that is not finite; None if unknown, or if no loss was finite."""
    good: Progress | None = None
    """Last report with a finite loss."""

    def lines(self) -> list[str]:
        """Returns the losses as evidence."""
        found = [] if is_finite(self.loss) else [f"the last loss that was reported: {self.loss}"]
        if self.bad is not None and self.bad.step is not None:
            found.append(f"the first one that was not finite: {self.bad.loss} at step {self.bad.step}")
        if self.good is not None:
            # Equal steps occur when a progress bar advances after printing its loss.
            is_same = self.bad is not None and self.bad.step == self.good.step
            at = "" if is_same or self.good.step is None else f" at step {self.good.step}"
            found.append(f"the last good one: {self.good.loss}{at}")
        return found


def losses(case: Observations) -> Losses | None:
    """Returns the losses of the newest attempt, for the rank that failed first or else the rank that reported
    progress.
    """
    own = of_newest_attempt(case.events)
    before = case.events[: len(case.events) - len(own)]
    changes = list(entries(own, LossNotFinite))
    reported = [progress for progress in entries(own, Progress) if progress.loss is not None]
    is_first = AttemptStarted.kind not in [event.kind for event in before]
    if not (changes or reported or is_first) or case.status.progress.loss is None:
        return None  # the status has progress of an earlier attempt only
    loss, rank = case.status.progress.loss, case.status.progress.rank
    wanted = (case.first.rank, rank) if case.first is not None else (rank,)
    of_rank = [[change for change in changes if change.rank == one] for one in wanted]
    known = next((found for found in of_rank if found), changes)
    if known:
        first_bad = _first_bad(before, known[-1])
        return Losses(loss, first_bad, first_bad.last)
    good, bad = None, None
    for progress in reported:
        if is_finite(progress.loss):
            good, bad = progress, None
        elif bad is None:
            bad = progress
    if bad is None and is_finite(loss):
        good = case.status.progress
    return Losses(loss, bad, good)


def _first_bad(before: Sequence[Event], change: LossNotFinite) -> LossNotFinite:
    """Returns the first report of a loss that is not finite.

    If the attempt's first loss was already not finite, searches the attempts `before`: a checkpoint saved after the
    loss became NaN carries the problem on.
    """
    for one in reversed(list(entries(before, LossNotFinite))):
        if change.last is not None or change.step is None:
            break
        if one.rank == change.rank and one.step is not None and one.step <= change.step:
            change = one
    return change


def is_finite(loss: object) -> bool:
    """Whether a loss in the format of the record is a finite number."""
    if isinstance(loss, str):
        return loss.lower() not in ("nan", "inf", "-inf")
    return not isinstance(loss, float) or math.isfinite(loss)
