"""Decides which Karpenter NodePools, and which of their instance types, match a pod by labels, types and taints. Pure.

Karpenter itself decides whether a node of a matching NodePool is large enough, within the limits, and available, and
reports this once a pod exists (see `docs/decisions/0023-autoscalers-report.md`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from windlass.engines.kubernetes.objects.observations import NodePoolMatch
from windlass.engines.kubernetes.objects.pod_template import INSTANCE_LABEL
from windlass.engines.kubernetes.objects.quantity import Json, condition, duration

GROUP: Final = "karpenter.sh"
CAPACITY_LABEL: Final = f"{GROUP}/capacity-type"
POOL_LABEL: Final = f"{GROUP}/nodepool"
WELL_KNOWN: Final = (
    "kubernetes.io",
    "k8s.io",
    "karpenter.sh",
    "karpenter.k8s.aws",
    "karpenter.azure.com",
    "karpenter.k8s.gcp",
    "eks.amazonaws.com",
)
"""Suffixes of label domains. Nodes may have labels in these domains that their NodePool does not list."""
MAX_TYPES: Final = 8
KEEP_OUT: Final = ("NoSchedule", "NoExecute")
"""Taint effects that prevent a pod from running on a node."""
SOON_SECONDS: Final = 60.0
"""A NodePool that deletes empty nodes sooner than after this many seconds may delete them between two attempts."""
_OPERATORS: Final = {
    "In": "in",
    "NotIn": "not in",
    "Gt": ">",
    "Lt": "<",
    "Gte": "≥",
    "Lte": "≤",
    "Exists": "exists",
    "DoesNotExist": "does not exist",
}


def matches(pools: Iterable[Json], spec: Json) -> tuple[NodePoolMatch, ...]:
    """Returns all NodePools and whether they match, in the order in which Karpenter tries them: highest weight
    first.
    """
    ordered = sorted(pools, key=lambda pool: (-int(pool["spec"].get("weight") or 0), pool["metadata"]["name"]))
    return tuple(match(pool, spec) for pool in ordered)


def match(pool: Json, spec: Json) -> NodePoolMatch:
    """Returns whether, and why not, a NodePool matches a pod with this spec."""
    wanted, named = spec.get("nodeSelector", {}).get(INSTANCE_LABEL), _values(pool, INSTANCE_LABEL)
    requirements = _template(pool).get("requirements", ())
    used = pool.get("status", {}).get("resources", {})
    return NodePoolMatch(
        name=str(pool["metadata"]["name"]),
        types=tuple(one for one in named if wanted in (None, one)),
        named=tuple(named),
        capacity_types=tuple(_values(pool, CAPACITY_LABEL)),
        others=tuple(_text(one) for one in requirements if one["key"] not in (INSTANCE_LABEL, CAPACITY_LABEL)),
        limits=tuple(
            f"{used.get(name, '0')} of {limit} {name}" for name, limit in (pool["spec"].get("limits") or {}).items()
        ),
        mismatch=tuple(_mismatches(pool, spec)),
        not_ready=_not_ready(pool),
        ends_pods=_ends_pods(pool),
        empty_for=_empty_for(pool),
    )


def makes(pool: NodePoolMatch, types: Sequence[str], prices: Mapping[str, str] = MappingProxyType({})) -> str:
    """Describes the nodes of a NodePool: `g5.12xlarge (5.672 USD an hour) or p4d.24xlarge, spot or on-demand`.

    `prices` maps an instance type to its price as text.
    """
    kinds = [one + (f" ({prices[one]})" if one in prices else "") for one in types[:MAX_TYPES]]
    kinds += [f"{len(types) - MAX_TYPES} more"] if len(types) > MAX_TYPES else []
    capacity = f", {' or '.join(pool.capacity_types)}" if pool.capacity_types else ""
    return (" or ".join(kinds) or ", ".join(pool.others) or "any type") + capacity


def taints_of_node(node: Json) -> tuple[Json, ...]:
    """Returns the taints of a node that keep pods away."""
    return tuple(one for one in node.get("spec", {}).get("taints") or () if one.get("effect") in KEEP_OUT)


def taint_not_tolerated(taints: Iterable[Json], spec: Json) -> Json | None:
    """Returns the first taint that a pod with this spec does not tolerate, or None."""
    tolerations = spec.get("tolerations", ())
    return next((taint for taint in taints if not any(_tolerates(one, taint) for one in tolerations)), None)


def taints_of(pool: Json) -> list[str]:
    """Returns the taints of a NodePool that keep pods away, in kubectl's format: `team=vision:NoSchedule`."""
    return [taint_text(one) for one in _taints(pool)]


