"""Rules on collectives: a missing rank, a rank that left, ranks that call different collectives."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from windlass.diagnose.flights import named, verb
from windlass.diagnose.observations import Observations, RankSeen, Silence, place_alone
from windlass.diagnose.reading import Frame, Raised, collective, main_stack, own_frame, raised
from windlass.diagnose.rules.recorded import ABSENT_FIX, MISMATCH_FIX, label
from windlass.diagnose.rules.recorded import lines as recorded_lines
from windlass.diagnose.verdict import Verdict
from windlass.worker.root_cause import is_victim
from windlass.worker.tracebacks import LIBRARIES

SCORES: Final = {"silence": 110, "timeout": 110, "stop": 60, "failure": 97}
"""Scores by the reason for which stacks were dumped. After `stop` the score is low: the user knows why the run
ended."""
IN_LIBRARY: Final = re.compile(LIBRARIES)
"""Library files in the tracebacks of ranks that wait for other ranks."""
LEFT_FIX: Final = (
    "let every rank do the same number of steps (drop_last, a sampler that pads, DDP's join()), and leave only "
    "after the last collective"
)


def silent(case: Observations) -> Iterator[Verdict]:
    """Explains that no rank wrote output for long, and where each rank was."""
    silence = case.silence()
    if silence is None or case.went_on_after(silence):
        return
    score = SCORES.get(silence.reason, 60.0)
    if case.failed and silence.reason == "silence":
        score = 58  # an explained failure of the attempt scores higher, an unexplained one lower
    stacks = {rank: main_stack(stack) for rank, stack in silence.stacks.items()}
    if silence.reason == "failure":  # ranks that gave up have tracebacks, which show the place
        tracebacks = ((seen.rank, raised(seen.tail)) for seen in case.ranks)
        stacks |= {rank: tuple(reversed(error.frames)) for rank, error in tracebacks if error is not None}
    calls = {rank: collective(stack, case.sources) for rank, stack in stacks.items()}
    if silence.reason == "failure" and _waited_for_no_rank(case, calls):
        return
    found = _frozen(case, silence)
    # Exceptions of these ranks caused the silence.
    failed = {seen.rank for seen in case.ranks if raised(seen.tail) is not None}
    kept = {
        rank: text
        for rank, stack in sorted(silence.stacks.items())
        if rank not in failed and (text := case.kept(rank, stack))
    }
    if found is None and any(calls.values()):
        found = _waiting(case, stacks, calls, list(kept))
    if found is None and kept:
        found = _kept(case, kept)
    if found is None and (locked := [rank for rank, stack in sorted(stacks.items()) if _waits_for_lock(stack, case)]):
        found = _locked(case, stacks, locked, "no rank makes progress")
    if found is None and silence.reason == "silence":
        found = Verdict(
            "hang",
            "nothing is printed any more",
            min(stacks, default=None) if len(case.status.ranks) == 1 else None,
            fix="see where it is; if long silences are normal here, raise hang: or let the script report() its "
            "progress",
            score=min(0, 75 - score),
        )
    if found is not None:
        places = [
            kept.get(rank) or _place(case, silence, rank, stacks[rank], calls[rank]) for rank in sorted(stacks)[:16]
        ]
        evidence = (_lasted(silence), *places, *recorded_lines(case))
        yield replace(found, evidence=evidence, score=score + found.score)


def _waited_for_no_rank(case: Observations, calls: Mapping[int, str]) -> bool:
    """Whether the first failed rank timed out while it waited for something other than a rank."""
    if case.first is None or case.raised is None:
        return False
    return not (calls.get(case.first.rank) or IN_LIBRARY.search(case.raised.text))


def _frozen(case: Observations, silence: Silence) -> Verdict | None:
    """Explains that some ranks are suspended. The caller adds the score of the silence."""
    frozen = [rank for rank, state in silence.states.items() if state in ("T", "t")]
    if not frozen or len(frozen) >= len(case.status.ranks):
        return None
    pid = next((state.pid for state in case.status.ranks if state.rank == frozen[0] and state.pid), "PID")
    summary = f"{named(frozen)} {verb(frozen, 'is', 'are')} suspended (SIGSTOP), and the others wait"
    fix = f"see what suspended it; kill -CONT {pid} resumes it"
    return Verdict("rank-frozen", summary, frozen[0], fix=fix, score=2)


def _kept(case: Observations, kept: Mapping[int, str]) -> Verdict:
    """Explains that the scripts of these ranks ended but their processes did not. The caller adds the score of the
    silence.
    """
    rank = min(kept)
    step, total = case.steps.get(rank, (0, 0))
    done = f"finished {step:,} of {total:,}" if total else "the script has ended"
    return Verdict(
        "teardown-hang",
        f"{done}; {kept[rank]}",
        rank,
        fix="end it before the script ends (join a thread after setting its stop event, close loaders, writers and "
        "pools), or make the thread a daemon: threading.Thread(…, daemon=True)",
    )


def _waiting(
    case: Observations, stacks: Mapping[int, tuple[Frame, ...]], calls: Mapping[int, str], ended: Sequence[int]
) -> Verdict:
    """Explains why ranks wait in the collectives `calls`; the scripts of the ranks in `ended` have ended. The caller
    adds the score of the silence.
    """
    waiting = Counter(call for call in calls.values() if call)
    [(call, _)] = waiting.most_common(1)
    exited = [seen.rank for seen in case.ranks if seen.exit_code == 0]
    if left := sorted({*exited, *ended}):
        how = "ended with exit code 0" if exited else verb(left, "has ended its script", "have ended their scripts")
        summary = f"{named(left)} {how} while the others wait in {call}"
        return Verdict("rank-left-early", summary, left[0], fix=LEFT_FIX, score=1)
    if len(waiting) > 1:
        odd = sorted(rank for rank, one in calls.items() if one and one != call)
        sides = (f"{named(sorted(r for r, one in calls.items() if one == side))} in {side}" for side in waiting)
        return Verdict(
            "collective-mismatch",
            f"ranks wait in different collectives: {', '.join(sides)}",
            odd[0] if len(odd) == 1 and len(case.status.ranks) > 2 else None,
            fix=MISMATCH_FIX,
            score=1,
        )
    joined, missing = (sorted(rank for rank, one in calls.items() if bool(one) is has) for has in (True, False))
    if not missing:
        return Verdict(
            "collective-stuck",
            f"all ranks wait in {call}, and it does not end",
            fix="the ranks may have come there in different order or for different tensors: run once with "
            "env: {TORCH_DISTRIBUTED_DEBUG: DETAIL}; or the network between the nodes is cut",
            score=-5,
            is_effect=True,
        )
    if locked := [rank for rank in missing if _waits_for_lock(stacks[rank], case)]:
        return _locked(
            case, stacks, locked, f"{named(joined)} {verb(joined, 'waits', 'wait')} for it in {label(case, call)}"
        )
    is_init = call == "init_process_group"
    place = own_frame(stacks[missing[0]], case.code_dir, innermost_first=True)
    at = f"it is at {place_alone(case.at(place))}" if place else "it has no Python stack"
    return Verdict(
        "rendezvous-timeout" if is_init else "collective-not-joined",
        f"{named(missing)} did not {'come to' if is_init else 'join'} {label(case, call)}, in which {named(joined)} "
        f"{verb(joined, 'waits', 'wait')}; {at}",
        missing[0],
        fix=ABSENT_FIX.format(missing[0], call),
    )


_LOCK_FILES: Final = re.compile(r"/filelock/|/file_baton\.py$|/portalocker/")
_LOCK_CALLS: Final = re.compile(r"\b(?:flock|lockf)\(")


def _waits_for_lock(stack: tuple[Frame, ...], case: Observations) -> bool:
    """Whether the innermost frame is in a library for file locks, or in a call that locks a file."""
    inner = next((frame for frame in stack if not frame.file.endswith("/contextlib.py")), None)
    if inner is None:
        return False
    return bool(_LOCK_FILES.search(inner.file) or _LOCK_CALLS.search(case.sources.get(inner.key, "")))


def _locked(case: Observations, stacks: Mapping[int, tuple[Frame, ...]], locked: Sequence[int], others: str) -> Verdict:
    """Explains that ranks wait for a file lock. The caller adds the score of the silence."""
    place = own_frame(stacks[locked[0]], case.code_dir, innermost_first=True)
    at = f" at {place_alone(case.at(place))}" if place else ""
    who = named(locked) if len(locked) > 1 else case.name(locked[0])
    return Verdict(
        "lock-held",
        f"{who} {verb(locked, 'waits', 'wait')} for a file lock{at}, and {others}",
        locked[0],
        fix="let the rank that has the lock release it before it waits for others (with lock: around the download, the "
        "barrier after it); a killed process may have left the file of a lock, such as that of a torch extension: "
        "delete it",
        score=1,
    )


def _lasted(silence: Silence) -> str:
    ends = {"timeout": "the time limit was reached", "stop": "the run was stopped", "failure": "a rank gave up"}
    end = f", then {ends[silence.reason]}" if silence.reason in ends else ""
    return f"no rank wrote anything for {silence.seconds:.3g} s{end}"


def _place(case: Observations, silence: Silence, rank: int, stack: tuple[Frame, ...], call: str) -> str:
    own = own_frame(stack, case.code_dir, innermost_first=True)
    states = {"T": "suspended", "t": "traced", "D": "waiting for the disk or a device", "Z": "dead"}
    state = states.get(silence.states.get(rank, ""), "no Python stack could be taken")
    return f"{case.name(rank)}: {'in ' + call + ', ' if call else ''}{case.at(own) if own else state}"


_SHAPES = re.compile(r"preamble\.length <= .*?(\d+) vs (\d+)|Received data size doesn't match expected size", re.DOTALL)
_DETAIL = re.compile(r"Detected mismatch between collectives on ranks\. (.*)", re.DOTALL)


def mismatch(case: Observations) -> Iterator[Verdict]:
    """Explains that ranks called different collectives, or the same collective with different tensors."""
    for seen in sorted(case.failures, key=_ended_at) if case.failed else ():
        detail, sizes = _DETAIL.search(seen.tail), _SHAPES.search(seen.tail)
        if detail is None and sizes is None:
            continue
        evidence = _calls(case)
        if detail is not None:
            text = " ".join(detail[1].split("Collectives differ")[0].split())[:600]
            evidence = [part.strip() for part in re.split(r", but (?=Rank)|\.(?=Collectives)", text)] + evidence
        elif sizes is not None and sizes[1]:
            evidence.append(f"{case.name(seen.rank)} was sent {sizes[1]} bytes where {sizes[2]} were expected")
        where = case.calls.get(seen.rank, "").partition(": ")[2]
        yield Verdict(
            "collective-mismatch",
            "ranks disagree on a collective: not the same shape, type or operation" + (f" at {where}" if where else ""),
            seen.rank,
            tuple(evidence),
            MISMATCH_FIX,
            98,
        )
        return


def _ended_at(seen: RankSeen) -> float:
    return seen.ended_at or 0.0


def _calls(case: Observations) -> list[str]:
    return [*case.calls.values(), *recorded_lines(case)]


def left_early(case: Observations) -> Iterator[Verdict]:
    """Explains that a rank ended with exit code 0 while its peers still waited for it."""
    if not case.failed or not case.only_victims:
        return
    failed_at = min(map(_ended_at, case.failures))
    left = [seen for seen in sorted(case.ranks, key=_ended_at) if seen.exit_code == 0 and _ended_at(seen) <= failed_at]
    if not left:
        return
    waiting = sorted(seen.rank for seen in case.failures)
    evidence = [*(f"{case.name(seen.rank)} ended with exit code 0 first" for seen in left[:4]), *_calls(case)]
    error = raised(case.failures[0].tail)
    if error is not None:
        evidence.append(f"then {case.name(case.failures[0].rank)}: {error.line[:200]}")
    needs = f"{named(waiting)} still {verb(waiting, 'needs', 'need')} it"
    summary = f"{named([seen.rank for seen in left])} ended with exit code 0 while {needs}"
    yield Verdict("rank-left-early", summary, left[0].rank, tuple(evidence), LEFT_FIX, 96)


_WAITED = re.compile(
    r"Timed out waiting \d+ ?ms|Watchdog caught collective operation timeout|monitoredBarrier", re.IGNORECASE
)
_BARRIER = re.compile(r"Ranks? ([\d, ]+) (?:failed to pass|timed out in) monitoredBarrier", re.IGNORECASE)


def reports_timeout(case: Observations) -> Iterator[Verdict]:
    """Explains that collectives exceeded torch's own timeout."""
    waited = [seen for seen in case.ranks if _WAITED.search(seen.tail)] if case.failed else []
    if not waited:
        return
    dumps = [f"NCCL's watchdog wrote {one.path}" for one in case.machine.flights.values()]
    evidence = (*_calls(case), *dumps[:8])
    names = {rank: place.partition(": ")[2].partition(",")[0] for rank, place in case.calls.items()}
    barrier = next((match for seen in waited if (match := _BARRIER.search(seen.tail))), None)
    waiting = [seen.rank for seen in waited]
    missing = [seen.rank for seen in case.ranks if seen.rank not in waiting and seen.ended_by_us]
    if barrier:
        missing = [int(number) for number in re.findall(r"\d+", barrier[1])]
    if len(set(names.values())) > 1 and not barrier:
        sides = ", ".join(f"{case.name(rank)} in {call}" for rank, call in sorted(names.items()))
        yield Verdict(
            "collective-mismatch", f"ranks waited in different collectives: {sides}", None, evidence, MISMATCH_FIX, 96
        )
    elif missing:
        call = label(case, next(iter(names.values()), "a collective"))
        yield Verdict(
            "collective-not-joined",
            f"{named(missing)} did not join {call}, in which {named(waiting)} waited too long",
            missing[0],
            evidence,
            f"see what {named(missing[:1])} did instead; hang: 1min takes the stacks of all ranks while they wait",
            95,
        )
    else:
        yield Verdict(
            "collective-stuck",
            "a collective did not end before its timeout",
            None,
            evidence,
            "look at the network between the nodes; env: {TORCH_DISTRIBUTED_DEBUG: DETAIL} compares calls",
            90,
            is_effect=True,
        )


