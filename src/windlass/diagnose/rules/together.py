"""What goes wrong between ranks: one that is missing, one that left, several that do not do the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from windlass.diagnose.observations import Silence
from windlass.diagnose.reading import Frame, collective, main_stack, own_frame, raised
from windlass.diagnose.rules.case import Case
from windlass.diagnose.rules.recorded import MISMATCH_FIX, label
from windlass.diagnose.rules.recorded import lines as recorded_lines
from windlass.diagnose.verdict import Verdict
from windlass.runs.record import Phase
from windlass.worker.blame import is_victim

SCORES: Final = {"silence": 110, "timeout": 110, "stop": 60, "failure": 97}
"""How much the stacks say, by why they were taken: one who stops a run knows why, whatever the ranks were at."""


def silent(case: Case) -> Iterator[Verdict]:
    """No rank said anything for long: who was where?"""
    silence = case.seen.silence()
    if silence is None or case.seen.went_on_after(silence):
        return
    score = SCORES.get(silence.reason, 60.0)
    if case.failed and silence.reason == "silence":
        score = 58  # it ended by a failure after all: that one is the cause unless nobody can say
    stacks = {rank: main_stack(stack) for rank, stack in silence.stacks.items()}
    if silence.reason == "failure":  # those that gave up have told where in their tracebacks
        for seen in case.seen.ranks:
            error = raised(seen.tail)
            if error is not None:
                stacks[seen.rank] = tuple(reversed(error.frames))
    calls = {rank: collective(stack, case.seen.sources) for rank, stack in stacks.items()}
    left = [seen.rank for seen in case.seen.ranks if seen.exit_code == 0]
    where = tuple(_place(case, silence, rank, stacks[rank], calls[rank]) for rank in sorted(stacks)[:16])
    where += tuple(recorded_lines(case))
    told = _told(case, silence)
    waiting = Counter(call for call in calls.values() if call)
    frozen = [rank for rank, state in silence.states.items() if state in ("T", "t")]
    ranks = len(case.status.ranks)
    if frozen and len(frozen) < ranks:
        yield Verdict(
            "rank-frozen",
            f"{_named(frozen)} {_is(frozen)} suspended (SIGSTOP), and the others wait",
            frozen[0],
            (told, *where),
            f"see who suspended it; kill -CONT {_pid(case, frozen[0])} lets it go on",
            score + 2,
        )
    elif waiting and left:
        call = waiting.most_common(1)[0][0]
        yield Verdict(
            "rank-left-early",
            f"{_named(left)} ended with exit code 0 while the others wait in {call}",
            left[0],
            (told, *where),
            LEFT_FIX,
            score + 1,
        )
    elif len(waiting) > 1:
        (common, _), *_ = waiting.most_common()
        odd = sorted(rank for rank, call in calls.items() if call and call != common)
        said = ", ".join(f"{_named(sorted(r for r, c in calls.items() if c == call))} in {call}" for call in waiting)
        yield Verdict(
            "collective-mismatch",
            f"ranks wait in different collectives: {said}",
            odd[0] if len(odd) == 1 and ranks > 2 else None,
            (told, *where),
            MISMATCH_FIX,
            score + 1,
        )
    elif waiting and any(not call for call in calls.values()):
        call = next(iter(waiting))
        missing = sorted(rank for rank, name in calls.items() if not name)
        joined = sorted(rank for rank, name in calls.items() if name)
        place = own_frame(stacks[missing[0]], case.seen.code_dir, innermost_first=True)
        at = (
            f" it is at {case.at(place).partition(': ')[0].partition(' in ')[0]}"
            if place
            else " it has no Python stack"
        )
        verb = "come to" if call == "init_process_group" else "join"
        yield Verdict(
            "rendezvous-timeout" if call == "init_process_group" else "collective-not-joined",
            f"{_named(missing)} did not {verb} {label(case, call)}, in which {_named(joined)} {_waits(joined)};{at}",
            missing[0],
            (told, *where),
            f"see why {_named(missing[:1])} does not come to {call}: a branch that only some "
            "ranks take, uneven data, or a wait for something else",
            score,
        )
    elif waiting:
        call = next(iter(waiting))
        yield Verdict(
            "collective-stuck",
            f"all ranks wait in {call}, and it does not end",
            None,
            (told, *where),
            "the ranks may have come there in different order or for different tensors: run once with "
            "env: {TORCH_DISTRIBUTED_DEBUG: DETAIL}; or the network between the nodes is cut",
            score - 5,
        )
    elif silence.reason == "silence":
        rank = next(iter(sorted(stacks)), None) if ranks == 1 else None
        yield Verdict(
            "hang",
            "nothing is printed any more",
            rank,
            (told, *where),
            "see where it is; if long silences are normal here, raise hang: or let the script report() its progress",
            min(score, 75),
        )


def _told(case: Case, silence: Silence) -> str:
    ended = {
        "timeout": ", then the time limit was reached",
        "stop": ", then the run was stopped",
        "failure": ", then a rank gave up",
    }
    return f"no rank wrote anything for {silence.seconds:.3g} s{ended.get(silence.reason, '')}"


def _place(case: Case, silence: Silence, rank: int, stack: tuple[Frame, ...], call: str) -> str:
    own = own_frame(stack, case.seen.code_dir, innermost_first=True)
    state = {"T": "suspended", "t": "traced", "D": "waiting for the disk or a device", "Z": "dead"}.get(
        silence.states.get(rank, ""), "no Python stack to be had"
    )
    return f"{case.name(rank)}: {'in ' + call + ', ' if call else ''}{case.at(own) if own else state}"


_SHAPES = re.compile(r"preamble\.length <= .*?(\d+) vs (\d+)|Received data size doesn't match expected size", re.DOTALL)
_DETAIL = re.compile(r"Detected mismatch between collectives on ranks\. (.*)", re.DOTALL)


def mismatch(case: Case) -> Iterator[Verdict]:
    """Ranks that call different collectives, or the same one with different tensors."""
    if not case.failed:
        return
    for seen in sorted(case.failures, key=lambda seen: seen.ended_at or 0.0):
        detail = _DETAIL.search(seen.tail)
        sizes = _SHAPES.search(seen.tail)
        if detail is None and sizes is None:
            continue
        evidence = [*case.calls.values(), *recorded_lines(case)]
        if detail is not None:
            said = " ".join(detail[1].split("Collectives differ")[0].split())[:600]
            evidence = [part.strip() for part in re.split(r", but (?=Rank)|\.(?=Collectives)", said)] + evidence
        elif sizes is not None and sizes[1]:
            evidence.append(f"{case.name(seen.rank)} was sent {sizes[1]} bytes where {sizes[2]} were expected")
        where = next((place for rank, place in case.calls.items() if rank == seen.rank), "")
        at = f" at {where.partition(': ')[2]}" if where else ""
        yield Verdict(
            "collective-mismatch",
            f"ranks disagree on a collective: not the same shape, type or operation{at}",
            seen.rank,
            tuple(evidence),
            MISMATCH_FIX,
            98,
        )
        return


def alone(case: Case) -> Iterator[Verdict]:
    """Ranks that were started together and never met: each trained a model of its own."""
    told = False
    for event in case.seen.events:
        if event.kind in ("attempt", "resume"):
            told = False
        told = told or (event.kind == "warning" and event.data.get("code") == "ranks-alone")
    if not told or case.status.phase is Phase.FAILED:
        return
    many = len(case.status.ranks)
    yield Verdict(
        "ranks-alone",
        f"the {many} ranks never met: each trained alone",
        None,
        (
            "torch is used, and no rank made a process group (torch.distributed.init_process_group)",
            f"no rank was connected to another one; WORLD_SIZE is {many}",
        ),
        "let the script call init_process_group and wrap the model (DistributedDataParallel); Lightning: "
        f"Trainer(devices=..., num_nodes=..., strategy='ddp') for {many} ranks. Where ranks are meant to work alone: "
        "launcher: plain",
        45,
    )


LEFT_FIX: Final = (
    "let every rank do the same number of steps (drop_last, a sampler that pads, DDP's join()), and leave only "
    "after the last collective"
)


def left_early(case: Case) -> Iterator[Verdict]:
    """A rank that ended with exit code 0 while its peers still wanted something of it."""
    if not case.failed or not case.only_victims:
        return
    failed_at = min((seen.ended_at or 0.0 for seen in case.failures), default=0.0)
    left = sorted(
        (seen for seen in case.seen.ranks if seen.exit_code == 0 and (seen.ended_at or 0.0) <= failed_at),
        key=lambda seen: seen.ended_at or 0.0,
    )
    if not left:
        return
    waiting = sorted(seen.rank for seen in case.failures)
    evidence = [f"{case.name(seen.rank)} ended with exit code 0 first" for seen in left[:4]]
    evidence += [*case.calls.values(), *recorded_lines(case)]
    error = raised(case.failures[0].tail)
    if error is not None:
        evidence.append(f"then {case.name(case.failures[0].rank)}: {error.line[:200]}")
    need = "needs it" if len(waiting) == 1 else "need it"
    summary = f"{_named([seen.rank for seen in left])} ended with exit code 0 while {_named(waiting)} still {need}"
    yield Verdict("rank-left-early", summary, left[0].rank, tuple(evidence), LEFT_FIX, 96)


_WAITED = re.compile(
    r"Timed out waiting \d+ ?ms|Watchdog caught collective operation timeout|monitoredBarrier", re.IGNORECASE
)
_BARRIER = re.compile(r"Ranks? ([\d, ]+) (?:failed to pass|timed out in) monitoredBarrier", re.IGNORECASE)


def waited_in_vain(case: Case) -> Iterator[Verdict]:
    """Collectives that ran into torch's own timeout."""
    waited = [seen for seen in case.seen.ranks if _WAITED.search(seen.tail)] if case.failed else []
    if not waited:
        return
    calls = case.calls
    evidence = (*calls.values(), *recorded_lines(case), *_watchdogs_files(case))
    names = {rank: place.partition(": ")[2].partition(",")[0] for rank, place in calls.items()}
    named = next((match for seen in waited if (match := _BARRIER.search(seen.tail))), None)
    waiting = [seen.rank for seen in waited]
    missing = [seen.rank for seen in case.seen.ranks if seen.rank not in waiting and seen.ended_by_us]
    if named:
        missing = [int(number) for number in re.findall(r"\d+", named[1])]
    if len(set(names.values())) > 1 and not named:
        said = ", ".join(f"{case.name(rank)} in {call}" for rank, call in sorted(names.items()))
        yield Verdict(
            "collective-mismatch", f"ranks waited in different collectives: {said}", None, evidence, MISMATCH_FIX, 96
        )
    elif missing:
        call = next(iter(names.values()), "a collective")
        yield Verdict(
            "collective-not-joined",
            f"{_named(missing)} did not join {label(case, call)}, in which {_named(waiting)} waited too long",
            missing[0],
            evidence,
            f"see what {_named(missing[:1])} did instead; hang: 1min takes the stacks of all ranks while they wait",
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
        )