def labels_made(pools: Iterable[Json], names: Collection[str]) -> set[tuple[str, str]]:
    """Returns pairs of label and value that nodes of these NodePools can have; `names` are the labels to include."""
    return {(name, value) for pool in pools for name in names for value in _values(pool, name)}


def _mismatches(pool: Json, spec: Json) -> Iterator[str]:
    """Yields the reasons why no node of a NodePool can run a pod with this spec: labels first, then taints."""
    for name, value in spec.get("nodeSelector", {}).items():
        asked = [one for one in _requirements(pool) if one["key"] == name]
        domain = name.rpartition("/")[0]
        if not (all(_allows(one, value) for one in asked) if asked else domain.endswith(WELL_KNOWN)):
            has = ", ".join(_values(pool, name))
            yield f"its nodes have {name} {has}, not {value}" if has else f"its nodes do not have {name} {value}"
    if (taint := taint_not_tolerated(_taints(pool), spec)) is not None:
        yield f"its nodes have the taint {taint_text(taint)}, which the job does not tolerate"


def _not_ready(pool: Json) -> str:
    """Returns why a NodePool is not ready, from the conditions that `Ready` summarizes; empty if it is ready."""
    if condition(pool, "Ready").get("status") != "False":
        return ""
    found = [one for one in pool["status"]["conditions"] if one.get("status") == "False"]
    causes = [one for one in found if one["type"] != "Ready"] or found
    said = "; ".join(": ".join(str(one[part]) for part in ("reason", "message") if one.get(part)) for one in causes)
    return said or "no reason reported"


def _ends_pods(pool: Json) -> str:
    """Returns how a NodePool ends pods despite their annotation `karpenter.sh/do-not-disrupt`; empty if it does not.

    Annotated pods block the drain of their node unless `terminationGracePeriod` limits the drain. If it is set,
    Karpenter also drains drifted nodes.
    """
    age, grace = (
        re.sub(r"(?<=[hm])0[ms]", "", str(_template(pool).get(field) or "Never"))
        for field in ("expireAfter", "terminationGracePeriod")
    )
    deleted = f"{grace} later (terminationGracePeriod) pods that are left on it are deleted"
    if "Never" not in (age, grace):
        return f"a node ends its pods: {age} after its launch it is drained (expireAfter), and {deleted}"
    if age != "Never":
        return f"{age} after its launch (expireAfter) a node takes no more pods, so that a restart waits for another"
    return f"a node that drifts from its NodePool is drained, and {deleted}" if grace != "Never" else ""


def _empty_for(pool: Json) -> str:
    after = str((pool["spec"].get("disruption") or {}).get("consolidateAfter") or "Never")
    seconds = duration(after)
    return after if seconds is not None and seconds < SOON_SECONDS else ""


def _template(pool: Json) -> Json:
    found: Json = pool["spec"]["template"].get("spec", {})
    return found


def _requirements(pool: Json) -> list[Json]:
    """Returns the requirements of a NodePool on its nodes; labels that it sets on all nodes count as requirements."""
    labels = pool["spec"]["template"].get("metadata", {}).get("labels") or {}
    fixed = {**labels, POOL_LABEL: str(pool["metadata"]["name"])}
    own = [{"key": name, "operator": "In", "values": [value]} for name, value in fixed.items()]
    return [*_template(pool).get("requirements", ()), *own]


def _values(pool: Json, name: str) -> list[str]:
    """Returns the values that a label may have on nodes of a NodePool, if the NodePool lists them."""
    asked = [one for one in _requirements(pool) if one["key"] == name]
    named = [value for one in asked if one["operator"] == "In" for value in one.get("values") or ()]
    return [value for value in dict.fromkeys(named) if all(_allows(one, value) for one in asked)]


def _allows(requirement: Json, value: str) -> bool:
    operator, values = requirement["operator"], requirement.get("values") or []
    if operator in ("In", "NotIn"):
        return (value in values) is (operator == "In")
    if operator in ("Gt", "Lt", "Gte", "Lte"):
        if not (value.isdigit() and values):
            return False
        number, bound = int(value), int(values[0])
        return (number == bound and operator.endswith("te")) or (
            number > bound if operator[0] == "G" else number < bound
        )
    return bool(operator == "Exists")


def _text(requirement: Json) -> str:
    values = ", ".join(requirement.get("values") or ())
    return f"{requirement['key']} {_OPERATORS.get(requirement['operator'], requirement['operator'])} {values}".rstrip()


def _taints(pool: Json) -> list[Json]:
    return [one for one in _template(pool).get("taints") or () if one.get("effect") in KEEP_OUT]


def taint_text(taint: Json) -> str:
    """Formats a taint as kubectl does: `team=vision:NoSchedule`."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value") or "") == (taint["key"], taint.get("value") or "")
