"""Pods that wait for machines which do not exist yet: why none can come, or why one that came takes no pods.

Karpenter and Cluster Autoscaler say it in sentences, which are read here; what a NodePool itself shows is taken where
nothing was said yet. Of several pools the one counts that comes nearest to serving the job: it is what one would
change.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from windlass.diagnose.observations import ComingSeen, ObjectSaid, PodSeen, PoolSeen, Refusal, ScalingSeen
from windlass.diagnose.rules.case import Case
from windlass.diagnose.rules.cluster import waiting_pods
from windlass.diagnose.rules.placing import FIELDS
from windlass.diagnose.verdict import Verdict

INSTANCE_LABEL: Final = "node.kubernetes.io/instance-type"
NOT_READY_SECONDS: Final = 90.0
"""How long a machine may be in the cluster and take no pods: drivers and plugins take a minute."""
NOT_REGISTERED_SECONDS: Final = 150.0
"""How long one may take from its launch until it is in the cluster: a large one boots for two minutes."""
NOT_LAUNCHED_SECONDS: Final = 60.0
MAX_EVIDENCE: Final = 8
NEARNESS: Final = ("unready", "type", "label", "small", "taint", "limit", "capacity")
"""Kinds of refusals: a pool that fails by a later one is nearer to serving the job."""
_REQUIREMENTS: Final = r"no instance type met (?:all requirements|the scheduling requirements or)"
_SAID: Final = (
    ("limit", r"(?:limits have been exhausted for|exceed limits for) nodepool|max node group size reached|"
              r"max cluster \S+ limit reached|cluster-wide limit"),
    ("capacity", r"in backoff after failed scale-up|has the required offering|, had a required offering"),
    ("taint", r"did not tolerate (?:taint \(taint=)?([^\s;)]+)|had untolerated taint(?:\(s\)| (\{[^}]*\}))"),
    ("type", r"(?:key|label) \"?node\.kubernetes\.io/instance-type\b|" + _REQUIREMENTS +
             r"|requirements filtered out all (?:compatible )?available"),
    ("label", r"incompatible requirements|does not have known values|didn't match Pod's node affinity/selector"),
    ("small", r"enough resources|the required resources|requirements/resources/offering tuple|Insufficient \S+"),
)  # fmt: skip
"""What a part of a sentence of Karpenter or Cluster Autoscaler speaks of, the first that is found in it."""
_NAMED: Final = re.compile(r"NodePool=\"?/?([\w.-]+)|nodepool:? \"([\w.-]+)\"")
_NODES: Final = re.compile(r"no node group|node\(s\)|Insufficient|max node group")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a kind of refusal means. In its texts `{pool}`, `{asked}`, `{type}` … are what was seen."""

    code: str
    summary: str
    fix: str


