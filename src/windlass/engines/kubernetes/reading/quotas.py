"""Derives a workload's position in its queue, its requests, and the users of the quota, from Workloads. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from windlass.engines.kubernetes.objects.observations import QueueStatus, QuotaHolder
from windlass.engines.kubernetes.objects.quantity import Json, is_true, quantity_text
from windlass.engines.kubernetes.reading.admission import (
    WAITS,
    called,
    cluster_queue_of,
    created,
    priority_of,
    queue_status,
    uid_of,
    workload_of,
)
from windlass.spec.quantities import amount

MAX_HOLDERS: Final = 8


def counted(
    owner: Json,
    workloads: Sequence[Json],
    local_queues: Sequence[Json] | None,
    cluster_queue: Json | None,
    *,
    is_everywhere: bool,
) -> QueueStatus | None:
    """Returns the result of `queue_status`, with the position among the waiting workloads and the users of the quota.

    `workloads` and `local_queues` are those of the namespace, or of all namespaces if `is_everywhere`.
    """
    seen, workload = queue_status(owner, workloads, local_queues, cluster_queue), workload_of(owner, workloads)
    if seen is None or workload is None:
        return seen
    position, num_waiting = None, 0
    if seen.state in WAITS:
        position, num_waiting = _position(workload, _competing(workloads, workload, seen, local_queues or ()))
    is_whole = is_everywhere and bool(seen.cluster_queue)
    return seen.replace(
        position=position,
        num_waiting=num_waiting,
        scope=f"ClusterQueue {seen.cluster_queue}" if is_whole else f"namespace {workload['metadata']['namespace']}",
        asked=_asked(workload),
        quota=tuple(_quota(cluster_queue, seen.lacking)),
        holders=tuple(_holders(workloads, workload, seen))[:MAX_HOLDERS],
    )


def _competing(
    workloads: Iterable[Json], workload: Json, seen: QueueStatus, local_queues: Iterable[Json]
) -> Iterator[Json]:
    """Yields the workloads that wait for the same quota, as far as the queues that share the quota are known."""
    same = {(workload["metadata"]["namespace"], seen.queue)}
    for one in local_queues:
        if seen.cluster_queue and one["spec"].get("clusterQueue") == seen.cluster_queue:
            same.add((one["metadata"]["namespace"], one["metadata"]["name"]))
    for one in workloads:
        is_held = is_true(one, "QuotaReserved") or is_true(one, "Finished") or one["spec"].get("active") is False
        if not is_held and (one["metadata"]["namespace"], one["spec"].get("queueName")) in same:
            yield one


def _position(workload: Json, waiting: Iterable[Json]) -> tuple[int | None, int]:
    """Returns the position of a workload in the order in which its queue tries workloads (None if missing), and their
    number.
    """
    order = sorted(waiting, key=lambda one: (-priority_of(one), created(one), uid_of(one)))
    place = next((at for at, one in enumerate(order, 1) if uid_of(one) == uid_of(workload)), None)
    return place, len(order)


def _holders(workloads: Iterable[Json], workload: Json, seen: QueueStatus) -> Iterator[QuotaHolder]:
    """Yields the workloads with reserved quota in the same ClusterQueue, largest users of the scarce resources
    first.
    """
    found = []
    for one in workloads:
        where = cluster_queue_of(one, None)
        if where and where == seen.cluster_queue and is_true(one, "QuotaReserved") and not is_true(one, "Finished"):
            used = _used(one, seen.lacking)
            if used or not seen.lacking:
                found.append((max(used.values(), default=0.0), used, one))
    for _, used, one in sorted(found, key=lambda row: (-row[0], created(row[2]))):
        amounts = ", ".join(f"{quantity_text(name, value)} {name}" for name, value in used.items())
        yield QuotaHolder(called(one, workload["metadata"]["namespace"]), amounts, priority_of(one))


def _used(workload: Json, of: Collection[str]) -> dict[str, float]:
    """Returns the amounts of the resources `of` that are reserved for a Workload; of all resources if `of` is empty."""
    total: dict[str, float] = {}
    for pods in workload["status"]["admission"].get("podSetAssignments", ()):
        for name, value in pods.get("resourceUsage", {}).items():
            if not of or name in of:
                total[name] = total.get(name, 0.0) + amount(str(value))
    return {name: value for name, value in total.items() if value}


def _asked(workload: Json) -> dict[str, str]:
    total: dict[str, float] = {}
    for pods in workload["spec"].get("podSets", ()):
        for container in pods["template"]["spec"].get("containers", ()):
            resources = container.get("resources", {})
            for name, value in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
                total[name] = total.get(name, 0.0) + amount(str(value)) * int(pods["count"])
    return {name: quantity_text(name, value) for name, value in total.items()}


def _quota(cluster_queue: Json | None, short: Collection[str]) -> Iterator[str]:
    """Yields a line for each scarce resource of a ClusterQueue, with its quota and how much of the quota is
    reserved.
    """
    if cluster_queue is None:
        return
    reserved = {
        (flavor["name"], one["name"]): one
        for flavor in cluster_queue.get("status", {}).get("flavorsReservation", ())
        for one in flavor.get("resources", ())
    }
    for group in cluster_queue["spec"].get("resourceGroups", ()):
        for flavor in group["flavors"]:
            for one in flavor["resources"]:
                if short and one["name"] not in short:
                    continue
                held = reserved.get((flavor["name"], one["name"]), {})
                borrowed = f", {held['borrowed']} of it borrowed" if amount(str(held.get("borrowed", "0"))) else ""
                limit = f" and may borrow {one['borrowingLimit']}" if one.get("borrowingLimit") else ""
                yield (
                    f"ClusterQueue {cluster_queue['metadata']['name']} has {one['nominalQuota']} {one['name']} of "
                    f"flavor {flavor['name']}{limit}; {held.get('total', '0')} is reserved{borrowed}"
                )
