"""What torch's flight recorder says of ranks that hang or fail in a collective: more exactly than their stacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from windlass.diagnose.flights import Finding, crossed, find, named
from windlass.diagnose.reading import main_stack, own_frame
from windlass.diagnose.rules.case import Case
from windlass.diagnose.verdict import Verdict

MISMATCH_FIX: Final = (
    "let every rank call the same collectives in the same order with tensors of the same shape and type; "
    "env: {TORCH_DISTRIBUTED_DEBUG: DETAIL} names the two calls"
)
MAX_LINES: Final = 6


def collectives(case: Case) -> Iterator[Verdict]:
    """Calls that differ, and calls that some ranks did not make."""
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
            f"{named(missing)} did not join {first.label}, in which {named(waiting)} "
            f"{'waits' if len(waiting) == 1 else 'wait'}",
            missing[0],
            _evidence(case),
            f"see why {named(missing[:1])} does not come to {first.call.op}: a branch that only some ranks take, "
            "uneven data, or a wait for something else",
            score - 1,
        )


def findings(case: Case) -> tuple[Finding, ...]:
    """What the recorders of all ranks, taken together, say is wrong."""
    return find(case.seen.flights())


def lines(case: Case) -> list[str]:
    """The same as evidence, for verdicts that rest on something else too."""
    return [line for finding in findings(case)[:2] for line in finding.lines()][:MAX_LINES]


def label(case: Case, call: str) -> str:
    """A collective that stacks tell of, with the number that the recorder knows: `all_reduce #6 of …`."""
    found = next((finding for finding in findings(case) if finding.kind == "not-joined"), None)
    if found is None:
        return call
    return found.label if found.call.op == call else f"{call} ({found.label})"


def _evidence(case: Case) -> tuple[str, ...]:
    """What was recorded, then where the ranks were."""
    silence = case.seen.silence()
    places = []
    for rank, text in sorted(silence.stacks.items())[:8] if silence and not case.failed else ():
        own = own_frame(main_stack(text), case.seen.code_dir, innermost_first=True)
        places += [f"{case.name(rank)}: {case.at(own)}"] if own else []
    return (*lines(case), *(places or case.calls.values()))


def _score(case: Case) -> float:
    """How much the recorder says: nothing of a run that has not hung or failed in a collective."""
    silence = case.seen.silence()
    if silence is not None and silence.reason in ("silence", "timeout", "stop") and not case.failed:
        return 0.0 if case.seen.went_on_after(silence) else 60.0 if silence.reason == "stop" else 110.0
    in_collective = any(flight.get("failed_in") for flight in case.seen.flights().values())
    return 97.0 if case.failed and in_collective else 0.0


def _without_excuse(case: Case, finding: Finding) -> list[int]:
    """Of those that are missing the ones that live: one that failed or left is told of by another rule."""
    if case.failed and not case.only_victims:
        return []
    gone = {seen.rank for seen in case.seen.ranks if seen.exit_code is not None and not seen.ended_by_us}
    return [rank for rank in finding.missing if rank not in gone]


def _mismatch(case: Case, finding: Finding, score: float) -> Verdict:
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


def _crossed(case: Case, both: tuple[Finding, Finding], score: float) -> Verdict:
    one, other = both
    return Verdict(
        "collective-mismatch",
        f"ranks wait for each other: {named(one.joined)} in {one.label}, {named(other.joined)} in {other.label}",
        None,
        _evidence(case),
        "let every rank use its process groups in the same order",
        score,
    )
