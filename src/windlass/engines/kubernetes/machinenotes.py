"""Turns what makes machines for a cluster into what a plan says of it, where no machine that is there will do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from windlass.diagnose.observations import PoolSeen
from windlass.engines.kubernetes.manifests import INSTANCE_LABEL
from windlass.engines.kubernetes.pools import has_room, pools_seen, requests, sizes_of
from windlass.plan.plan import Note, Step
from windlass.plan.pods import pod_spec
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget

if TYPE_CHECKING:
    from windlass.engines.kubernetes.facts import Cluster

MACHINES: Final = "machines"
"""The kind of the step."""
MAX_TYPES: Final = 8
MAX_POOLS: Final = 4


def machine_steps(made: Iterable[Step], cluster: Cluster | None, target: KubernetesTarget) -> Iterator[Step]:
    """That machines are to come, of which pools and types, at which price; `made` are the steps that make the pods."""
    steps = list(made)
    pools = [pool for pool in _pools(steps, cluster) or () if not pool.refusals]
    if not pools:
        return
    told = "; or ".join(_words(pool, target) for pool in pools[:MAX_POOLS])
    more = f"; or {len(pools) - MAX_POOLS} more" if len(pools) > MAX_POOLS else ""
    yield Step(
        MACHINES,
        f"wait for machines that do not exist yet, for none is there that could take a pod: {told}{more}",
        {"pools": [_request(pool, target) for pool in pools]},
    )


def machine_notes(made: Iterable[Step], cluster: Cluster | None) -> Iterator[Note]:
    """That none of the pools could make a machine for the pods. No refusal: whoever keeps them may change that."""
    steps = list(made)
    pools = _pools(steps, cluster)
    if not pools or any(not pool.refusals for pool in pools):
        return
    asked = ", ".join(f"{amount} {name}" for name, amount in requests(_spec(steps)).items())
    pod = f"a pod that asks for {asked}" if asked else "a pod"
    why = "; ".join(f"NodePool {pool.name}: {pool.refusals[0].message}" for pool in pools[:MAX_POOLS])
    more = f"; and {len(pools) - MAX_POOLS} more" if len(pools) > MAX_POOLS else ""
    named = list(dict.fromkeys(one for pool in pools for one in pool.named))
    fix = f"NodePools make {', '.join(named[:MAX_TYPES])}; " if named else ""
    yield Note(
        "machines-none",
        f"no machine that is there can take {pod}, and no NodePool could make one: {why}{more}",
        f"{fix}see: kubectl get nodepools",
    )


def node_price(job: Job, made: Iterable[Step], cluster: Cluster | None, target: KubernetesTarget) -> float | None:
    """What a node of the job costs an hour, as far as the target says: by its type where only one can serve it."""
    types = [job.resources.instance] if job.resources.instance is not None else []
    if not types:
        pools = [pool for pool in _pools(list(made), cluster) or () if not pool.refusals]
        types = list(dict.fromkeys(one for pool in pools for one in pool.types)) if all(p.types for p in pools) else []
    return target.prices.get(str(types[0]), target.price_per_hour) if len(types) == 1 else target.price_per_hour


def _pools(made: Sequence[Step], cluster: Cluster | None) -> tuple[PoolSeen, ...] | None:
    """The pools that have to do with the job; None where a machine that is there would do, or nothing is known."""
    machines = cluster.machines if cluster is not None else None
    spec = _spec(made)
    if machines is None or machines.nodes is None or not spec or has_room(machines.nodes, spec):
        return None
    return pools_seen(machines.pools, spec, sizes_of(machines.nodes, machines.claims))


def _spec(made: Sequence[Step]) -> Mapping[str, Any]:
    return pod_spec(step.request for step in made if step.kind in ("attempt-part", "attempt"))


def _words(pool: PoolSeen, target: KubernetesTarget) -> str:
    """`NodePool gpus makes g5.12xlarge (5.672 USD an hour) or p4d.24xlarge, spot or on-demand`."""
    kinds = [f"{one}{_price(one, target)}" for one in pool.types[:MAX_TYPES]] or [", ".join(pool.others) or "any type"]
    more = f" or {len(pool.types) - MAX_TYPES} more" if len(pool.types) > MAX_TYPES else ""
    capacity = f", {' or '.join(pool.capacity_types)}" if pool.capacity_types else ""
    return f"NodePool {pool.name} makes {' or '.join(kinds)}{more}{capacity}"


def _price(kind: str, target: KubernetesTarget) -> str:
    return f" ({target.prices[kind]:g} {target.currency} an hour)" if kind in target.prices else ""


def _request(pool: PoolSeen, target: KubernetesTarget) -> dict[str, Any]:
    """The same as data."""
    prices = {one: target.prices[one] for one in pool.types if one in target.prices}
    found = {"name": pool.name, INSTANCE_LABEL: list(pool.types), "capacity_types": list(pool.capacity_types),
             "requirements": list(pool.others), "prices": prices}  # fmt: skip
    return {name: value for name, value in found.items() if value}
