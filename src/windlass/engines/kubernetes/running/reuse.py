"""Pod reuse: runs the next attempt in the live pods of the previous one (`worker/pod_reuse.py`).

Reuse saves the time of scheduling, container start and code transfer. If a pod was lost and its owner object has kept
the other pods, a separate owner object creates a replacement for the lost pod alone. If a pod does not accept its
order, the caller creates new pods for all nodes and deletes the old ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.control import PodControl, Request
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment
from windlass.engines.kubernetes.objects.pod_status import container_state
from windlass.engines.kubernetes.objects.pods import Pod, by_id
from windlass.errors import EngineError
from windlass.worker import pod_reuse
from windlass.worker.protocol import NodeSpec, pack

ANSWER_SECONDS: Final = pod_reuse.STILL_ENDING_SECONDS + 5.0
SPARE_ORDERS: Final = 6
"""Maximum number of orders to a spare. A spare that is still importing refuses an order after
`STILL_ENDING_SECONDS`."""


def running(client: Client, run_id: str, assignment: PodAssignment) -> dict[int, Pod]:
    """Returns the running pods of an attempt, by the place of their node. Raises EngineError."""
    found = assignment.by_place(client.find("v1", "Pod", assignment.selector(run_id))["items"])
    return {place: pod for place, pod in found.items() if _is_well(pod)}


def order(
    control: PodControl,
    assignment: PodAssignment,
    specs: Sequence[NodeSpec],
    pods: Mapping[int, Pod],
    spares: Collection[int] = (),
) -> bool:
    """Sends each pod the order to start its node of the attempt. Returns whether all pods accepted.

    Keys of `pods` are the places of the nodes in the attempt. `spares` are the places whose pods were spares until now:
    they may have to finish their imports first.
    """
    number = assignment.attempt
    nodes = {place: {assignment.pods[place].index: specs[place]} for place in pods}
    orders = {place: Request.order(number, pack(number, node)) for place, node in nodes.items()}
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
    """Ends pods that wait for another attempt if none follows. Pods that do not answer end after `STAY_SECONDS`.

    Returns the names of the pods that have answered, in which no rank runs.
    """
    which = f"{layout.selector(run_id)},{layout.ATTEMPT_LABEL}={made_for}"
    with contextlib.suppress(EngineError):
        return dismiss(control, by_id(client.find("v1", "Pod", which)["items"]).values())
    return set()


def dismiss(control: PodControl, pods: Iterable[Pod]) -> set[str]:
    """Ends running pods that wait for another attempt; returns the names of the pods that have answered."""
    pods = [pod for pod in pods if _is_well(pod)]
    answers = control.call_all([(pod, Request.leave()) for pod in pods], ANSWER_SECONDS)
    return {pods[at]["metadata"]["name"] for at, answer in answers if answer == pod_reuse.TAKEN}


def _is_well(pod: Pod) -> bool:
    return container_state(pod)[0] == "running" and "deletionTimestamp" not in pod["metadata"]
