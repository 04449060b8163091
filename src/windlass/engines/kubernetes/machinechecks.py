"""Turns what makes machines for a cluster into checks: what may come, and what is at its limit. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windlass.engines.checking import Check
from windlass.engines.kubernetes.pools import pools_seen
from windlass.engines.kubernetes.survey import Survey

Json = Mapping[str, Any]
MAX_TYPES = 6


def machine_checks(seen: Survey) -> Iterator[Check]:
    """The NodePools of Karpenter, and the node groups of Cluster Autoscaler, where there are any."""
    pools = seen.get("pools")
    if pools is not None:
        yield _pools(pools)
    status = (seen.get("autoscaler") or {}).get("status")
    if status is not None:
        yield _groups(status)


def _pools(found: Json) -> Check:
    told, wrong = [], []
    by_name = {one["metadata"]["name"]: one for one in found["items"]}
    for pool in pools_seen(found["items"], {}, {}):
        types = f"{', '.join(pool.named[:MAX_TYPES])}{' …' if len(pool.named) > MAX_TYPES else ''}"
        made = types or "; ".join(pool.others) or "any type"
        capacity = f", {' or '.join(pool.capacity_types)}" if pool.capacity_types else ""
        limits = by_name[pool.name]["spec"].get("limits") or {}
        used = by_name[pool.name].get("status", {}).get("resources", {})
        spent = [f"{used.get(name, '0')} of {limit} {name}" for name, limit in limits.items()]
        taints = [one.message for one in pool.refusals if one.kind == "taint"]
        told.append(f"{pool.name} ({'; '.join([made + capacity, *spent, *taints])})")
        wrong += [f"{pool.name}: {one.message}" for one in pool.refusals if one.kind == "unready"]
    if wrong:
        return Check("machines", "warn", "; ".join([*told, *wrong]), "kubectl describe nodepool")
    if not told:
        return Check("machines", "warn", "Karpenter is installed, and there is no NodePool",
                     "no machine comes for pods that find none")  # fmt: skip
    return Check("machines", "ok", f"Karpenter makes: {'; '.join(told)}")


def _groups(status: Json) -> Check:
    """By the status that Cluster Autoscaler 1.30 and newer writes."""
    told, wrong = [], []
    for group in status.get("nodeGroups") or ():
        health, scale_up = group.get("health") or {}, group.get("scaleUp") or {}
        counts = (health.get("nodeCounts") or {}).get("registered") or {}
        told.append(f"{group.get('name')} ({counts.get('ready', 0)} nodes, {health.get('minSize', 0)} to "
                    f"{health.get('maxSize', '?')})")  # fmt: skip
        if scale_up.get("status") == "Backoff":
            why = (scale_up.get("backoffInfo") or {}).get("errorMessage") or "it could not grow"
            wrong.append(f"{group.get('name')} is not tried for now: {why}")
    text = f"Cluster Autoscaler is {status['autoscalerStatus']}: {'; '.join(told) or 'no node group'}"
    if wrong or status["autoscalerStatus"] != "Running":
        fix = "kubectl -n kube-system describe configmap cluster-autoscaler-status"
        return Check("machines", "warn", "; ".join([text, *wrong]), fix)
    return Check("machines", "ok", text)
