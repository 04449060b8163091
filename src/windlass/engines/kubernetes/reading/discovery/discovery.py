"""Finds the runs of a namespace by their objects, whichever machine started them.

`object_lists.py` stores the lists of objects, `phase.py` derives the runs, and `informer.py` keeps the lists up to
date.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.reading.discovery import followups
from windlass.engines.kubernetes.reading.discovery.object_lists import (
    OURS,
    OWNER_CONFIG_MAPS,
    TABLES,
    ObjectLists,
    Table,
)
from windlass.engines.kubernetes.reading.discovery.phase import Seen
from windlass.errors import NoSuchRun
from windlass.runs.events import Progress
from windlass.runs.naming import choose

if TYPE_CHECKING:
    from windlass.engines.kubernetes.objects.pod_status import PodStatus

TAIL_LINES: Final = 400
"""Number of the first node's last log lines that are searched for its newest progress."""


def look(client: Client, run_id: str = "") -> ObjectLists:
    """Returns the objects of all runs in the namespace, or of one run. Raises Refused, Unreachable."""
    found = ObjectLists(client.namespace)
    errors: list[BaseException] = []

    def ask(table: Table) -> None:
        try:
            fill(found, client, table, run_id)
        except BaseException as error:
            errors.append(error)

    # Plain threads start sooner: importing `concurrent.futures` takes as long as a response.
    threads = [threading.Thread(target=ask, args=(table,), daemon=True) for table in TABLES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    found.more = followups.ask(client, OURS, *found.open_questions())
    return found


def fill(lists: ObjectLists, client: Client, table: Table, run_id: str = "") -> None:
    """Reads one list into the object lists, for all runs or for one. Raises Refused, Unreachable."""
    while True:
        pages = client.pages(table.api, table.kind, table.selector(run_id), includeObject=table.include)
        try:
            lists.fill(table, pages)
            lists.ahead = client.ahead
            return
        except Refused as error:
            if error.status != 410:  # 410: the version of the first page has expired, so the list is read again
                raise


def everywhere(client: Client, now: float) -> list[Seen]:
    """Returns the runs of all namespaces, newest first. Raises Refused if the user may not list all of them,
    Unreachable.
    """
    pages = client.pages(
        OWNER_CONFIG_MAPS.api,
        OWNER_CONFIG_MAPS.kind,
        OWNER_CONFIG_MAPS.selector(),
        everywhere=True,
        includeObject=OWNER_CONFIG_MAPS.include,
    )
    namespaces = {row["object"]["metadata"]["namespace"] for page in pages for row in page["rows"] or ()}
    found = [seen for namespace in sorted(namespaces) for seen in look(client.within(namespace)).runs(now)]
    return sorted(found, key=lambda one: (-one.objects.created_at, one.id))


def find(client: Client, prefix: str | None, where: str) -> str:
    """Returns the id of the run that `prefix` identifies (`naming.choose`); without a prefix, the id of the newest run.

    `where` names the namespace in messages. Raises NoSuchRun, UsageError if the namespace does not exist, Refused,
    Unreachable.
    """
    if prefix and _is_there(client, prefix):
        return prefix
    lists = ObjectLists(client.namespace)
    fill(lists, client, OWNER_CONFIG_MAPS)
    ids = [seen.id for seen in lists.runs(time.time())]
    hint = f"windlass ps --on {where} lists them"
    if prefix == "":  # an empty prefix usually comes from an unset variable in a script
        raise NoSuchRun("the given id is empty", hint)
    found = choose(prefix, ids, where) if prefix else next(iter(ids), None)
    if found is None:
        if not ids:
            client.require_namespace()
        said = f"no run on {where} has the id '{prefix}'" if prefix else f"there is no run on {where}"
        raise NoSuchRun(said, hint)
    return found


def _is_there(client: Client, run_id: str) -> bool:
    """Whether a run with exactly this id exists."""
    if "/" in run_id:
        return False
    try:
        owner_config_map = client.get("v1", "ConfigMap", run_id)
    except Refused as error:
        if error.status == 403:
            raise
        return False
    labels = owner_config_map["metadata"].get("labels", {})
    return bool(labels.get(layout.RUN_LABEL) == run_id)


def one(client: Client, run_id: str) -> Seen:
    """Returns the current state of one run. Raises NoSuchRun, Refused, Unreachable."""
    for seen in look(client, run_id).runs(time.time()):
        return seen
    raise NoSuchRun(f"{run_id} is no longer in namespace {client.namespace}", "its objects were deleted")


def progress(client: Client, pods: Iterable[PodStatus]) -> Progress:
    """Returns the newest progress that the first node of a run has reported; empty if there is none, or its log cannot
    be read.
    """
    first = next((pod.name for pod in pods if pod.node == 0), "")
    if not first:
        return Progress()
    try:
        container = layout.container_of(client.get("v1", "Pod", first))
        lines = list(client.logs(first, container=container, follow=False, tail=TAIL_LINES))
    except (Refused, Unreachable):
        return Progress()
    return Progress.from_json(progress_in(lines))


def progress_in(lines: Iterable[bytes]) -> dict[str, Any]:
    """Returns the newest progress in the given lines of a pod's log."""
    from windlass.runs import node_events
    from windlass.worker.protocol import NODE_TAG, ProgressMade

    found: dict[str, Any] = {}
    for line in lines:
        _, is_node, event = line.partition(f" [{NODE_TAG}] ".encode())
        if is_node and b'"progress"' in event:
            parsed = node_events.parse(event)
            if parsed is not None and isinstance(parsed.event, ProgressMade):
                found |= {**parsed.event.progress, "at": parsed.event.at}
    return found


def pods(client: Client, seen: Seen) -> tuple[PodStatus, ...]:
    """Returns the status of the pods of a run's newest attempt, in the order of their index. Raises Refused,
    Unreachable.
    """
    from windlass.engines.kubernetes.objects.pod_status import pod_status
    from windlass.engines.kubernetes.objects.pods import by_id

    selector = f"{layout.selector(seen.id)},{layout.ATTEMPT_LABEL}={seen.attempt}"
    found = by_id(client.find("v1", "Pod", selector)["items"]) if seen.attempt else {}
    return tuple(pod_status(one.index, found[one]) for one in sorted(found, key=lambda one: one.index))
