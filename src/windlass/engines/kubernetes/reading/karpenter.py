"""Reads the state of Karpenter and Cluster Autoscaler; objects that the user may not read are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.optional import items, served, unless_absent
from windlass.engines.kubernetes.objects.node_pools import GROUP
from windlass.engines.kubernetes.objects.quantity import Json
from windlass.engines.kubernetes.reading.claims import FAILED

MAX_OBJECTS: Final = "1000"
"""Maximum number of objects of a kind that are read."""
REFUSED: Final = f"reason={FAILED},source!=default-scheduler"
OF_CLAIMS: Final = "involvedObject.kind=NodeClaim"
EVENTS_OF_CLUSTER: Final = "default"
"""Namespace of events about cluster-scoped objects."""


def questions(client: Client, api: str) -> dict[str, Callable[[], Json]]:
    """Returns the requests to make, by name, if pods have no node. `api` is Karpenter's API version; empty if Karpenter
    is not installed.
    """
    if not api:
        return {}
    return {
        "claims": lambda: client.find(api, "NodeClaim", limit=MAX_OBJECTS),
        "refused": lambda: client.find("v1", "Event", fieldSelector=REFUSED, limit=MAX_OBJECTS),
        "of claims": lambda: client.within(EVENTS_OF_CLUSTER).find(
            "v1", "Event", fieldSelector=OF_CLAIMS, limit=MAX_OBJECTS
        ),
    }


def node_pools(client: Client) -> tuple[Json, ...] | None:
    """Returns the NodePools; None if Karpenter is not installed or the user may not list them. Raises EngineError."""
    api = served(client, GROUP)
    found = items(lambda: client.find(api, "NodePool", limit=MAX_OBJECTS)) if api else None
    return None if found is None else tuple(found)


def autoscaler_status(client: Client) -> Json | None:
    """Returns the status of Cluster Autoscaler; None if there is none, or its version does not write YAML. Raises
    EngineError.
    """
    found = unless_absent(lambda: client.within("kube-system").get("v1", "ConfigMap", "cluster-autoscaler-status"))
    return None if found is None else parsed_status(found)


def parsed_status(found: Json) -> Json | None:
    """Returns the status in Cluster Autoscaler's ConfigMap; None if its format is unknown. Pure."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        status = YAML(typ="safe", pure=True).load(str(found.get("data", {}).get("status", "")))
    except YAMLError:
        return None
    return status if isinstance(status, dict) and "autoscalerStatus" in status else None