_ASKED = re.compile(r"world_size\s*=\s*(\d+)")
_JOINED = re.compile(r"(\d+)/(\d+) clients joined")
_MEET = re.compile(
    r"Timed out after \d+ seconds waiting for clients|client socket has timed out|failed to connect to|"
    r"Rendezvous\w*(?:Timeout|Connection)Error|store.*[Tt]imeout|wait timeout after|Socket Timeout|connectFullMesh",
    re.DOTALL,
)


def rendezvous(case: Case) -> Iterator[Verdict]:
    """Ranks that did not find each other."""
    if not case.failed:
        return
    world = len(case.status.ranks)
    for seen in case.failures:
        error = raised(seen.tail)
        if error is None or not _MEET.search(error.line + error.message):
            continue
        evidence = [error.line[:300]]
        joined = _JOINED.search(seen.tail)
        written = next((m for f in error.frames if (m := _ASKED.search(case.seen.sources.get(f.key, "")))), None)
        asked = int(joined[2]) if joined else int(written[1]) if written else world
        if asked != world:
            yield Verdict(
                "world-size-mismatch",
                f"{case.name(seen.rank)} waits for {asked} ranks, but the job has {world}",
                seen.rank,
                (*evidence, f"the job: {world} ranks (nodes × procs_per_node)"),
                "take WORLD_SIZE from the environment instead of a number in the script, or set nodes: and "
                "procs_per_node: to it",
                97,
            )
            return
        silence = case.seen.silence()
        stacks = silence.stacks if silence else {}
        came = [
            n for n, text in stacks.items() if collective(main_stack(text), case.seen.sources) == "init_process_group"
        ]
        others = [r for r in case.seen.ranks if (r.ended_by_us or r.exit_code == 0) and r.rank not in came]
        absent = [rank.rank for rank in others if not is_victim({"exit_code": rank.exit_code, "tail": rank.tail})]
        who = f"; {_named(absent)} never came" if absent else ""
        yield Verdict(
            "rendezvous-timeout",
            f"the ranks did not find each other: {case.name(seen.rank)} waited in vain{who}",
            absent[0] if absent else seen.rank,
            tuple(evidence),
            "see what the missing rank does before init_process_group; take MASTER_ADDR and MASTER_PORT as given",
            94,
        )
        return


def _pid(case: Case, rank: int) -> str:
    return next((str(state.pid) for state in case.status.ranks if state.rank == rank and state.pid), "PID")


def _watchdogs_files(case: Case) -> list[str]:
    """Files in which NCCL's watchdog has written what each rank was at (torch has a reader for them)."""
    written = [str(flight["path"]) for flight in dict(case.seen.facts.get("flights") or {}).values()]
    return [f"NCCL's watchdog wrote {path}" for path in written[:8]]


def _named(ranks: list[int] | Mapping[int, object]) -> str:
    some = list(ranks)
    return (
        f"rank {some[0]}" if len(some) == 1 else f"ranks {', '.join(map(str, some[:8]))}{' …' if len(some) > 8 else ''}"
    )


def _is(ranks: list[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _waits(ranks: list[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"