_ASKED = re.compile(r"world_size\s*=\s*(\d+)")
_JOINED = re.compile(r"(\d+)/(\d+) clients joined")
_MEET = re.compile(
    r"Timed out after \d+ seconds waiting for clients|client socket has timed out|failed to connect to|"
    r"Rendezvous\w*(?:Timeout|Connection)Error|store.*[Tt]imeout|wait timeout after|Socket Timeout|connectFullMesh",
    re.DOTALL,
)


def is_rendezvous_missed(case: Observations) -> bool:
    """Whether a rank failed because other ranks did not reach the rendezvous."""
    return _missed(case) is not None


def _missed(case: Observations) -> tuple[RankSeen, Raised] | None:
    """Returns the first rank whose peers did not reach the rendezvous, and its error; None if there is none."""
    errors = ((seen, raised(seen.tail)) for seen in case.failures)
    return next(((seen, error) for seen, error in errors if error is not None and _is_of_rendezvous(error)), None)


def _is_of_rendezvous(error: Raised) -> bool:
    """Whether a rendezvous library raised the error. Other servers and stores report timeouts in the same words."""
    is_of_library = IN_LIBRARY.search(error.text) or error.line.startswith("torch.distributed.")
    return bool(is_of_library and _MEET.search(error.line + error.message))


