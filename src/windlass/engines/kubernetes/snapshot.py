"""Asks clusters, for a bounded time, how recorded runs are now, and merges the answers into their statuses.

The record of a run is as old as what its supervisor last wrote: older than the state in the cluster after a reboot,
while the API server is away, and of a run that was declared lost although its pods run.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from windlass.engines.kubernetes import elsewhere
from windlass.engines.kubernetes.client import Client, Unreachable
from windlass.engines.kubernetes.elsewhere import GONE, Seen
from windlass.errors import WindlassError
from windlass.runs.record import Phase, Status

Json = Mapping[str, Any]

ANSWER_SECONDS: Final = 3.0
"""How long a cluster may take to answer: a person waits."""
FRESH_SECONDS: Final = 10.0
"""A record to which its supervisor has added something within this time needs no question."""
WAITING: Final = frozenset({Phase.QUEUED, Phase.PROVISIONING, Phase.PULLING})
RUNNING: Final = frozenset({Phase.STARTING, Phase.TRAINING, Phase.CHECKPOINTING})
REMOVED: Final = "its objects were removed from the cluster"
RECORDED_LOST: Final = "the run is recorded as lost, and the phase is what the cluster reports now"
BEHIND: Final = "the phase is what the cluster reports now, and the record has not followed yet"


class Place(NamedTuple):
    """A namespace of a cluster, and how to reach it."""

    context: str
    namespace: str
    kubeconfig: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a cluster has said of runs."""

    seen: Mapping[str, Seen] = field(default_factory=dict)
    """By id, those that are there."""
    error: str = ""
    """Why it could not be asked; empty where it was."""


def place_of(plan: Json) -> Place:
    """Where the run of a recorded plan takes place."""
    [cluster] = [step["request"] for step in plan["steps"] if step["kind"] == "cluster"]
    return Place(cluster["context"], cluster["namespace"], cluster["kubeconfig"])


def ask(wanted: Mapping[Place, Collection[str]]) -> dict[Place, Answer]:
    """How the runs with these ids are now, by place; all places are asked at once, and none is waited for longer than
    `ANSWER_SECONDS`. Raises nothing."""
    told: queue.SimpleQueue[tuple[Place, Answer]] = queue.SimpleQueue()
    for place, ids in wanted.items():
        words = (told, place, next(iter(ids)) if len(ids) == 1 else "")
        threading.Thread(target=_ask, args=words, name=f"state of runs in {place.context}", daemon=True).start()
    answers: dict[Place, Answer] = {}
    give_up = time.monotonic() + ANSWER_SECONDS
    while len(answers) < len(wanted):
        try:
            place, answer = told.get(timeout=max(0.0, give_up - time.monotonic()))
        except queue.Empty:
            late = Answer(error=f"does not answer within {ANSWER_SECONDS:g} s")
            return {place: answers.get(place, late) for place in wanted}
        answers[place] = answer
    return answers


def _ask(told: queue.SimpleQueue[tuple[Place, Answer]], place: Place, run_id: str) -> None:
    try:
        with contextlib.closing(Client(*place)) as client:
            board = elsewhere.look(client, run_id)
        told.put((place, Answer({seen.id: seen for seen in board.runs(time.time())})))
    except Unreachable as error:
        told.put((place, Answer(error=f"does not answer: {error.message}")))
    except WindlassError as error:
        told.put((place, Answer(error=f"cannot be asked: {error.message}")))


def last_sign(run_dir: Path, status: Status) -> float:
    """When the supervisor last wrote down anything that its cluster said, in Unix seconds, by the files of the run."""
    folder = run_dir / f"attempt-{len(status.attempts)}"
    with contextlib.suppress(OSError):
        return max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)
    return 0.0


def merged(status: Status, seen: Seen | None, as_of: float) -> tuple[Status, str]:
    """A recorded status with what the cluster reports now, and how the two differ; empty where they agree. Pure.

    `seen` is None where the cluster has nothing of the run; `as_of` is how old the record is, in Unix seconds.
    """
    if status.phase is Phase.LOST:
        # A run that ended as lost has a mark of its end that says no more than that it did not end well.
        if seen is None or seen.phase in (Phase.LOST, Phase.FAILED, Phase.RESTARTING):
            return status, ""
        return _as(status, seen.phase, seen.waits_for, as_of), RECORDED_LOST
    if status.phase.is_terminal:
        return status, ""
    phase, waits = _phase(status, seen)
    if phase is status.phase:
        return status, ""
    return _as(status, phase, waits, as_of), BEHIND


def _phase(status: Status, seen: Seen | None) -> tuple[Phase, str]:
    """The phase of an unfinished run, and what it waits for."""
    before = status.phase
    if seen is None:
        return Phase.STOPPING, REMOVED
    if seen.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.STOPPING):
        return seen.phase, ""
    if before in (Phase.STOPPING, Phase.RESTARTING) and seen.attempt <= len(status.attempts):
        return before, ""  # pods of an attempt that is over may still be there
    if seen.phase in (Phase.RESTARTING, Phase.LOST):
        is_between = not status.attempts or status.attempts[-1].ended_at is not None
        is_older = seen.phase is Phase.RESTARTING and seen.attempt < len(status.attempts)
        if is_between or is_older:
            return before, ""  # the objects of the attempt are not made yet
        return Phase.RESTARTING, GONE if seen.phase is Phase.LOST else seen.waits_for
    if seen.phase in WAITING:
        is_finer = before is Phase.PROVISIONING and seen.phase in WAITING
        return (before if is_finer else seen.phase), seen.waits_for
    return (before if before in RUNNING else Phase.STARTING), ""


def _as(status: Status, phase: Phase, waits: str, as_of: float) -> Status:
    """The status in another phase, which counts from `as_of`."""
    ended_at, spent = status.ended_at, dict(status.phases)
    if not status.phase.is_terminal:
        spent[status.phase] = spent.get(status.phase, 0.0) + max(0.0, as_of - status.phase_since)
    since = max(as_of, status.phase_since)
    kept = ended_at if phase.is_terminal else None
    return replace(status, phase=phase, phase_since=since, phases=spent, waits_for=waits or None, ended_at=kept)
