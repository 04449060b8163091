"""Turns NodePools of Karpenter, and nodes, into whether one of them can serve the pods of a run, and why not. Pure.

Karpenter tells nobody which instance types there are, or how large they are: it keeps that to itself. What a pool names
is known, and the size of any type of which the cluster has, or is about to get, a machine. So a pool that is not
refused here may yet be too small; that, Karpenter says once there is a pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from windlass.diagnose.observations import PoolSeen, Refusal
from windlass.diagnose.rules.placing import amount
from windlass.engines.kubernetes.manifests import INSTANCE_LABEL

Json = Mapping[str, Any]
Sizes = Mapping[str, Mapping[str, str]]
"""By instance type, what pods can have of a machine of it."""

GROUP: Final = "karpenter.sh"
VERSIONS: Final = ("v1", "v1beta1")
"""That are read, the newest first; in both, the fields that are used here are the same."""
CAPACITY_LABEL: Final = f"{GROUP}/capacity-type"
POOL_LABEL: Final = f"{GROUP}/nodepool"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
WELL_KNOWN: Final = ("kubernetes.io", "k8s.io", "karpenter.sh", "karpenter.k8s.aws", "karpenter.azure.com",
                     "karpenter.k8s.gcp", "eks.amazonaws.com")  # fmt: skip
"""Ends of the domains of labels that a machine has, whether or not its pool speaks of them."""
KEEPS_OUT: Final = ("NoSchedule", "NoExecute")


def api_of(served: Collection[str]) -> str:
    """The API to ask, of those that a cluster serves: `karpenter.sh/v1`; empty where it has no Karpenter."""
    return next((f"{GROUP}/{one}" for one in VERSIONS if f"{GROUP}/{one}" in served), "")


# -- machines that are there ------------------------------------------------------------------------------------------


def sizes_of(nodes: Iterable[Json], claims: Iterable[Json] = ()) -> Sizes:
    """What is known of the sizes of instance types, by the machines that there are or that come."""
    found: dict[str, Mapping[str, str]] = {}
    for one in (*claims, *nodes):
        kind, size = labels_of(one).get(INSTANCE_LABEL), one.get("status", {}).get("allocatable")
        if kind and size:
            # A machine that has only just come has not counted its GPUs yet.
            before: Mapping[str, str] = found.get(kind, {})
            found[kind] = {name: max(value, before.get(name, "0"), key=amount) for name, value in size.items()}
    return found


def has_room(nodes: Iterable[Json], spec: Json) -> bool:
    """Whether one of these nodes would take a pod of this spec, were it free."""
    return any(_takes(node, spec) for node in nodes)


def _takes(node: Json, spec: Json) -> bool:
    labels, its = labels_of(node), node.get("spec", {})
    is_its_kind = all(labels.get(name) == value for name, value in spec.get("nodeSelector", {}).items())
    is_open = not its.get("unschedulable") and not _untolerated(its.get("taints", ()), spec)
    return is_its_kind and is_open and not _too_little(node.get("status", {}).get("allocatable", {}), requests(spec))


def labels_of(one: Json) -> Mapping[str, str]:
    """Labels of an object."""
    found: Mapping[str, str] = one["metadata"].get("labels") or {}
    return found


def requests(spec: Json) -> Mapping[str, str]:
    """What the one container of a pod asks for."""
    container: Json = next(iter(spec.get("containers", ())), {})
    resources = container.get("resources", {})
    return {**resources.get("limits", {}), **resources.get("requests", {})}


def _too_little(size: Mapping[str, str], asked: Mapping[str, str]) -> list[str]:
    """The resources of which a machine of this size has too little."""
    return [name for name, value in asked.items() if amount(value) > amount(size.get(name, "0"))]


# -- machines that may come -------------------------------------------------------------------------------------------


def pool_seen(pool: Json, spec: Json, sizes: Sizes) -> PoolSeen:
    """What a NodePool can do for a pod of this spec."""
    asked, wanted = requests(spec), spec.get("nodeSelector", {})
    named = _values(pool, INSTANCE_LABEL)
    types = [one for one in named if wanted.get(INSTANCE_LABEL, one) == one]
    able = [one for one in named if one not in sizes or not _too_little(sizes[one], asked)]
    large = [one for one in types if one in able]
    return PoolSeen(
        name=str(pool["metadata"]["name"]),
        types=tuple(large),
        named=tuple(named),
        besides=tuple(one for one in able if one != wanted.get(INSTANCE_LABEL)),
        capacity_types=tuple(_values(pool, CAPACITY_LABEL)),
        others=tuple(_others(pool)),
        refusals=tuple(_refusals(pool, spec, sizes, types, large)),
    )


def pools_seen(pools: Iterable[Json], spec: Json, sizes: Sizes) -> tuple[PoolSeen, ...]:
    """All pools, in the order in which Karpenter tries them: the heaviest first."""
    ordered = sorted(pools, key=lambda pool: (-int(pool["spec"].get("weight") or 0), pool["metadata"]["name"]))
    return tuple(pool_seen(pool, spec, sizes) for pool in ordered)


def labels_made(pools: Iterable[Json], names: Collection[str]) -> set[tuple[str, str]]:
    """Which of these labels machines of the pools can have, each with a value."""
    return {(name, value) for pool in pools for name in names for value in _values(pool, name)}


def _refusals(pool: Json, spec: Json, sizes: Sizes, types: list[str], large: list[str]) -> Iterator[Refusal]:
    """Why a pool cannot make a machine for a pod; what bars the job for good comes first."""
    yield from _wrong_kind(pool, spec)
    if taint := _untolerated(_template(pool).get("taints", ()), spec):
        yield Refusal("taint", f"its machines have the taint {taint}, which the job does not tolerate")
    if types and not large:
        asked = requests(spec)
        short = ", ".join(f"{asked[name]} {name}" for name in dict.fromkeys(
            name for one in types for name in _too_little(sizes[one], asked)))  # fmt: skip
        yield Refusal("small", f"none of {', '.join(types)} has {short}")
    if why := _at_limit(pool, spec, [sizes[one] for one in large if one in sizes] if large else []):
        yield Refusal("limit", why)
    if condition(pool, "Ready").get("status") == "False":
        yield Refusal("unready", f"it is not ready: {_why_unready(pool) or 'nobody says why'}")


def _why_unready(pool: Json) -> str:
    """What `Ready` sums up says more than it does itself."""
    found = [one for one in pool["status"]["conditions"] if one.get("status") == "False"]
    told = [one for one in found if one["type"] != "Ready"] or found
    return "; ".join(": ".join(str(one[name]) for name in ("reason", "message") if one.get(name)) for one in told)


def condition(one: Json, kind: str) -> Json:
    """One of an object's conditions; empty where it does not have it."""
    found: Json = next((each for each in one.get("status", {}).get("conditions", ()) if each["type"] == kind), {})
    return found


