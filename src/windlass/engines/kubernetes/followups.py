"""Asks for what the lists of runs leave open: how one ended, what holds one back, which nodes are being provisioned.

Each question is put only where a run needs it: most lists of runs cost no request more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from windlass.engines.kubernetes import coming, layout
from windlass.engines.kubernetes.client import Client, Refused
from windlass.engines.kubernetes.queueing import is_suspended
from windlass.engines.kubernetes.ways import MAKERS
from windlass.engines.kubernetes.ways.job import BATCH

Json = Mapping[str, Any]

MOST: Final = "1000"
SUSPENDED: Final = "Suspended"
ENDS: Final = {"Complete": "Complete", "Completed": "Complete", "Succeeded": "Complete", "Failed": "Failed"}
"""Conditions that end an owner object, of whichever kind, and how the row of a Job says the same."""
PLAIN: Final = ("Scheduled", "Pulling", "Pulled", "Created", "Started", "Killing", "BackOff")
OF_PODS: Final = ",".join(("involvedObject.kind=Pod", *(f"reason!={reason}" for reason in PLAIN)))


@dataclass(frozen=True, slots=True)
class More:
    """What the lists of runs leave open, as far as it was asked."""

    ends: Mapping[str, str] = field(default_factory=dict)
    """By run, `well` or `badly`, from marks that have it in their data alone (made by older versions)."""
    makers: Mapping[str, tuple[int, str, int]] = field(default_factory=dict)
    """By run, its newest owner object of another kind than Job: the attempt, how it is, how many pods it is to have."""
    coming: Mapping[str, str] = field(default_factory=dict)
    """By pod, the node that is being provisioned for it: a NodeClaim, or the group that grows."""
    unlisted: tuple[str, ...] = ()
    """Kinds of owner objects that may not be listed."""


def ask(client: Client, selector: str, bare: Collection[str], ended: Collection[str], waiting: Collection[str]) -> More:
    """Ask what is open now. Raises Unreachable; what may not be read stays open.

    `bare` are runs without Jobs and pods, `ended` those of which only the mark of their end is left, `waiting` are pods
    without a node; `selector` is that of objects of runs.
    """
    makers, unlisted = _makers(client, selector, bare) if bare else ({}, ())
    ends = {run_id: how for run_id in ended if (how := _how(client, run_id))}
    return More(ends, makers, _coming(client, waiting) if waiting else {}, unlisted)


def _how(client: Client, run_id: str) -> str:
    """How a run has ended, from the data of the mark."""
    try:
        mark = client.get("v1", "ConfigMap", layout.mark_name(run_id, "end"))
    except Refused:
        return ""
    return str(mark.get("data", {}).get("how", ""))


def _makers(
    client: Client, selector: str, runs: Collection[str]
) -> tuple[dict[str, tuple[int, str, int]], tuple[str, ...]]:
    """The newest owner object of each of these runs, and the kinds that may not be listed."""
    found: dict[str, tuple[int, str, int]] = {}
    unlisted = []
    for api, kind in MAKERS:
        if api == BATCH:  # Jobs are on the board
            continue
        try:
            items = client.find(api, kind, selector)["items"]
        except Refused as error:
            if error.status == 403:  # 404: it is not installed, and nothing of it can be there
                unlisted.append(kind)
            continue
        for one in items:
            labels = one["metadata"].get("labels", {})
            run_id, number = labels.get(layout.RUN_LABEL, ""), labels.get(layout.ATTEMPT_LABEL, "")
            if run_id in runs and number.isdigit() and int(number) > found.get(run_id, (0,))[0]:
                found[run_id] = (int(number), _word(one), _wanted(one))
    return found, tuple(unlisted)


def _word(owner: Json) -> str:
    """How an owner object is, in the words of a Job's row."""
    for condition in owner.get("status", {}).get("conditions", ()):
        if condition.get("status") == "True" and condition["type"] in ENDS:
            return ENDS[condition["type"]]
    return SUSPENDED if is_suspended(owner) else "Running"


def _wanted(owner: Json) -> int:
    """How many pods a PyTorchJob or MPIJob is to have; 0 for kinds that say it in a template of theirs."""
    spec = owner.get("spec", {})
    replicas: Mapping[str, Json] = spec.get("pytorchReplicaSpecs") or spec.get("mpiReplicaSpecs") or {}
    return sum(int(one.get("replicas", 1)) for one in replicas.values())


def _coming(client: Client, waiting: Collection[str]) -> dict[str, str]:
    """By pod, the node that is being provisioned for it, as its newest event of a node autoscaler says."""
    try:
        events = client.find("v1", "Event", fieldSelector=OF_PODS, limit=MOST)["items"]
    except Refused:
        return {}
    return dict(_named(coming.newest(events, waiting)))


def _named(newest: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for pod, event in newest.items():
        groups = ", ".join(one.name for one in coming.groups(event))
        if name := coming.nominated(event) or groups:
            yield pod, name