def rendezvous(case: Observations) -> Iterator[Verdict]:
    """Explains that ranks did not all reach the rendezvous."""
    missed = _missed(case) if case.failed else None
    if missed is None:
        return
    seen, error = missed
    world = len(case.status.ranks)
    joined = _JOINED.search(seen.tail)
    written = next((m for f in error.frames if (m := _ASKED.search(case.sources.get(f.key, "")))), None)
    asked = int(joined[2]) if joined else int(written[1]) if written else world
    if asked != world:
        yield Verdict(
            "world-size-mismatch",
            f"{case.name(seen.rank)} waits for {asked} ranks, but the job has {world}",
            seen.rank,
            (error.line[:300], f"the job: {world} ranks (nodes × procs_per_node)"),
            "take WORLD_SIZE from the environment instead of a number in the script, or set nodes: and "
            "procs_per_node: to it",
            97,
        )
        return
    silence = case.silence()
    stacks = silence.stacks if silence else {}
    came = [n for n, text in stacks.items() if collective(main_stack(text), case.sources) == "init_process_group"]
    others = [r for r in case.ranks if (r.ended_by_us or r.exit_code == 0) and r.rank not in came]
    absent = [rank.rank for rank in others if not is_victim(rank.exit_code, rank.tail)]
    missing = f"; {named(absent)} never came" if absent else ""
    yield Verdict(
        "rendezvous-timeout",
        f"the ranks did not find each other: {case.name(seen.rank)} timed out{missing}",
        absent[0] if absent else seen.rank,
        (error.line[:300],),
        "see what the missing rank does before init_process_group; take MASTER_ADDR and MASTER_PORT as given",
        94,
    )
