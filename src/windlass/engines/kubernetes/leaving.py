"""Stays after the end of a run until the machines that were made for it are gone, and says of each when it went.

Karpenter ends them by its own rules; nobody is asked to hurry it. A machine that is gone leaves no trace in the
cluster, so whoever wants to know when it went must be there: the process that has kept the run is, and stays for so
long. It holds nothing meanwhile: the run may be resumed or removed, which ends the watch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from windlass.diagnose.observations import ComingSeen
from windlass.engines.kubernetes import coming, scaling
from windlass.engines.kubernetes.client import Client
from windlass.errors import EngineError, WindlassError
from windlass.runs.store import Store

Json = Mapping[str, Any]

STAY_SECONDS: Final = 1800.0
"""Machines that are not taken away by then are kept for a reason that we do not know."""
LOOK_SECONDS: Final = 5.0
KEPT: Final = "kept"


def see_off(store: Store, run_id: str, client: Client) -> None:
    """Write into the record of an ended run when each of its machines went."""
    with contextlib.suppress(WindlassError):
        if store.status(run_id).phase.is_terminal and _left(store, run_id):
            _watch(store, run_id, client)


def _watch(store: Store, run_id: str, client: Client) -> None:
    """Look until none is left, or nobody is to look any more. Raises WindlassError."""
    give_up = time.monotonic() + STAY_SECONDS
    while time.monotonic() < give_up:
        if not store.status(run_id).phase.is_terminal:
            return
        try:
            machines = _look(store, run_id, client, _left(store, run_id))
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # an object that is not as we know it
            client.health.crashed("machines", error)
            for event in client.health.news():
                _note(store, run_id, {"message": event["message"]}, kind="warning")
            machines = _left(store, run_id)
        if not machines:
            return
        time.sleep(LOOK_SECONDS)
    for one in _left(store, run_id):
        _note(store, run_id, {**coming.event_of(one), "state": KEPT})


def _look(store: Store, run_id: str, client: Client, machines: list[ComingSeen]) -> list[ComingSeen]:
    """Write down what has changed; gives the machines that are left. Raises WindlassError."""
    there = _there(client)
    if there is None:
        return machines
    for event, at in came(machines, there, time.time()):
        _note(store, run_id, event, at)
    for event in gone(machines, list(there)):
        _note(store, run_id, event)
    return [one for one in machines if one.name in there]


def came(
    machines: Sequence[ComingSeen], there: Mapping[str, Json], now: float
) -> Iterator[tuple[dict[str, Any], float]]:
    """The events of steps that machines have made since they were last seen, each with when it was. Pure.

    A short run may end before its machine has come all the way.
    """
    for one in machines:
        if one.name in there and one.state not in coming.FINAL:
            every = coming.steps(there[one.name], coming.claim_seen(there[one.name], None, now), now)
            states = [step.state for step in every]
            later = every[states.index(one.state) + 1 :] if one.state in states else every
            yield from ((coming.event_of(step), now - step.seconds) for step in later)


def gone(machines: Sequence[ComingSeen], there: Sequence[str]) -> list[dict[str, Any]]:
    """The event of each machine that is not there any more, with how many are left after it. Pure."""
    went = [one for one in machines if one.name not in there]
    num_left = len(machines)
    found = []
    for one in went:
        num_left -= 1
        found.append({**coming.event_of(one), "state": "gone", "left": num_left})
    return found


def _left(store: Store, run_id: str) -> list[ComingSeen]:
    known = coming.recorded(store.events(run_id), time.time(), every_attempt=True)
    return [one for one in coming.left(known) if one.state != KEPT]


def _there(client: Client) -> dict[str, Json] | None:
    """The NodeClaims that there are, by name; None where nobody says so now."""
    with contextlib.suppress(EngineError):
        answers = scaling.claims(client)
        return None if answers is None else {one["metadata"]["name"]: one for one in answers}
    return None


def _note(store: Store, run_id: str, event: dict[str, Any], at: float | None = None, *, kind: str = "machine") -> None:
    """One more event of an ended run; whoever holds it now has begun it anew, and then it is not ours to write."""
    writer = store.writer(run_id)
    if writer is None:
        return
    with contextlib.closing(writer):
        if writer.status.phase.is_terminal:
            writer.append(kind, event, at=at)
