"""Plans node provisioning: the NodePools and instance types that match the pods, with prices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.objects.node_pools import (
    MAX_TYPES,
    makes,
    matches,
)
from windlass.engines.kubernetes.objects.observations import NodePoolMatch
from windlass.engines.kubernetes.objects.quantity import Json
from windlass.plan.notes import Note
from windlass.plan.price import LISTED_IN, Price, list_price, price
from windlass.plan.steps import NodePool, NodePoolsStep, Step

if TYPE_CHECKING:
    from windlass.engines.kubernetes.planning.facts import Cluster
    from windlass.pricing.table import Table
    from windlass.spec.job import Job
    from windlass.spec.targets import KubernetesTarget

MAX_POOLS: Final = 4


@dataclass(frozen=True, slots=True)
class Provisioning:
    """Node provisioning of a run: steps, notes and price."""

    steps: tuple[Step, ...]
    notes: tuple[Note, ...]
    price: Price | None


def plan_provisioning(
    job: Job, target: KubernetesTarget, cluster: Cluster | None, prices: Table | None, pods: Json
) -> Provisioning:
    """Plans node provisioning for the pods of a run. `pods` is their spec; empty if it is not known."""
    pools = matches(cluster.node_pools or (), pods) if cluster is not None and pods else ()
    return Provisioning(
        steps=tuple(_steps(pools, target)),
        notes=(*_pool_notes(pools), *_disruption_notes(job, pools)),
        price=_price(job, pools, target, prices),
    )


def _steps(pools: Iterable[NodePoolMatch], target: KubernetesTarget) -> Iterator[Step]:
    """Yields the step that lists matching NodePools and instance types, with prices."""
    fit = [pool for pool in pools if not pool.mismatch]
    if fit:
        shown = "; or ".join(_text(pool, target) for pool in fit[:MAX_POOLS])
        more = f"; or {len(fit) - MAX_POOLS} more" if len(fit) > MAX_POOLS else ""
        summary = f"where no node has the capacity, wait for new ones: {shown}{more}"
        yield NodePoolsStep(summary, tuple(_pool(pool, target) for pool in fit))


def _pool_notes(pools: tuple[NodePoolMatch, ...]) -> Iterator[Note]:
    """Yields a warning if no NodePool matches the pods. Existing nodes may suffice, and NodePools may be changed."""
    if pools and all(pool.mismatch for pool in pools):
        why = "; ".join(f"NodePool {pool.name}: {pool.mismatch[0]}" for pool in pools[:MAX_POOLS])
        more = f"; and {len(pools) - MAX_POOLS} more" if len(pools) > MAX_POOLS else ""
        named = list(dict.fromkeys(one for pool in pools for one in pool.named))
        fix = f"NodePools make {', '.join(named[:MAX_TYPES])}; " if named else ""
        message = f"no NodePool matches the pods, so only nodes that are there can run them: {why}{more}"
        yield Note("machines-none", message, f"{fix}see: kubectl get nodepools")


def _disruption_notes(job: Job, pools: Iterable[NodePoolMatch]) -> Iterator[Note]:
    """Yields warnings about NodePools that end pods despite `do-not-disrupt`, or delete nodes needed for a restart."""
    for pool in [one for one in pools if not one.mismatch][:MAX_POOLS]:
        found = [pool.ends_pods] if pool.ends_pods else []
        if pool.empty_for and job.restarts.max:
            found.append(
                f"a node is deleted {pool.empty_for} after its last pod has ended (consolidateAfter), which "
                "may be before a restart has pods"
            )
        if found:
            yield Note(
                "machines-disrupted",
                f"NodePool {pool.name}: {'; '.join(found)}. The pods' annotation "
                "karpenter.sh/do-not-disrupt stops other disruptions only",
                "in a NodePool for training: expireAfter: Never, no terminationGracePeriod, consolidateAfter: "
                "300s; checkpoints and restarts: bound what a run loses",
            )


def _node_type(job: Job, pools: Iterable[NodePoolMatch]) -> str | None:
    """Returns the instance type of the job's nodes if only one type can serve it, else None."""
    types = [job.resources.instance] if job.resources.instance is not None else []
    fit = [pool for pool in pools if not pool.mismatch]
    if not types and all(pool.types for pool in fit):
        types = list(dict.fromkeys(one for pool in fit for one in pool.types))
    return str(types[0]) if len(types) == 1 else None


def _price(job: Job, pools: tuple[NodePoolMatch, ...], target: KubernetesTarget, table: Table | None) -> Price | None:
    """Returns the price of a plan: the target's price, or else the list price if the target names its region."""
    num_nodes, spares = job.nodes.max, job.kubernetes.spares
    kind = _node_type(job, pools)
    per_hour = target.prices.get(kind or "", target.price_per_hour)
    if per_hour is not None:
        return price(per_hour, target.currency, num_nodes, f"target {target.name}", spares)
    fit = [pool for pool in pools if not pool.mismatch]
    is_spot = bool(fit) and all(tuple(pool.capacity_types) == ("spot",) for pool in fit)
    listed = list_price(kind, target.region, table, is_spot=is_spot)
    return None if listed is None else price(listed[0], LISTED_IN, num_nodes, listed[1], spares)


def _text(pool: NodePoolMatch, target: KubernetesTarget) -> str:
    prices = {one: f"{price:g} {target.currency} an hour" for one, price in target.prices.items()}
    return f"NodePool {pool.name} makes {makes(pool, pool.types, prices)}"


def _pool(pool: NodePoolMatch, target: KubernetesTarget) -> NodePool:
    """Converts a matching NodePool to its form in a plan."""
    prices = {one: target.prices[one] for one in pool.types if one in target.prices}
    return NodePool(pool.name, tuple(pool.types), tuple(pool.capacity_types), tuple(pool.others), prices)
