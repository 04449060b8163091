"""Starts an attempt: the plan's requests, with what is known of the run only by now, become nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from windlass.engines.local import netns, ports
from windlass.engines.local.attempt import Attempt
from windlass.engines.local.membership import compose, heartbeat
from windlass.engines.local.warm import WarmPool
from windlass.engines.recording import Recording
from windlass.plan.plan import Plan
from windlass.runs.attempts import asked_to_resume, resume_environment

MASTER_ADDR: Final = "127.0.0.1"


def composed(plan: Plan, members: Sequence[int]) -> list[Mapping[str, Any]]:
    """The requests of the nodes that take part."""
    return compose(plan.requests("node"), members, plan.num_nodes, plan.procs_per_node)


def start(plan: Plan, record: Recording, folder: Path, number: int, members: Sequence[int], wake: int) -> Attempt:
    """Start the nodes that take part; each writes a byte to `wake` whenever it says something.

    `folder` is the attempt's, in that of the run. Raises EngineError, OSError.
    """
    for made in plan.requests("folder"):
        Path(made["path"]).mkdir(parents=True, exist_ok=True)
        Path(made["checkpoints"]).mkdir(parents=True, exist_ok=True)
    with contextlib.closing(ports.reserve(plan.policy["port"])) as port:
        pool = WarmPool(record.writer.store.home)
        in_networks = _in_networks(plan, record, folder.parent, number, members)
        requests = [_completed(request, record) for request in in_networks]
        return Attempt.start(folder, number, requests, (MASTER_ADDR, port), wake, pool)


def remove_networks(plan: Plan, record: Recording) -> None:
    """Before the end is written: a run that has ended is looked after by nobody."""
    for network in plan.requests("network"):
        for refused in netns.remove(network):
            record.note("warning", {"message": f"left behind: {refused}"})


def _completed(request: Mapping[str, Any], record: Recording) -> dict[str, Any]:
    """A node's request with what is known of this run only by now."""
    asked = asked_to_resume(request, record.status, record.writer.events())
    completed = {**asked, "env": {**request["env"], **resume_environment(record.status)}}
    if "notices" in request:  # what was heeded already is not heeded again
        completed["notices"] = {**request["notices"], "known": record.history.obeyed}
    return completed


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