REFUSED: Final = {
    "type": Meaning(
        "instance-type-missing", "no machine of type {type} can be made: {why}",
        "correct resources.instance:{near}; {named}or have a NodePool allow that type",
    ),
    "label": Meaning(
        "machines-of-other-kind", "no NodePool makes machines of the kind that the job asks for: {why}",
        "correct resources.gpu_type: or kubernetes.node_labels:; or have a NodePool with these labels",
    ),
    "small": Meaning(
        "machines-too-small", "no machine that can be made is large enough for {asked} in one pod: {why}",
        "ask for less ({fields}) on more nodes:, or have a NodePool allow larger types",
    ),
    "taint": Meaning(
        "taint-not-tolerated", "{pool} would make machines for the job, but for a taint: {why}",
        "use machines without that taint, have the taint taken off the NodePool, or have a policy of the cluster add "
        "the toleration to pods of this namespace",
    ),
    "limit": Meaning(
        "pool-limit", "{pool} may make no more machines: {why}",
        "it goes on when others give machines back; ask for less ({fields}, nodes:), or have spec.limits of the "
        "NodePool raised",
    ),
    "capacity": Meaning(
        "no-capacity", "the cloud has no machine left of those that would do: {why}",
        "{fits}it is tried again and again by itself; or have the NodePool allow more types, zones or capacity types "
        "(spot and on-demand)",
    ),
    "unready": Meaning(
        "pool-not-ready", "{pool} makes no machines: {why}",
        "whoever keeps the cluster can mend it: kubectl describe nodepool, and the NodeClass that it names",
    ),
}  # fmt: skip
STUCK: Final = {
    "ResourceNotRegistered": Meaning(
        "machine-not-ready", "machine {machine} is there and does not have its devices: {why}",
        "see why the device plugin does not run there (for GPUs NVIDIA's, a DaemonSet): kubectl -n kube-system get "
        "pods -o wide; its taints may keep the plugin away",
    ),
    "StartupTaintsExist": Meaning(
        "machine-not-ready", "machine {machine} is there and its start-up taint is not taken away: {why}",
        "whatever is to take that taint away does not run there: see startupTaints of the NodePool",
    ),
    "KnownEphemeralTaintsExist": Meaning(
        "machine-not-ready", "machine {machine} is there and still not open for pods: {why}",
        "see: kubectl describe node {machine}; mostly its network (CNI) or its cloud's controller does not work",
    ),
    "": Meaning(
        "machine-not-ready", "machine {machine} has come and does not get ready: {why}",
        "see: kubectl describe node {machine}; mostly its network plugin (CNI) or its kubelet does not work there. "
        "kubectl delete nodeclaim {name} has another one made",
    ),
}  # fmt: skip


def wait_for_machines(case: Case) -> Iterator[Verdict]:
    """Pods that no machine takes, where the cluster could make some."""
    cluster = case.seen.cluster
    waiting = waiting_pods(case)
    if cluster is None or not waiting:
        return
    pods = [pod for pod in waiting if pod.state in ("queued", "missing")]
    scaling = cluster.scaling or ScalingSeen()
    found = list(_refusals(scaling, cluster.said, pods)) if pods else []
    evidence = tuple(_evidence(scaling, cluster.said, pods))[:MAX_EVIDENCE]
    for one in scaling.coming:
        yield from _of_machine(one, evidence)
    if found:
        name, nearest = max(found, key=lambda one: NEARNESS.index(one[1].kind))
        # Where a machine that is there would do once it is free, it is that which the run waits for.
        is_it = not scaling.has_room or nearest.kind in ("limit", "capacity")
        yield _refused(case, scaling, name, nearest, evidence, 108.0 if is_it else 106.9)
    elif pods and not any(one.state != "gone" for one in scaling.coming):
        yield from _pending(scaling, evidence)


def _pending(scaling: ScalingSeen, evidence: tuple[str, ...]) -> Iterator[Verdict]:
    """Nothing is known against some pool, and nobody has said anything of it."""
    able = [pool.name for pool in scaling.pools or () if not pool.refusals]
    if able:
        yield Verdict(
            "machines-pending",
            f"no machine has room, and NodePool {' or '.join(able[:4])} may make one: Karpenter has not said so yet",
            None, evidence,
            "if that lasts, Karpenter does not work: whoever keeps the cluster can see why; or machines that are there "
            "and in use become free", 106.8 if scaling.has_room else 107.5,
        )  # fmt: skip


# -- no machine can come ----------------------------------------------------------------------------------------------


def _refusals(
    scaling: ScalingSeen, said: Sequence[ObjectSaid], pods: Sequence[PodSeen]
) -> Iterator[tuple[str, Refusal]]:
    """Each reason with the pool that it is of, as far as that is known: what was said, else what the pools show."""
    spoken = [one for one in said if _is_of_scaling(one, pods)]
    if any(one.state in ("launched", "registered") for one in scaling.coming):
        spoken = [one for one in spoken if one.kind != "NodeClaim"]  # of those before it
    if scaling.pools and all(_is_unready(pool) for pool in scaling.pools):
        spoken = []  # what is said then is but that no pool is left
    for one in spoken:
        if one.kind == "NodeClaim":
            kind = "capacity" if one.reason == "InsufficientCapacityError" else "unready"
            yield one.name.rpartition("-")[0], Refusal(kind, one.message)
        else:
            yield from _parts(one.message)
    pools = scaling.pools or ()
    comes = any(one.state != "gone" for one in scaling.coming)
    # One pool that nothing is known against would do: Karpenter is only about to say so.
    if not spoken and not comes and all(pool.refusals for pool in pools):
        for pool in pools:
            unready = [one for one in pool.refusals if one.kind == "unready"]
            yield pool.name, [*unready, *pool.refusals][0]


