"""Asks a cluster what makes machines for it, and what comes of it for pods that have none.

No run needs any of it: what a login may not read is left out. Events of its own namespace it may always read, and these
tell already that a machine comes, and why none can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from windlass.diagnose.observations import ComingSeen, ObjectSaid, ScalingSeen
from windlass.engines.kubernetes import coming, pools
from windlass.engines.kubernetes.client import Client, Refused
from windlass.errors import EngineError

Json = Mapping[str, Any]
MOST: Final = "1000"
"""Objects of a kind that are read."""
SAID: Final = f"reason={coming.FAILED},source!=default-scheduler"
OF_CLAIMS: Final = "involvedObject.kind=NodeClaim"
EVENTS_OF_CLUSTER: Final = "default"
"""Where events are kept of objects that are in no namespace."""
STATUS_OF_AUTOSCALER: Final = ("kube-system", "cluster-autoscaler-status")


@dataclass(frozen=True, slots=True)
class Machines:
    """What makes machines for a cluster, and those that are there, for a plan."""

    pools: tuple[Json, ...] = ()
    """NodePools of Karpenter."""
    nodes: tuple[Json, ...] | None = None
    """None where they may not be listed."""
    claims: tuple[Json, ...] = ()


def served(client: Client) -> str:
    """The API of the Karpenter that is installed; empty where there is none. Raises EngineError."""
    try:
        group = client.call("GET", f"/apis/{pools.GROUP}")
    except Refused as error:
        if error.status in (403, 404):
            return ""
        raise
    return pools.api_of({one["groupVersion"] for one in group.get("versions", ())})


def machines(client: Client) -> Machines | None:
    """What a plan has to know; None where nothing makes machines, or that may not be read. Raises EngineError."""
    api = served(client)
    found = _items(lambda: client.find(api, "NodePool", limit=MOST)) if api else None
    if not found:
        return None
    nodes = _items(lambda: client.find("v1", "Node", limit=MOST))
    claims = _items(lambda: client.find(api, "NodeClaim", limit=MOST))
    return Machines(tuple(found), None if nodes is None else tuple(nodes), tuple(claims or ()))


def claims(client: Client) -> list[Json] | None:
    """The NodeClaims that there are; None where they may not be listed. Raises EngineError."""
    api = served(client)
    return _items(lambda: client.find(api, "NodeClaim", limit=MOST)) if api else None


def autoscaler(client: Client) -> Json | None:
    """What Cluster Autoscaler says of itself, of versions that say it as YAML. None where it is not there, or unseen.

    Raises EngineError.
    """
    namespace, name = STATUS_OF_AUTOSCALER
    try:
        found = client.within(namespace).get("v1", "ConfigMap", name)
    except Refused as error:
        if error.status in (403, 404):
            return None
        raise
    return autoscaler_status(found)


def autoscaler_status(found: Json) -> Json | None:
    """The status in that object; None where it is none that we know. Pure."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        status = YAML(typ="safe", pure=True).load(str(found.get("data", {}).get("status", "")))
    except YAMLError:
        return None
    return status if isinstance(status, dict) and "autoscalerStatus" in status else None


def questions(client: Client, api: str) -> dict[str, Callable[[], Json]]:
    """What to ask where pods have no machine; `api` is Karpenter's, empty where there is none."""
    if not api:
        return {}
    return {
        "pools": lambda: client.find(api, "NodePool", limit=MOST),
        "claims": lambda: client.find(api, "NodeClaim", limit=MOST),
        "refused": lambda: client.find("v1", "Event", fieldSelector=SAID, limit=MOST),
        "of claims": lambda: client.within(EVENTS_OF_CLUSTER).find("v1", "Event", fieldSelector=OF_CLAIMS, limit=MOST),
    }


def look(client: Client, api: str) -> dict[str, Any]:
    """The answers to these questions, one after the other; without those that were refused. Raises EngineError."""
    answers: dict[str, Any] = {}
    for name, question in questions(client, api).items():
        found = _items(question)
        if found is not None:
            answers[name] = {"items": found}
    return answers


