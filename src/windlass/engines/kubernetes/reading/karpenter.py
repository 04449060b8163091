"""Reads what Karpenter and Cluster Autoscaler report; objects that the login may not read are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.optional import items, served, unless_absent
from windlass.engines.kubernetes.objects.node_pools import GROUP
from windlass.engines.kubernetes.objects.quantity import Json
from windlass.engines.kubernetes.reading.claims import FAILED

MOST: Final = "1000"
"""Objects of a kind that are read."""
REFUSED: Final = f"reason={FAILED},source!=default-scheduler"
OF_CLAIMS: Final = "involvedObject.kind=NodeClaim"
EVENTS_OF_CLUSTER: Final = "default"
"""The namespace of events on objects that are in no namespace."""


def questions(client: Client, api: str) -> dict[str, Callable[[], Json]]:
    """What to ask where pods have no node; `api` is Karpenter's, empty where there is none."""
    if not api:
        return {}
    return {
        "claims": lambda: client.find(api, "NodeClaim", limit=MOST),
        "refused": lambda: client.find("v1", "Event", fieldSelector=REFUSED, limit=MOST),
        "of claims": lambda: client.within(EVENTS_OF_CLUSTER).find("v1", "Event", fieldSelector=OF_CLAIMS, limit=MOST),
    }


def node_pools(client: Client) -> tuple[Json, ...] | None:
    """The NodePools; None where there is no Karpenter, or they may not be listed. Raises EngineError."""
    api = served(client, GROUP)
    found = items(lambda: client.find(api, "NodePool", limit=MOST)) if api else None
    return None if found is None else tuple(found)


def autoscaler_status(client: Client) -> Json | None:
    """The status of Cluster Autoscaler, of versions that write it as YAML. None where there is none.

    Raises EngineError.
    """
    found = unless_absent(lambda: client.within("kube-system").get("v1", "ConfigMap", "cluster-autoscaler-status"))
    return None if found is None else parsed_status(found)


def parsed_status(found: Json) -> Json | None:
    """The status in that ConfigMap; None where it is none that is known. Pure."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        status = YAML(typ="safe", pure=True).load(str(found.get("data", {}).get("status", "")))
    except YAMLError:
        return None
    return status if isinstance(status, dict) and "autoscalerStatus" in status else None