def _is_unready(pool: PoolSeen) -> bool:
    return any(one.kind == "unready" for one in pool.refusals)


def _is_of_scaling(one: ObjectSaid, pods: Sequence[PodSeen]) -> bool:
    if one.kind == "NodeClaim":
        return True
    waits = any(pod.name == one.name for pod in pods if pod.name) or not any(pod.name for pod in pods)
    return one.kind == "Pod" and one.reason in ("FailedScheduling", "NotTriggerScaleUp") and waits


def _parts(message: str) -> Iterator[tuple[str, Refusal]]:
    """What a sentence says of each pool, or of each kind of node: parts are between semicolons, or commas."""
    words = message.removeprefix("Failed to schedule pod, ").removeprefix("pod didn't trigger scale-up: ")
    for part in re.split(r"; |, (?=\d+ )", words) if _NODES.search(words) else words.split("; "):
        for kind, pattern in _SAID:
            if re.search(pattern, part):
                named = _NAMED.search(part)
                yield (named[1] or named[2] if named else ""), Refusal(kind, _short(part))
                break


def _short(part: str) -> str:
    """Without what every such sentence repeats of the pool's own requirements, which are long."""
    return re.split(r", requirements=| \(NodePool=|, resources=", part)[0].strip().rstrip(".")


def _refused(
    case: Case, scaling: ScalingSeen, name: str, nearest: Refusal, evidence: tuple[str, ...], score: float
) -> Verdict:
    kind = nearest.kind
    wanted = case.pod_spec.get("nodeSelector", {})
    if kind == "type" and INSTANCE_LABEL not in wanted:
        kind = "label" if wanted else "small"
    meaning = REFUSED[kind]
    asked = case.container.get("resources", {}).get("requests", {})
    told = {
        "pool": f"NodePool {name}" if name else _only(scaling.pools),
        "why": _why(nearest, name, scaling.pools),
        "type": wanted.get(INSTANCE_LABEL, ""),
        "asked": ", ".join(f"{amount} {what}" for what, amount in asked.items()) or "what the job asks for",
        "fields": ", ".join(dict.fromkeys(FIELDS.get(what, f"of {what}") for what in asked)) or "resources:",
        **_types(wanted.get(INSTANCE_LABEL, ""), scaling.pools or ()),
        "fits": _what_else(scaling.pools or (), nearest.message),
    }
    return Verdict(meaning.code, meaning.summary.format(**told), None, evidence, meaning.fix.format(**told), score)


def _only(pools: Sequence[PoolSeen] | None) -> str:
    return f"NodePool {pools[0].name}" if pools and len(pools) == 1 else "what makes machines here"


def _why(refusal: Refusal, name: str, pools: Sequence[PoolSeen] | None) -> str:
    """What was said, and what the pool itself shows where that says more."""
    for pool in pools or ():
        if name in ("", pool.name):
            for own in pool.refusals:
                if own.kind == refusal.kind and own.message != refusal.message:
                    return own.message
    return refusal.message


def _types(wanted: str, pools: Sequence[PoolSeen]) -> dict[str, str]:
    """Which types there would be."""
    named = list(dict.fromkeys(one for pool in pools for one in pool.named))
    near = difflib.get_close_matches(wanted, named, 1, 0.8) if wanted else []
    there = f"NodePools name {', '.join(named[:12])}{' …' if len(named) > 12 else ''}; " if named else ""
    return {"near": f" (did you mean {near[0]}?)" if near else "", "named": there}


