"""Collects observations of a run on a cluster, for `why`: the record, the logs, and the cluster's present state.

A few requests are sent in parallel, with a time limit. The record contains what the cluster reported about failed pods,
so that a diagnosis is possible even if the cluster does not respond or has deleted the pods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from windlass.diagnose import observe as diagnose
from windlass.diagnose.observations import Observations
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.access.optional import ANSWER_SECONDS, at_once, served
from windlass.engines.kubernetes.objects import layout, node_pools
from windlass.engines.kubernetes.objects.find_pod_specs import claims_of, pod_spec
from windlass.engines.kubernetes.objects.object_reports import NOT_ORDINARY, ends_of, key, object_reports, recorded
from windlass.engines.kubernetes.objects.observations import ClusterNode, ClusterStatus, ObjectReport, QueueStatus
from windlass.engines.kubernetes.objects.planned import attempt_objects
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment
from windlass.engines.kubernetes.objects.pod_status import PodStatus, pod_status
from windlass.engines.kubernetes.objects.quantity import is_true
from windlass.engines.kubernetes.reading import admission, claims, karpenter, quotas
from windlass.engines.kubernetes.reading.diagnose.rules import rules_on
from windlass.errors import EngineError, UsageError
from windlass.plan.plan import Plan
from windlass.plan.steps import AttemptStep, ClusterStep, CodeStep
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import Store

MAX_OBJECTS: Final = "1000"
KUEUE: Final = ("Workload", "LocalQueue")
"""Kinds that are read in the namespace and, if permitted, in all namespaces, since all workloads compete for quota."""
CALLED: Final = {
    "pods": "pods cannot be listed",
    "owner": "the owner object of the pods cannot be read",
    "events": "events cannot be listed",
    "nodes": "nodes cannot be listed",
    "Workload": "Workloads cannot be listed",
    "LocalQueue": "LocalQueues cannot be listed",
    "every Workload": "Workloads of other namespaces cannot be listed",
    "ClusterQueue": "ClusterQueues cannot be listed",
    "queue api": "whether Kueue is installed cannot be read",
    "pools": "NodePools cannot be listed",
    "claims": "NodeClaims cannot be listed",
    "refused": "events of the node autoscaler cannot be listed",
    "of claims": "events of NodeClaims cannot be listed",
    "pool api": "whether Karpenter is installed cannot be read",
}
"""Descriptions of failed requests, by the name of the request."""
Json = Mapping[str, Any]
Answers = dict[str, Any]
"""Results or errors of requests, by name."""


def observe(store: Store, status: Status) -> Observations:
    """Returns the observations of a run on a cluster."""
    plan = store.plan(status.id)
    seen = diagnose.observe(store, status, moved=(layout.CODE, plan.only(CodeStep).folder))
    cluster = replace(cluster_status(store, status, plan), pod_spec=pod_spec(attempt_objects(plan)))
    away = f"the cluster: {cluster.unreachable}; pods and objects are as last recorded"
    not_seen = (*((away,) if cluster.unreachable else ()), *cluster.not_seen)
    image = str(cluster.container.get("image") or "of the job")
    return replace(seen, rules=rules_on(cluster), not_seen=not_seen, image=image)


def cluster_status(store: Store, status: Status, plan: Plan) -> ClusterStatus:
    """Returns the state of the newest attempt, from its cluster and, for deleted objects, from the record."""
    events = store.events(status.id)
    known, reports = recorded(events)
    turn = admission.recorded(events)
    if status.phase is Phase.SUCCEEDED or not status.attempts:
        return ClusterStatus(tuple(known.values()), tuple(reports), queue=turn)
    unread = _unread(store, status)
    number = len(status.attempts)
    members = status.attempts[-1].members
    assignment = PodAssignment.of(store.run_dir(status.id) / f"attempt-{number}", number, len(members))
    answers, unreachable = _ask(plan, assignment)
    now = time.time()
    provisioned = claims.recorded(events, status.times.ended_at or now)
    if unreachable:
        return ClusterStatus(
            tuple(known.values()),
            tuple(reports),
            queue=turn,
            unreachable=unreachable,
            claims=provisioned,
            not_seen=unread,
        )
    pools: tuple[Any, ...] = ()
    if pending := _not_running(answers):
        lists = {
            name: objects
            for name in ("claims", "refused", "of claims")
            if (objects := _list(answers, name)) is not None
        }
        nodes = _items(answers, "nodes")
        provisioned, refusals = claims.provisioned(pending, _items(answers, "events"), lists, nodes, provisioned, now)
        pools = node_pools.matches(_list(answers, "pools") or (), pod_spec(attempt_objects(plan)))
        reports = [*refusals, *reports]
    found = _merged(status, plan, assignment, answers, known, reports, members)
    not_seen = (*_not_seen(answers), *unread)
    return replace(found, queue=_queue(answers) or turn, pools=pools, claims=provisioned, not_seen=not_seen)


def _not_seen(answers: Answers) -> list[str]:
    """Returns what could not be read, with reasons; missing objects and APIs that are not installed are not
    mentioned.
    """
    return [
        f"{CALLED[name]}: {error.message}"
        for name, error in answers.items()
        if isinstance(error, EngineError) and not (isinstance(error, Refused) and error.status == 404)
    ]


def _unread(store: Store, status: Status) -> tuple[str, ...]:
    """Returns a note if a restarted supervisor may not have read all logs of the pods yet; else nothing."""
    newest = store.events(status.id, status.last_seq - 1)
    if status.phase.is_terminal or not newest or newest[-1].kind != "adopted":
        return ()
    since = max(
        (event.time for event in store.events(status.id) if event.kind != "adopted"), default=status.times.created_at
    )
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    return (f"logs that the pods wrote after {at} may not be read yet: the supervisor was restarted",)


def _merged(
    status: Status,
    plan: Plan,
    assignment: PodAssignment,
    answers: Answers,
    known: Mapping[int, PodStatus],
    reports: Iterable[ObjectReport],
    members: tuple[int, ...],
) -> ClusterStatus:
    made = plan.only(AttemptStep).manifest
    there = assignment.by_place(_items(answers, "pods"))
    pods = [
        _newer(pod_status(node, there.get(place)), known.get(node), is_over=status.phase.is_terminal)
        for place, node in enumerate(members)
    ]
    volumes = claims_of(attempt_objects(plan))
    ignored = assignment.spare_prefixes(plan)
    events = object_reports(_items(answers, "events"), plan.run_id, assignment.newest, claims=volumes, spares=ignored)
    owner = answers["owner"]
    # A missing owner object may not have been created yet. If it was deleted, the record has the deletion.
    ends = ends_of(owner, made["kind"], owner["metadata"]["name"]) if isinstance(owner, dict) else ()
    is_suspended = isinstance(owner, dict) and admission.is_suspended(owner)
    # Current reports take precedence over recorded ones.
    every = {(one.kind, key(one)): one for one in reversed((*ends, *events, *reports))}
    return ClusterStatus(
        tuple(pods), tuple(reversed(every.values())), tuple(map(_cluster_node, _items(answers, "nodes"))), is_suspended
    )


def _newer(now: PodStatus, before: PodStatus | None, *, is_over: bool) -> PodStatus:
    """Returns the current status of a pod; the recorded one if the pod no longer exists, or has no specific reason
    after the run.
    """
    if before is None:
        return now
    if not now.name:
        return before
    return before if is_over and now.reason in ("", "Error", "Deleted") else now


# -- requests ---------------------------------------------------------------------------------------------------------


def _ask(plan: Plan, assignment: PodAssignment) -> tuple[Answers, str]:
    """Returns the results of all requests, and why the cluster does not respond (empty if it does)."""
    cluster, made = plan.only(ClusterStep), plan.only(AttemptStep).manifest
    try:
        client = Client(cluster.context, cluster.namespace, cluster.kubeconfig)
    except (EngineError, UsageError) as error:
        return {}, error.message
    name = layout.attempt_name(plan.run_id, assignment.newest)
    answers = _answers(
        {
            "pods": lambda: _pods(client, plan, assignment),
            "owner": lambda: client.get(made["apiVersion"], made["kind"], name),
            "events": lambda: client.find("v1", "Event", fieldSelector=NOT_ORDINARY, limit=MAX_OBJECTS),
            "nodes": lambda: client.find("v1", "Node", limit=MAX_OBJECTS),
        }
    )
    late = next((one for one in answers.values() if isinstance(one, Unreachable)), None)
    if late is not None or isinstance(answers["pods"], EngineError):
        return {}, (late or answers["pods"]).message
    owner = answers["owner"]
    if isinstance(owner, dict) and (admission.is_suspended(owner) or admission.queue_of(owner)):
        answers |= _ask_optional(client, admission.GROUP, "queue api", _of_kueue)
    if _not_running(answers):
        answers |= _ask_optional(client, node_pools.GROUP, "pool api", _of_karpenter)
    client.close()
    return answers, ""


def _pods(client: Client, plan: Plan, assignment: PodAssignment) -> Json:
    found, ignored = client.find("v1", "Pod", assignment.selector(plan.run_id)), tuple(assignment.spare_prefixes(plan))
    return {**found, "items": [pod for pod in found["items"] if not pod["metadata"]["name"].startswith(ignored)]}


def _ask_optional(
    client: Client, group: str, name: str, questions: Callable[[Client, str], Mapping[str, Callable[[], Json]]]
) -> Answers:
    """Returns the results of requests to an API that may not be installed; `name` is the request that checks for the
    API.
    """
    api = _answers({name: lambda: {"api": served(client, group)}})
    if isinstance(api[name], EngineError):
        return api
    return _answers(questions(client, api[name]["api"])) if api[name]["api"] else {}


def _of_kueue(client: Client, api: str) -> dict[str, Callable[[], Json]]:
    return {
        **{kind: lambda kind=kind: client.find(api, kind, limit=MAX_OBJECTS) for kind in KUEUE},  # type: ignore[misc]
        **{f"every {kind}": lambda kind=kind: _every(client, api, kind) for kind in KUEUE},  # type: ignore[misc]
        "ClusterQueue": lambda: client.find(api, "ClusterQueue", limit=MAX_OBJECTS),
    }


def _of_karpenter(client: Client, api: str) -> dict[str, Callable[[], Json]]:
    return {"pools": lambda: client.find(api, "NodePool", limit=MAX_OBJECTS), **karpenter.questions(client, api)}


def _every(client: Client, api: str, kind: str) -> Json:
    return client.call("GET", client.path(api, kind, everywhere=True), query={"limit": MAX_OBJECTS})


def _not_running(answers: Answers) -> list[Json]:
    """Returns the pods that have no node yet, or whose node may not be ready."""
    return [pod for pod in _items(answers, "pods") if pod_status(0, pod).state in ("queued", "pulling")]


def _queue(answers: Answers) -> QueueStatus | None:
    """Returns Kueue's status of the attempt; None if the attempt uses no queue."""
    owner = answers["owner"]
    if not isinstance(owner, dict):
        return None
    is_everywhere = all(_list(answers, f"every {kind}") is not None for kind in KUEUE)
    workloads, queues = (_list(answers, f"every {kind}" if is_everywhere else kind) for kind in KUEUE)
    seen = admission.queue_status(owner, workloads or (), queues)
    if seen is None:
        return None
    every = _items(answers, "ClusterQueue")
    cluster_queue = next((one for one in every if one["metadata"]["name"] == seen.cluster_queue), None)
    return quotas.counted(owner, workloads or (), queues, cluster_queue, is_everywhere=is_everywhere)


def _answers(questions: Mapping[str, Callable[[], Json]]) -> Answers:
    late = Unreachable(f"the cluster has not answered within {ANSWER_SECONDS:g} s", "")
    return {**dict.fromkeys(questions, late), **at_once(questions)}


def _list(answers: Answers, name: str) -> list[Any] | None:
    """Returns the objects of a list; None if the list was not read."""
    answer = answers.get(name)
    return list(answer["items"]) if isinstance(answer, dict) else None


def _items(answers: Answers, name: str) -> list[Any]:
    return _list(answers, name) or []


def _cluster_node(node: Json) -> ClusterNode:
    meta, allocatable = node["metadata"], node.get("status", {}).get("allocatable", {})
    return ClusterNode(meta["name"], is_true(node, "Ready"), allocatable, meta.get("labels", {}))