def _wrong_kind(pool: Json, spec: Json) -> Iterator[Refusal]:
    """Labels that the job wants of a machine, and the pool's never have."""
    for name, value in spec.get("nodeSelector", {}).items():
        if not _can_have(pool, name, value):
            kind = "type" if name == INSTANCE_LABEL else "label"
            had = ", ".join(_values(pool, name))
            yield Refusal(kind, f"it makes machines with {name} {had}, not {value}" if had else
                          f"it makes no machines with {name} {value}")  # fmt: skip


def _can_have(pool: Json, name: str, value: str) -> bool:
    """Whether a machine of the pool may have this label."""
    asked = [one for one in requirements(pool) if one["key"] == name]
    if not asked:
        return _domain(name).endswith(WELL_KNOWN)
    return all(_allows(one["operator"], one.get("values") or [], value) for one in asked)


def _domain(label: str) -> str:
    return label.partition("/")[0] if "/" in label else ""


def _allows(operator: str, values: list[str], value: str) -> bool:
    """Whether a requirement lets a label have a value."""
    if operator in ("In", "NotIn"):
        return (value in values) is (operator == "In")
    if operator in ("Gt", "Lt", "Gte", "Lte"):
        if not (value.isdigit() and values):
            return False
        number, bound = int(value), int(values[0])
        return {"Gt": number > bound, "Lt": number < bound, "Gte": number >= bound, "Lte": number <= bound}[operator]
    return operator == "Exists"


def requirements(pool: Json) -> list[Json]:
    """What a pool asks of its machines; a label that it gives to all of them is a requirement too."""
    given = pool["spec"]["template"].get("metadata", {}).get("labels") or {}
    given = {**given, POOL_LABEL: str(pool["metadata"]["name"])}
    fixed = [{"key": name, "operator": "In", "values": [value]} for name, value in given.items()]
    return [*_template(pool).get("requirements", ()), *fixed]


def _template(pool: Json) -> Json:
    found: Json = pool["spec"]["template"].get("spec", {})
    return found


def _values(pool: Json, name: str) -> list[str]:
    """The values that a label of its machines may have, as far as the pool names them."""
    asked = [one for one in requirements(pool) if one["key"] == name]
    named = [value for one in asked if one["operator"] == "In" for value in one.get("values") or ()]
    return [
        value
        for value in dict.fromkeys(named)
        if all(_allows(one["operator"], one.get("values") or [], value) for one in asked)
    ]


def _others(pool: Json) -> Iterator[str]:
    """What else it asks of machines, for a person."""
    for one in _template(pool).get("requirements", ()):
        if one["key"] not in (INSTANCE_LABEL, CAPACITY_LABEL):
            words = {"In": "in", "NotIn": "not in", "Gt": ">", "Lt": "<", "Gte": "≥", "Lte": "≤"}
            how = words.get(one["operator"], "exists" if one["operator"] == "Exists" else "does not exist")
            yield " ".join([one["key"], how, ", ".join(one.get("values") or ())]).rstrip()


def _untolerated(taints: Iterable[Json], spec: Json) -> str:
    """The first taint that keeps a pod out; empty where none does."""
    tolerations = spec.get("tolerations", ())
    for taint in taints:
        if taint.get("effect") in KEEPS_OUT and not any(_tolerates(one, taint) for one in tolerations):
            return taint_text(taint)
    return ""


def taint_text(taint: Json) -> str:
    """As kubectl writes it: `team=vision:NoSchedule`."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value") or "") == (taint["key"], taint.get("value") or "")


def _at_limit(pool: Json, spec: Json, large: list[Mapping[str, str]]) -> str:
    """Which limit of a pool has too little left for one more machine; empty where none has.

    `large` are the sizes that are known of machines which it could make.
    """
    limits, used = pool["spec"].get("limits") or {}, pool.get("status", {}).get("resources", {})
    asked = requests(spec)
    for name, limit in limits.items():
        # Karpenter counts the whole machine, and not only what a pod asks of it.
        least = min((amount(size[name]) for size in large if name in size), default=0.0)
        needed = max(least, amount(asked.get(name, "0")), 1.0 if name == "nodes" else 0.0)
        has = used.get(name, pool.get("status", {}).get("nodes", 0) if name == "nodes" else "0")
        if needed and amount(str(has)) + needed > amount(str(limit)):
            return f"its limit is {limit} {name}, of which {has} is in use, and one more machine takes {_text(needed)}"
    return ""


def _text(number: float) -> str:
    return f"{number:.0f}" if number == round(number) else f"{number:g}"
