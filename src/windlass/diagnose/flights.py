"""Compares the flight recorders of all ranks: from their last collectives to which rank is missing in which.

Within a process group collectives are numbered from 1, and those with the same number belong together: torch counts
them in each rank as they are called. See `worker/flight_recorder.py` for what a rank writes down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, Final

SAME_SIZE: Final = frozenset({
    "all_reduce", "allreduce", "allreduce_coalesced", "broadcast", "reduce", "_all_gather_base", "_allgather_base",
    "all_gather_into_tensor", "_reduce_scatter_base", "reduce_scatter_tensor", "all_reduce_barrier", "barrier",
})  # fmt: skip
"""Collectives in which every rank must bring as many numbers; others may have parts of different sizes."""
FRESH_SECONDS: Final = 15.0
"""What a rank wrote so long before the newest was written at another time of the run; unless it ended then."""
MAX_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that a rank has called."""

    number: int
    op: str
    sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    is_open: bool
    """Whether it has not ended, or has failed."""
    at: float
    """Unix seconds of the call."""

    def __str__(self) -> str:
        shapes = " ".join("[" + ", ".join(map(str, size)) + "]" for size in self.sizes[:4])
        return " ".join(part for part in (self.op, shapes, " ".join(dict.fromkeys(self.types))) if part)

    @property
    def numbers(self) -> int:
        """How many numbers it brings."""
        return sum(prod(size) for size in self.sizes)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A process group as one rank recorded it."""

    id: int
    name: str
    """Empty where the rank has recorded how many collectives it called, and nothing else."""
    about: str
    ranks: tuple[int, ...]
    """Its members; empty where they are not known."""
    enqueued: int
    """The number of its last collective."""
    calls: tuple[Call, ...]
    """Its newest collectives, without those between two ranks."""


@dataclass(frozen=True, slots=True)
class Flight:
    """The last collectives that one rank recorded; see `worker/flight_recorder.py`."""

    at: float
    """When they were written, in Unix seconds."""
    why: str
    """`asked`, `failed` or `ended`; empty where they cannot be read."""
    failed_in: str
    """The collective in which the rank failed; empty for none."""
    groups: tuple[Recorded, ...]
    path: str = ""
    """The file of NCCL's watchdog that they are from; else empty."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as its members recorded it."""

    name: str
    """For a sentence: `the default process group`."""
    ranks: tuple[int, ...]
    calls: Mapping[int, Mapping[int, Call]]
    """By rank and number; only of ranks with a recording."""
    last: Mapping[int, int]
    """The number of the last collective of each of them, 0 where there was none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one collective."""

    kind: str
    """`mismatch`: the calls differ. `not-joined`: some did not call it. `stuck`: all did, and it does not end."""
    group: Group
    call: Call
    """As the first rank has called it that did."""
    joined: tuple[int, ...]
    missing: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """`all_reduce #6 of the default process group`."""
        return f"{self.call.op} #{self.call.number} of {self.group.name}"

    def lines(self) -> Iterator[str]:
        """The evidence, a line for each thing that ranks did."""
        number = self.call.number
        for said, ranks in _alike({rank: str(self.group.calls[rank][number]) for rank in self.joined}):
            yield f"flight recorder: {named(ranks)} called {said} as #{number} of {self.group.name}"
        for said, ranks in _alike({rank: self._last(rank) for rank in self.missing}):
            yield f"flight recorder: {named(ranks)} came to {said}"

    def _last(self, rank: int) -> str:
        number = self.group.last[rank]
        call = self.group.calls[rank].get(number)
        return f"#{number}" + (f", {call}" if call else "") if number else "no collective of it"

    @property
    def odd(self) -> int | None:
        """The one rank that called something else than all others, if there is one."""
        sides = [ranks for _, ranks in _alike({r: str(self.group.calls[r][self.call.number]) for r in self.joined})]
        alone = [ranks[0] for ranks in sides if len(ranks) == 1]
        return alone[0] if len(sides) == 2 and len(alone) == 1 else None


def flights_of(data: Mapping[Any, Mapping[str, Any]]) -> dict[int, Flight]:
    """By rank, the collectives as ranks wrote them, typed."""
    return {int(rank): flight_of(written) for rank, written in data.items()}


def flight_of(written: Mapping[str, Any], path: str = "") -> Flight:
    """The collectives that one rank wrote, typed."""
    groups = tuple(
        Recorded(
            int(group.get("id", -1)),
            str(group.get("name", "")),
            str(group.get("about", "")),
            tuple(group.get("ranks") or ()),
            int(group.get("enqueued", 0)),
            tuple(_call(call) for call in group.get("calls", ()) if not call["is_p2p"]),
        )
        for group in written.get("groups", ())
    )
    failed_in = str(written.get("failed_in") or "")
    return Flight(float(written.get("at", 0)), str(written.get("why", "")), failed_in, groups, path)


