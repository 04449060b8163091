"""Pod reuse: runs the next attempt in the pods of the one before, if they are alive (`worker/pod_reuse.py`).

This saves the seconds of scheduling, containers and code transfer. Where a pod was lost, and its owner object has kept
the others, only that one is made anew, by an owner object of its own. Where a pod does not accept its order, the caller
creates new pods for all nodes and deletes all of these.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.control import PodControl, Request
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pod_status import container_state
from windlass.engines.kubernetes.running.pod_watch import Pod, PodId, by_id, selector
from windlass.errors import EngineError
from windlass.runs.events import Event, PodsReused, entries
from windlass.worker import pod_reuse
from windlass.worker.protocol import NodeSpec, pack

SECONDS: Final = 60.0
"""How long pods stay alive: longer than a supervisor needs, and short, since idle pods cost money."""
ANSWER_SECONDS: Final = pod_reuse.STILL_ENDING_SECONDS + 5.0
SPARE_ORDERS: Final = 6
"""How often a spare is given its order: it refuses one after `STILL_ENDING_SECONDS` in which it did not wait for it."""
_FILE: Final = "made-for"
MOST_ATTEMPTS: Final = 1_000_000


# -- the record -------------------------------------------------------------------------------------------------------


def own_pods(number: int, num_nodes: int) -> tuple[PodId, ...]:
    """The pods of attempt `number` where all are made for it."""
    return tuple(PodId(number, index) for index in range(num_nodes))


def decided_pods(folder: Path, num_nodes: int) -> tuple[PodId, ...] | None:
    """In which pods it was decided that the attempt of this folder runs; None where nothing was."""
    try:
        found = json.loads((folder / _FILE).read_text())
        ids = own_pods(found, num_nodes) if isinstance(found, int) else tuple(PodId(*one) for one in found)
    except (OSError, ValueError, TypeError):
        return None
    return ids if len(ids) == num_nodes else None


def pods_of(folder: Path, number: int, num_nodes: int) -> tuple[PodId, ...]:
    """The pods of attempt `number`, by place; `folder` is that of the attempt."""
    return decided_pods(folder, num_nodes) or own_pods(number, num_nodes)


def is_ordered(folder: Path, number: int) -> bool:
    """Whether attempt `number`, of this folder, was ordered from pods of earlier ones."""
    with contextlib.suppress(OSError, ValueError):
        return bool(json.loads((folder / _FILE).read_text()) != number)
    return False


def decision(number: int, ids: Sequence[PodId]) -> PodsReused:
    """What is recorded of the pods of attempt `number`."""
    [(made_for, _)] = Counter(one.made_for for one in ids if one.made_for < number).most_common(1) or [(number, 0)]
    if tuple(ids) == own_pods(made_for, len(ids)):
        return PodsReused(number, made_for)
    return PodsReused(number, made_for, tuple((one.made_for, one.index) for one in ids))


def keep_decision(folder: Path, decided: PodsReused) -> None:
    """Keep it in the folder of the attempt. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / _FILE).write_text(json.dumps(decided.pods or decided.made_for))


def restore_decisions(run_dir: Path, events: Iterable[Event]) -> None:
    """Write what `keep_decision` wrote on the machine whose supervisor recorded these events. Raises OSError."""
    for one in entries(events, PodsReused):
        made_for = [one.made_for, *(made_for for made_for, _ in one.pods)]
        # Others are no names of folders.
        if all(0 < number <= one.attempt < MOST_ATTEMPTS for number in made_for):
            keep_decision(run_dir / f"attempt-{one.attempt}", one)


# -- requests ---------------------------------------------------------------------------------------------------------


def running(client: Client, run_id: str, ids: Sequence[PodId]) -> dict[int, Pod]:
    """Those of these pods that run, by place. Raises EngineError."""
    found = by_id(client.find("v1", "Pod", selector(run_id, ids))["items"])
    return {place: found[one] for place, one in enumerate(ids) if one in found and _is_well(found[one])}


def order(
    control: PodControl,
    number: int,
    specs: Sequence[NodeSpec],
    ids: Sequence[PodId],
    pods: Mapping[int, Pod],
    spares: Collection[int] = (),
) -> bool:
    """Start an attempt in these pods, by place, each its node; returns whether all of them do.

    At the places `spares` are pods that may have to import first: a new pod would take longer.
    """
    orders = {place: Request.order(number, pack(number, {ids[place].index: specs[place]})) for place in pods}
    if max(one.num_bytes for one in orders.values()) > control.max_bytes:
        return False
    left = list(orders)
    for _ in range(SPARE_ORDERS):
        answers = list(control.call_all([(pods[place], orders[place]) for place in left], ANSWER_SECONDS))
        left = [left[at] for at, answer in answers if answer != pod_reuse.TAKEN]
        if not left or any(place not in spares for place in left):
            break
    return not left


def release(client: Client, control: PodControl, run_id: str, made_for: int) -> set[str]:
    """End pods that stay alive when no attempt follows in them; those that do not answer end after `SECONDS`.

    Returns the names of those that have answered, in which no rank runs.
    """
    which = f"{layout.selector(run_id)},{layout.ATTEMPT_LABEL}={made_for}"
    with contextlib.suppress(EngineError):
        return dismiss(control, by_id(client.find("v1", "Pod", which)["items"]).values())
    return set()


def dismiss(control: PodControl, pods: Iterable[Pod]) -> set[str]:
    """End those of these pods that run and wait for an attempt; returns the names of those that have answered."""
    pods = [pod for pod in pods if _is_well(pod)]
    answers = control.call_all([(pod, Request.leave()) for pod in pods], ANSWER_SECONDS)
    return {pods[at]["metadata"]["name"] for at, answer in answers if answer == pod_reuse.TAKEN}


def _is_well(pod: Pod) -> bool:
    return container_state(pod)[0] == "running" and "deletionTimestamp" not in pod["metadata"]
