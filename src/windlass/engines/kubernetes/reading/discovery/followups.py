"""Requests what the lists of runs do not show: owner objects other than Jobs, and nodes that are being provisioned.

Most lists of runs need none of these requests, and then do not import the modules that parse the responses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.quantity import Json

MAX_OBJECTS: Final = "1000"
SUSPENDED: Final = "Suspended"
PLAIN: Final = ("Scheduled", "Pulling", "Pulled", "Created", "Started", "Killing", "BackOff")
OF_PODS: Final = ",".join(("involvedObject.kind=Pod", *(f"reason!={reason}" for reason in PLAIN)))


@dataclass(frozen=True, slots=True)
class More:
    """Results of the requests about single runs that follow the list of runs."""

    makers: Mapping[str, tuple[int, str, int]] = field(default_factory=dict)
    """Newest owner object of each run, unless it is a Job: its attempt, its state, and its number of pods."""
    coming: Mapping[str, str] = field(default_factory=dict)
    """Node capacity being provisioned for each waiting pod, by pod name: a NodeClaim, or a scale-up `group 1->3`."""
    unlisted: tuple[str, ...] = ()
    """Kinds of owner objects that the user may not list."""


def ask(client: Client, selector: str, bare: Collection[str], waiting: Collection[str]) -> More:
    """Makes the additional requests for these runs and pods. Raises Unreachable; results that the user may not read are
    missing.

    `bare` are runs without Jobs and pods, `waiting` are pods without a node; `selector` selects the objects of runs.
    """
    makers, unlisted = _makers(client, selector, bare) if bare else ({}, ())
    return More(makers, _coming(client, waiting) if waiting else {}, unlisted)


def _makers(
    client: Client, selector: str, runs: Collection[str]
) -> tuple[dict[str, tuple[int, str, int]], tuple[str, ...]]:
    """Returns the newest owner object of each run, and the kinds that the user may not list."""
    from windlass.engines.kubernetes.objects.workloads import OWNER_KINDS
    from windlass.engines.kubernetes.objects.workloads.job import BATCH

    found: dict[str, tuple[int, str, int]] = {}
    unlisted = []
    for api, kind in OWNER_KINDS:
        if api == BATCH:  # the object lists already contain Jobs
            continue
        try:
            items = client.find(api, kind, selector)["items"]
        except Refused as error:
            if error.status == 403:  # 404 means that the kind is not installed, and no such object exists
                unlisted.append(kind)
            continue
        for one in items:
            labels = one["metadata"].get("labels", {})
            run_id, number = labels.get(layout.RUN_LABEL, ""), layout.attempt_of(one)
            if run_id in runs and number > found.get(run_id, (0,))[0]:
                found[run_id] = (number, _word(one), _wanted(one))
    return found, tuple(unlisted)


def _word(owner: Json) -> str:
    """Returns the state of an owner object in the words of a Job's status column."""
    from windlass.engines.kubernetes.objects.object_reports import end_of
    from windlass.engines.kubernetes.reading.admission import is_suspended

    if end := end_of(owner):
        return "Failed" if end == "Failed" else "Complete"
    return SUSPENDED if is_suspended(owner) else "Running"


def _wanted(owner: Json) -> int:
    """Returns the number of pods of a PyTorchJob or MPIJob; 0 for other kinds."""
    spec = owner.get("spec", {})
    replicas: Mapping[str, Json] = spec.get("pytorchReplicaSpecs") or spec.get("mpiReplicaSpecs") or {}
    return sum(int(one.get("replicas", 1)) for one in replicas.values())


def _coming(client: Client, waiting: Collection[str]) -> dict[str, str]:
    """Returns, by pod, the node capacity being provisioned for it, from the newest event of a node autoscaler."""
    from windlass.engines.kubernetes.reading import claims

    try:
        events = client.find("v1", "Event", fieldSelector=OF_PODS, limit=MAX_OBJECTS)["items"]
    except Refused:
        return {}
    found = claims.newest_events(events, waiting)
    nodes = {pod: ", ".join(one.name for one in claims.provisioned_by(event, 0.0)) for pod, event in found.items()}
    return {pod: name for pod, name in nodes.items() if name}