def seen(
    pods: Sequence[Json], spec: Json, events: Iterable[Json], answers: Mapping[str, Any], nodes: Sequence[Json] | None,
    known: Sequence[ComingSeen], now: float,
) -> tuple[ScalingSeen, list[ObjectSaid]]:  # fmt: skip
    """What machines come for these pods, which do not run yet, and what is said where none does. Pure.

    `events` are those of the namespace, `answers` what was asked for, `known` what was seen before. The scheduler may
    give a pod to a machine that is in the cluster and not ready.
    """
    last = coming.newest((*events, *_answer(answers, "refused")), [pod["metadata"]["name"] for pod in pods])
    queued = [pod for pod in pods if not machine_of(pod)]
    claims = _answer(answers, "claims")
    found = pools.pools_seen(_answer(answers, "pools"), spec, pools.sizes_of(nodes or (), claims))
    given = [one for pod in pods if (one := _given(machine_of(pod), claims, nodes, now)) is not None]
    known = tuple({one.name: one for one in (*given, *known)}.values())
    comes = _coming(last, known, claims if "claims" in answers else None, nodes, now)
    begun = min((pod["metadata"].get("creationTimestamp", "") for pod in queued), default="")
    able = {pool.name for pool in found if not pool.refusals}
    failed = coming.failures(_answer(answers, "of claims"), {one.name for one in comes}, able, begun) if queued else []
    scaling = ScalingSeen(found if "pools" in answers else None, comes, pools.has_room(nodes or (), spec))
    said = coming.refused({pod["metadata"]["name"]: last[pod["metadata"]["name"]] for pod in queued
                           if pod["metadata"]["name"] in last})  # fmt: skip
    return scaling, [*said, *failed]


def machine_of(pod: Json) -> str:
    """The node that a pod was given to; empty where it has none."""
    return str(pod.get("spec", {}).get("nodeName") or "")


def _given(machine: str, claims: Iterable[Json], nodes: Sequence[Json] | None, now: float) -> ComingSeen | None:
    """The claim of a machine."""
    found = (one for one in claims if machine and one.get("status", {}).get("nodeName") == machine)
    claim = next(found, None)
    return None if claim is None else coming.claim_seen(claim, nodes, now)


def _coming(
    last: Mapping[str, Json], known: Sequence[ComingSeen], claims: Sequence[Json] | None, nodes: Sequence[Json] | None,
    now: float,
) -> tuple[ComingSeen, ...]:  # fmt: skip
    """The machines of which it was said that they come, as far as they are by now."""
    found = {one.name: one for one in known}
    for event in last.values():
        if name := coming.nominated(event):
            found.setdefault(name, ComingSeen(name, seconds=max(0.0, now - coming.seconds_of(coming.when(event), now))))
        for group in coming.groups(event):
            found.setdefault(group.name, group)
    if claims is None:
        return tuple(found.values())
    there = {claim["metadata"]["name"]: claim for claim in claims}
    seen = [_as_it_is(one, there, nodes, now) for one in found.values()]
    return tuple(dict.fromkeys((*seen, *_in_place_of(seen, claims, last, nodes, now))))


def _in_place_of(
    seen: Sequence[ComingSeen], claims: Sequence[Json], last: Mapping[str, Json], nodes: Sequence[Json] | None,
    now: float,
) -> Iterator[ComingSeen]:  # fmt: skip
    """Claims of the same pools that were made after one came to nothing: that a pod is for another, it is not told
    again within two minutes."""
    names = {one.name for one in seen}
    lost = {coming.nominated(event): coming.when(event) for event in last.values()}
    for gone in (one for one in seen if one.state == "gone" and one.name in lost):
        for claim in claims:
            other = coming.claim_seen(claim, nodes, now)
            is_later = claim["metadata"].get("creationTimestamp", "") >= lost[gone.name]
            if other.name not in names and other.pool == pool_of(gone) and is_later:
                yield other


def pool_of(one: ComingSeen) -> str:
    """The pool of a claim, which begins its name."""
    return one.pool or one.name.rpartition("-")[0]


def _as_it_is(one: ComingSeen, claims: Mapping[str, Json], nodes: Sequence[Json] | None, now: float) -> ComingSeen:
    if one.name in claims:
        return coming.claim_seen(claims[one.name], nodes, now)
    is_group = " " in one.name
    return one if is_group else replace(one, state="gone", reason="", message="", seconds=0.0)


def _answer(answers: Mapping[str, Any], name: str) -> list[Any]:
    found = answers.get(name)
    return [] if found is None or isinstance(found, EngineError) else list(found["items"])


def _items(question: Callable[[], Json]) -> list[Any] | None:
    """The objects of a list; None where they may not be listed. Raises EngineError."""
    try:
        return list(question()["items"])
    except Refused as error:
        if error.status in (403, 404):
            return None
        raise
