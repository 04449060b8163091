"""Where attempts on this machine take place: the plan's requests, with what is known only by now, become nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from windlass.engines.keeping.membership import composed, heartbeat
from windlass.engines.keeping.recording import Recording
from windlass.engines.keeping.requests import completed
from windlass.engines.local import netns, ports
from windlass.engines.local.attempt import Attempt
from windlass.engines.local.warm import WarmPool
from windlass.plan.plan import Plan
from windlass.runs.store import Store

MASTER_ADDR: Final = "127.0.0.1"


class LocalGround:
    """This machine, for one run."""

    outlives_supervisor = False
    is_lost_to_another = False
    """The lock of the run is one of this machine: no other supervisor can hold it."""

    def __init__(self, plan: Plan, _run_dir: Path) -> None:
        self._plan = plan

    def hold(self) -> bool:
        """See `Ground`."""
        return True

    def is_started(self, folder: Path) -> bool:
        """See `Ground`. A node without a sign of life died before it began."""
        return True

    def trouble(self) -> None:
        """See `Ground`."""
        return

    def lives(self) -> bool:
        """See `Ground`. The nodes are looked at one by one, by `Attempt`."""
        return False

    def start(self, record: Recording, folder: Path, number: int, members: Sequence[int], wake: int) -> Attempt:
        """See `Ground`. Raises EngineError, OSError."""
        for made in self._plan.requests("folder"):
            Path(made["path"]).mkdir(parents=True, exist_ok=True)
            # Of a later attempt it is there. Where it cannot be looked at for a while, the ranks repeat that.
            with contextlib.suppress(*((OSError,) if number > 1 else ())):
                Path(made["checkpoints"]).mkdir(parents=True, exist_ok=True)
        with contextlib.closing(ports.reserve(self._plan.policy["port"])) as port:
            pool = WarmPool(record.writer.store.home)
            in_networks = _in_networks(self._plan, record, folder.parent, number, members)
            requests = [completed(request, record) for request in in_networks]
            is_free = bool(self._plan.policy.get("port_is_free"))
            return Attempt.start(folder, number, requests, (MASTER_ADDR, port), wake, pool, is_free=is_free)

    def adopt(self, folder: Path, number: int, members: Sequence[int], wake: int) -> Attempt:
        """See `Ground`. The nodes cannot wake us: they have the end of a pipe that is gone."""
        return Attempt.adopt(folder, composed(self._plan, members))

    def unplugged(self) -> set[int]:
        """See `Ground`."""
        return set().union(*(netns.unplugged(network) for network in self._plan.requests("network")))

    def clear(self, record: Recording) -> None:
        """Remove the networks, before the end is written: a run that has ended is looked after by nobody."""
        for network in self._plan.requests("network"):
            for refused in netns.remove(network):
                record.note("warning", {"message": f"left behind: {refused}"})

    def finish(self, record: Recording, *, is_patient: bool = True) -> None:
        """See `Ground`."""

    def see_off(self, store: Store) -> None:
        """See `Ground`. Nothing is left of a run here once it has ended."""


def _in_networks(
    plan: Plan, record: Recording, run_dir: Path, number: int, members: Sequence[int]
) -> list[Mapping[str, Any]]:
    """The requests of the nodes that take part, once their networks are there, if they are to have any.

    The networks outlive an attempt: what was cut stays cut. Raises EngineError, OSError.
    """
    requests = composed(plan, members)
    for network in plan.requests("network"):
        if netns.make(network, run_dir):
            record.note("network", {name: network[name] for name in ("interface", "rate", "nodes")})
        meeting_point = netns.meeting_point(network, number, members[0])
        requests = [{**request, "env": {**meeting_point, **request["env"]}} for request in requests]
        if len(requests) > 1:
            attempt_id = f"{plan.run_id}.{number}"
            requests = [
                {**request, "heartbeat": heartbeat(network, members, request["node"], attempt_id)}
                for request in requests
            ]
    return requests
