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


def find(flights: Mapping[int, Mapping[str, Any]]) -> tuple[Finding, ...]:
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


def _fresh(flights: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    newest = max((float(flight.get("at", 0)) for flight in flights.values()), default=0.0)
    return {
        rank: flight
        for rank, flight in sorted(flights.items())
        if flight.get("why") == "ended" or newest - float(flight.get("at", 0)) <= FRESH_SECONDS
    }


def _groups(flights: Mapping[int, Mapping[str, Any]]) -> Iterator[Group]:
    """The groups with recordings of more than one rank. Those of one name and other members are others."""
    told = [(rank, group) for rank, flight in flights.items() for group in flight.get("groups", ()) if "name" in group]
    keys = {(str(group["name"]), tuple(group.get("ranks") or ())): group for _, group in told}
    for (name, ranks), first in keys.items():
        members = ranks or tuple(flights)
        calls, last = {}, {}
        for rank in members:
            if rank not in flights:
                continue
            own = next((g for r, g in told if r == rank and str(g["name"]) == name), None)
            if own is None and flights[rank].get("why") == "ended":  # has recorded numbers alone
                own = next((g for g in flights[rank]["groups"] if g.get("id") == first.get("id")), None)
            calls[rank] = {call.number: call for call in map(_call, (own or {}).get("calls", ())) if call}
            last[rank] = max([int((own or {}).get("enqueued", 0)), *calls[rank]])
        if len(members) > 1:
            yield Group(_said(name, str(first.get("about", "")), ranks), members, calls, last)


def _call(data: Mapping[str, Any]) -> Call | None:
    if data["is_p2p"]:
        return None  # numbered by itself, and only two ranks take part
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