def _what_else(pools: Sequence[PoolSeen], refused: str) -> str:
    """Types that would serve the pods too, and of which nobody has said that none is left."""
    able = [pool for pool in pools if all(one.kind in ("type", "capacity") for one in pool.refusals)]
    others = ", ".join(dict.fromkeys(one for pool in able for one in pool.besides[:8] if one not in refused))
    return f"of what NodePools allow, {others} may fit too: name one in resources.instance:; " if others else ""


# -- a machine that is on its way -------------------------------------------------------------------------------------


def _of_machine(one: ComingSeen, evidence: tuple[str, ...]) -> Iterator[Verdict]:
    """What is wrong with a machine that comes, or that nothing is."""
    since = f"{one.seconds:.0f} s"
    told = {"machine": one.machine or "NAME", "name": one.name, "type": _what(one)}
    if one.state == "registered" and one.seconds > NOT_READY_SECONDS:
        meaning = STUCK.get(one.reason, STUCK[""])
        why = f"{one.message or one.reason or 'nobody says why'}, {since} after it came"
        yield Verdict(meaning.code, meaning.summary.format(**told, why=why), None, evidence,
                      meaning.fix.format(**told), 108.2)  # fmt: skip
    elif one.state == "launched" and one.seconds > NOT_REGISTERED_SECONDS:
        yield Verdict(
            "machine-not-registered",
            f"a machine ({_what(one)}) was launched {since} ago and has not joined the cluster", None, evidence,
            "its user data, role or network keeps it from the API server: see its console output in the cloud, and "
            f"kubectl describe nodeclaim {one.name}; Karpenter gives it up after 15 minutes", 108.2,
        )  # fmt: skip
    elif one.state == "asked" and one.reason and one.seconds > NOT_LAUNCHED_SECONDS:
        yield Verdict(
            "machine-not-launched", f"the cloud launches no machine for the job: {one.message or one.reason}", None,
            evidence,
            f"see: kubectl describe nodeclaim {one.name}; mostly a right or a setting of the NodeClass", 108.2,
        )  # fmt: skip
    elif one.state not in ("gone", "initialized"):
        yield Verdict(
            "machine-coming", f"a machine is on its way ({_what(one)}), {one.state} {since} ago; nothing is wrong so "
            "far", None, evidence, "nothing to do: it starts when the machine is ready", 107.6,
        )  # fmt: skip


def _what(one: ComingSeen) -> str:
    """`g5.12xlarge, spot, bed-a, of NodePool gpus`."""
    of = f"of NodePool {one.pool}" if one.pool and " " not in one.name else f"NodeClaim {one.name}"
    if " " in one.name:
        of = f"node group {one.name}"
    return ", ".join(part for part in (one.instance_type, one.capacity_type, one.zone, of) if part)


# -- evidence ---------------------------------------------------------------------------------------------------------


def _evidence(scaling: ScalingSeen, said: Sequence[ObjectSaid], pods: Sequence[PodSeen]) -> Iterator[str]:
    """Each machine, the words of whoever makes them, each pool."""
    for one in scaling.coming:
        why = ": ".join(part for part in (one.reason, one.message) if part)
        yield f"machine {one.machine or one.name} ({_what(one)}): {one.state}" + (f": {why}" if why else "")
    words = dict.fromkeys(
        f"{one.kind} {one.name}: {one.reason}: {one.message}" for one in said if _is_of_scaling(one, pods)
    )
    yield from list(words)[:3]
    for pool in scaling.pools or ():
        types = f"makes {', '.join(pool.named[:8])}" if pool.named else f"makes {'; '.join(pool.others) or 'any type'}"
        capacity = f" ({', '.join(pool.capacity_types)})" if pool.capacity_types else ""
        refusals = "; ".join(one.message for one in pool.refusals)
        yield f"NodePool {pool.name} {types}{capacity}" + (f": {refusals}" if refusals else "")
