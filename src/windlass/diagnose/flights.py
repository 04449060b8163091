"""Compares the flight recorders of all ranks: finds which rank is missing in which collective.

In each rank, torch numbers the collectives of a process group from 1 in call order. Calls with the same number belong
together. `worker/flight_recorder.py` describes the data that a rank writes.
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
"""Collectives that require the same number of elements on every rank. Other collectives accept different numbers."""
FRESH_SECONDS: Final = 15.0
"""A recording that is older than the newest one by more than this many seconds is ignored, unless its rank ended when
the recording was made."""
MAX_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class Call:
    """Collective call of one rank."""

    number: int
    op: str
    sizes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    is_open: bool
    """Whether the call has not completed, or failed."""
    at: float
    """Time of the call in Unix seconds."""

    def __str__(self) -> str:
        shapes = " ".join("[" + ", ".join(map(str, size)) + "]" for size in self.sizes[:4])
        return " ".join(part for part in (self.op, shapes, " ".join(dict.fromkeys(self.types))) if part)

    @property
    def numbers(self) -> int:
        """Number of elements that the rank contributes."""
        return sum(prod(size) for size in self.sizes)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A process group as one rank recorded it."""

    id: int
    name: str
    """Name of the group; empty if the rank recorded only the number of its collectives."""
    about: str
    ranks: tuple[int, ...]
    """Members of the group; empty if unknown."""
    enqueued: int
    """Number of the last collective that the rank called."""
    calls: tuple[Call, ...]
    """Newest collectives that the rank called, without point-to-point operations."""


@dataclass(frozen=True, slots=True)
class Flight:
    """Last collectives recorded by one rank; see `worker/flight_recorder.py`."""

    at: float
    """When the recording was written, in Unix seconds."""
    why: str
    """Why the recording was written: `asked`, `failed` or `ended`; empty if the recording cannot be read."""
    failed_in: str
    """Collective in which the rank failed; empty if none."""
    groups: tuple[Recorded, ...]
    path: str = ""
    """Path of the NCCL watchdog's dump file with the recording; empty if the recording has another source."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as its members recorded it."""

    name: str
    """Name of the group in messages, such as `the default process group`."""
    ranks: tuple[int, ...]
    calls: Mapping[int, Mapping[int, Call]]
    """Calls by rank, then by number, of ranks with a recording."""
    last: Mapping[int, int]
    """Number of the last collective of each rank with a recording; 0 if the rank called none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Problem with one collective."""

    kind: str
    """Kind of problem. `mismatch`: the calls differ. `not-joined`: some ranks did not call the collective. `stuck`: all
    called it, and it does not complete."""
    group: Group
    call: Call
    """The first call of the collective by any rank."""
    joined: tuple[int, ...]
    missing: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """Name of the collective, such as `all_reduce #6 of the default process group`."""
        return f"{self.call.op} #{self.call.number} of {self.group.name}"

    def lines(self) -> Iterator[str]:
        """Yields the evidence: one line for each group of ranks with the same behaviour."""
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
        """The only rank whose call differs from the calls of all others; None if there is none."""
        sides = [ranks for _, ranks in _alike({r: str(self.group.calls[r][self.call.number]) for r in self.joined})]
        alone = [ranks[0] for ranks in sides if len(ranks) == 1]
        return alone[0] if len(sides) == 2 and len(alone) == 1 else None


def flights_of(data: Mapping[Any, Mapping[str, Any]]) -> dict[int, Flight]:
    """Parses the recordings of several ranks. Returns them by rank."""
    return {int(rank): flight_of(written) for rank, written in data.items()}


def flight_of(written: Mapping[str, Any], path: str = "") -> Flight:
    """Parses the recording of one rank."""
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
    """Returns the problems shown by the recordings: first differing calls, then waiting calls, the longest wait
    first.
    """
    found = [finding for group in _groups(_fresh(flights)) if (finding := _look(group))]
    order = ("mismatch", "not-joined", "stuck")
    return tuple(sorted(found, key=lambda finding: (order.index(finding.kind), finding.call.at)))


def crossed(findings: Sequence[Finding]) -> tuple[Finding, Finding] | None:
    """Returns two groups that ranks use in different order, so that they wait for each other; None if there are
    none.
    """
    waits = sorted((one for one in findings if one.kind == "not-joined"), key=lambda one: one.joined)
    for at, one in enumerate(waits):
        for other in waits[at + 1 :]:
            if set(one.missing) & set(other.joined) and set(other.missing) & set(one.joined):
                return one, other
    return None


def named(ranks: Sequence[int]) -> str:
    """Returns ranks as a phrase, such as `rank 1` or `ranks 0, 2`."""
    some = ", ".join(map(str, ranks[:MAX_NAMED])) + (" …" if len(ranks) > MAX_NAMED else "")
    return f"rank {some}" if len(ranks) == 1 else f"ranks {some}"


def verb(ranks: Sequence[int], one: str, several: str) -> str:
    """Returns the verb form that agrees with `named(ranks)`."""
    return one if len(ranks) == 1 else several


def _fresh(flights: Mapping[int, Flight]) -> dict[int, Flight]:
    newest = max((flight.at for flight in flights.values()), default=0.0)
    return {
        rank: flight
        for rank, flight in sorted(flights.items())
        if flight.why == "ended" or newest - flight.at <= FRESH_SECONDS
    }


def _groups(flights: Mapping[int, Flight]) -> Iterator[Group]:
    """Yields the groups with recordings of several ranks. Groups with one name but different members are different
    groups.
    """
    recorded = [(rank, group) for rank, flight in flights.items() for group in flight.groups if group.name]
    keys = {(group.name, group.ranks): group for _, group in recorded}
    for (name, ranks), first in keys.items():
        members = ranks or tuple(flights)
        calls, last = {}, {}
        for rank in members:
            if rank not in flights:
                continue
            own = next((group for of, group in recorded if of == rank and group.name == name), None)
            if own is None and flights[rank].why == "ended":  # a rank that ended recorded no group names
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
    """Returns the problem of a group; None if no call of the group is waiting."""
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
    """Whether calls with the same number do not fit together."""
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
    found: dict[str, list[int]] = {}
    for rank, text in said.items():
        found.setdefault(text, []).append(rank)
    return list(found.items())