def find(flights: Mapping[int, Flight]) -> tuple[Finding, ...]:
    """What is wrong, by what each rank wrote down; differing calls first, then what has waited longest."""
    found = [finding for group in _groups(_fresh(flights)) if (finding := _look(group))]
    order = ("mismatch", "not-joined", "stuck")
    return tuple(sorted(found, key=lambda finding: (order.index(finding.kind), finding.call.at)))


def crossed(findings: Sequence[Finding]) -> tuple[Finding, Finding] | None:
    """Two groups in which ranks wait for each other: they use them in different order."""
    waits = sorted((one for one in findings if one.kind == "not-joined"), key=lambda one: one.joined)
    for at, one in enumerate(waits):
        for other in waits[at + 1 :]:
            if set(one.missing) & set(other.joined) and set(other.missing) & set(one.joined):
                return one, other
    return None


def named(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 2`."""
    some = ", ".join(map(str, ranks[:MAX_NAMED])) + (" …" if len(ranks) > MAX_NAMED else "")
    return f"rank {some}" if len(ranks) == 1 else f"ranks {some}"


def verb(ranks: Sequence[int], one: str, several: str) -> str:
    """The form of a verb that goes with `named(ranks)`."""
    return one if len(ranks) == 1 else several


def _fresh(flights: Mapping[int, Flight]) -> dict[int, Flight]:
    newest = max((flight.at for flight in flights.values()), default=0.0)
    return {
        rank: flight
        for rank, flight in sorted(flights.items())
        if flight.why == "ended" or newest - flight.at <= FRESH_SECONDS
    }


def _groups(flights: Mapping[int, Flight]) -> Iterator[Group]:
    """The groups with recordings of more than one rank. Groups of one name with other members are different groups."""
    recorded = [(rank, group) for rank, flight in flights.items() for group in flight.groups if group.name]
    keys = {(group.name, group.ranks): group for _, group in recorded}
    for (name, ranks), first in keys.items():
        members = ranks or tuple(flights)
        calls, last = {}, {}
        for rank in members:
            if rank not in flights:
                continue
            own = next((group for of, group in recorded if of == rank and group.name == name), None)
            if own is None and flights[rank].why == "ended":  # has recorded numbers alone
                own = next((group for group in flights[rank].groups if group.id == first.id), None)
            calls[rank] = {call.number: call for call in own.calls} if own is not None else {}
            last[rank] = max([own.enqueued if own is not None else 0, *calls[rank]])
        if len(members) > 1:
            yield Group(_said(name, first.about, ranks), members, calls, last)


def _call(data: Mapping[str, Any]) -> Call:
    return Call(
        int(data["number"]),
        str(data["op"]),
        tuple(tuple(size) for size in data.get("sizes", ())),
        tuple(data.get("types", ())),
        data["state"] != "ended",
        float(data["at"]),
    )


def _look(group: Group) -> Finding | None:
    """What is wrong in a group; None where nothing waits in it."""
    waits = {rank: [n for n, call in calls.items() if call.is_open] for rank, calls in group.calls.items()}
    if not any(waits.values()):
        return None
    for number in sorted({*chain.from_iterable(group.calls.values())}):
        calls = {rank: own[number] for rank, own in group.calls.items() if number in own}
        if _differ(list(calls.values())):
            return _finding("mismatch", group, calls)
    number = min(chain.from_iterable(waits.values()))
    calls = {rank: own[number] for rank, own in group.calls.items() if number in own}
    missing = tuple(rank for rank in group.last if group.last[rank] < number)
    if missing:
        return _finding("not-joined", group, calls, missing)
    open_in = [rank for rank, call in calls.items() if call.is_open]
    return _finding("stuck", group, calls) if set(open_in) == set(group.ranks) else None


def _finding(kind: str, group: Group, calls: Mapping[int, Call], missing: tuple[int, ...] = ()) -> Finding:
    return Finding(kind, group, next(iter(calls.values())), tuple(calls), missing)


def _differ(calls: Sequence[Call]) -> bool:
    """Whether calls with one number cannot belong together."""
    if len({call.op for call in calls}) > 1:
        return True
    if not calls or calls[0].op not in SAME_SIZE:
        return False
    return len({(call.numbers, call.types) for call in calls}) > 1


def _said(name: str, about: str, ranks: tuple[int, ...]) -> str:
    if about == "default_pg":
        return "the default process group"
    more = about if about and about != "undefined" else named(ranks) if ranks else ""
    return f"process group {name}" + (f" ({more})" if more else "")


def _alike(said: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    """What was said, and by which ranks."""
    found: dict[str, list[int]] = {}
    for rank, text in said.items():
        found.setdefault(text, []).append(rank)
    return list(found.items())
