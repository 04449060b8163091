"""Gathers what is known of a run on a cluster, for `why`: the record, the logs, and what the cluster says of it now.

The cluster is asked a handful of questions at once, and waited for only so long: what it has said of pods that failed
is in the record, and a diagnosis rests on that where the cluster does not answer or has forgotten them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from windlass.diagnose.observations import (
    ClusterSeen,
    ComingSeen,
    ObjectSaid,
    Observations,
    PodSeen,
    QueueSeen,
    ScalingSeen,
)
from windlass.engines import observing
from windlass.engines.kubernetes import coming, kueue, layout, queueing, quotas, scaling, staying
from windlass.engines.kubernetes.client import Client, Refused, Unreachable
from windlass.engines.kubernetes.plan import attempt_objects
from windlass.engines.kubernetes.pods import by_place
from windlass.engines.kubernetes.seeing import (
    NOT_ORDINARY,
    claims_of,
    ends_of,
    machine_seen,
    objects_said,
    pod_seen,
    recorded,
)
from windlass.errors import EngineError, UsageError
from windlass.plan.plan import Plan
from windlass.plan.pods import pod_spec
from windlass.runs.record import Phase, Status
from windlass.runs.store import Store

ANSWER_SECONDS: Final = 3.0
"""How long the cluster may take to answer: a person waits."""
MOST: Final = "1000"
KUEUE: Final = ("Workload", "LocalQueue")
"""What is asked for in the namespace and in all of them."""
CALLED: Final = {
    "pods": "pods cannot be listed", "owner": "the owner object of the pods cannot be read",
    "events": "events cannot be listed", "machines": "nodes cannot be listed",
    "Workload": "Workloads cannot be listed", "LocalQueue": "LocalQueues cannot be listed",
    "every Workload": "Workloads of other namespaces cannot be listed",
    "ClusterQueue": "ClusterQueues cannot be listed",
    "queue api": "whether there is Kueue cannot be asked", "pools": "NodePools cannot be listed",
    "claims": "NodeClaims cannot be listed", "refused": "events of the node autoscaler cannot be listed",
    "of claims": "events of NodeClaims cannot be listed", "pool api": "whether there is Karpenter cannot be asked",
}  # fmt: skip
"""How it is reported that an answer is missing."""
Json = Mapping[str, Any]
Answers = dict[str, Any]


def observe(store: Store, status: Status) -> Observations:
    """What is known of a run on a cluster."""
    plan = Plan.from_json(store.plan(status.id))
    [code] = plan.requests("code")
    facts = {"keeper_words": observing.supervisor_words(store.run_dir(status.id), status)}
    return observing.observe(
        store, status, heard=observing.hear(store, status), facts=facts, cluster=look(store, status, plan),
        moved=(layout.CODE, code["folder"]),
    )  # fmt: skip


def look(store: Store, status: Status, plan: Plan) -> ClusterSeen:
    """The newest attempt in its cluster: as it is now, over what the record knows of it."""
    known, said = recorded(store.events(status.id))
    turn = queueing.recorded(store.events(status.id))
    members = (status.attempts[-1].members if status.attempts else ()) or range(plan.num_nodes)
    if status.phase is Phase.SUCCEEDED or not status.attempts:
        return ClusterSeen(tuple(known.values()), tuple(said), queue=turn)
    unread = _unread(store, status)
    number = len(status.attempts)
    made_for = staying.made_for(store.run_dir(status.id) / f"attempt-{number}", number)
    answers, unreachable = _ask(plan, made_for)
    now = time.time()
    came = coming.recorded(store.events(status.id), status.ended_at or now)
    if unreachable:
        comes = ScalingSeen(coming=came) if came else None
        unseen = (f"the cluster cannot be asked: {unreachable}", *unread)
        return ClusterSeen(
            tuple(known.values()), tuple(said), queue=turn, unreachable=unreachable, scaling=comes, unseen=unseen
        )
    comes, more = _scaling(plan, answers, came, now)
    found = _merged(status, plan, made_for, answers, known, (*more, *said), tuple(members))
    return replace(found, queue=_queue(answers) or turn, scaling=comes, unseen=(*_unseen(answers), *unread))


def _unseen(answers: Answers) -> list[str]:
    """What could not be looked at, with the reason; what is not there, or not installed, is none of it."""
    missing = {name: answer for name, answer in (answers | answers.get("missing", {})).items() if name in CALLED}
    return [
        f"{CALLED[name]}: {error.message}"
        for name, error in missing.items()
        if isinstance(error, EngineError) and not (isinstance(error, Refused) and error.status == 404)
    ]


def _unread(store: Store, status: Status) -> list[str]:
    """Whether a new supervisor has yet to read what the pods have logged."""
    newest = store.events(status.id, status.last_seq - 1)
    if status.phase.is_terminal or not newest or newest[-1].kind != "adopted":
        return []
    since = max((event.time for event in store.events(status.id) if event.kind != "adopted"), default=status.created_at)
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    return [f"logs that the pods wrote after {at} may not be read yet: the supervisor was restarted"]


def _merged(
    status: Status, plan: Plan, number: int, answers: Answers, known: Mapping[int, PodSeen], said: Iterable[ObjectSaid],
    members: tuple[int, ...],
) -> ClusterSeen:  # fmt: skip
    [made] = plan.requests("attempt")
    there = by_place(_items(answers, "pods"))
    pods = [
        _newer(pod_seen(node, there.get(place)), known.get(node), is_over=status.phase.is_terminal)
        for place, node in enumerate(members)
    ]
    events = objects_said(_items(answers, "events"), plan.run_id, number, claims=claims_of(attempt_objects(plan)))
    owner = answers["owner"]
    # One that is not there may not have been made yet: whether it was deleted, its keeper has seen.
    ends = ends_of(owner, made["kind"], owner["metadata"]["name"]) if isinstance(owner, dict) else ()
    held = isinstance(owner, dict) and queueing.is_suspended(owner)
    # What was said before the cluster forgot it comes after what it says now.
    every = dict.fromkeys((*ends, *events, *said))
    return ClusterSeen(tuple(pods), tuple(every), tuple(map(machine_seen, _items(answers, "machines"))), held)


def _newer(now: PodSeen, before: PodSeen | None, *, is_over: bool) -> PodSeen:
    """What is to be known of a pod: what is seen of it now, unless it is gone and was seen to fail."""
    if before is None:
        return now
    if not now.name:
        return before
    return before if is_over and now.reason in ("", "Error", "Deleted") else now


# -- asking -----------------------------------------------------------------------------------------------------------


def _ask(plan: Plan, number: int) -> tuple[Answers, str]:
    """What the cluster says now; by question, an answer or the error. And why it says nothing, if so."""
    [cluster], [made] = plan.requests("cluster"), plan.requests("attempt")
    try:
        client = Client(cluster["context"], cluster["namespace"], cluster["kubeconfig"])
    except (EngineError, UsageError) as error:
        return {}, error.message
    selector = f"{layout.RUN_LABEL}={plan.run_id},{layout.ATTEMPT_LABEL}={number}"
    name = layout.attempt_name(plan.run_id, number)
    answers = at_once({
        "pods": lambda: client.find("v1", "Pod", selector),
        "owner": lambda: client.get(made["apiVersion"], made["kind"], name),
        "events": lambda: client.find("v1", "Event", fieldSelector=NOT_ORDINARY, limit=MOST),
        "machines": lambda: client.find("v1", "Node", limit=MOST),
    })  # fmt: skip
    silent = next((one for one in answers.values() if isinstance(one, Unreachable)), None)
    if silent is not None:
        return {}, silent.message
    if isinstance(answers["pods"], EngineError):
        return {}, answers["pods"].message
    owner = answers["owner"]
    if isinstance(owner, dict) and (queueing.is_suspended(owner) or queueing.queue_of(owner)):
        answers |= _ask_kueue(client)
    if _not_running(answers):
        missing = answers.get("missing", {})
        answers |= _ask_karpenter(client)
        answers["missing"] = missing | answers.get("missing", {})
    client.close()
    return answers, ""


def _ask_kueue(client: Client) -> Answers:
    """Workloads and queues: of all namespaces where they may be read, for those compete as well."""
    api = at_once({"api": lambda: {"api": kueue.served(client)}})["api"]
    if isinstance(api, EngineError):
        return {"missing": {"queue api": api}}
    if not (api := api["api"]):
        return {}
    found = at_once({
        **{kind: lambda kind=kind: client.find(api, kind, limit=MOST) for kind in KUEUE},  # type: ignore[misc]
        **{f"every {kind}": lambda kind=kind: _every(client, api, kind) for kind in KUEUE},  # type: ignore[misc]
        "ClusterQueue": lambda: client.find(api, "ClusterQueue", limit=MOST),
    })  # fmt: skip
    return _sorted_out(found)


def _ask_karpenter(client: Client) -> Answers:
    """What makes machines, what it has made, and what it says of pods for which it makes none."""
    api = at_once({"api": lambda: {"api": scaling.served(client)}})["api"]
    if isinstance(api, EngineError):
        return {"missing": {"pool api": api}}
    return _sorted_out(at_once(scaling.questions(client, api["api"])))


def _sorted_out(found: Answers) -> Answers:
    """The answers, and below `missing` the errors."""
    errors = {name: answer for name, answer in found.items() if isinstance(answer, EngineError)}
    return {**{name: answer for name, answer in found.items() if name not in errors}, "missing": errors}


def _not_running(answers: Answers) -> list[Json]:
    """The pods that have no machine yet, or one that may not be ready."""
    return [pod for pod in _items(answers, "pods") if pod_seen(0, pod).state in ("queued", "pulling")]


def _scaling(
    plan: Plan, answers: Answers, came: tuple[ComingSeen, ...], now: float
) -> tuple[ScalingSeen | None, list[ObjectSaid]]:
    """What makes machines for the pods that do not run yet, and what is said where none come."""
    pods = _not_running(answers)
    if not pods:
        return (ScalingSeen(coming=came) if came else None), []
    spec = pod_spec(attempt_objects(plan))
    found, said = scaling.seen(pods, spec, _items(answers, "events"), answers, _items(answers, "machines"), came, now)
    return (found if found.pools is not None or found.coming or said else None), said


def _every(client: Client, api: str, kind: str) -> Json:
    return client.call("GET", client.path(api, kind, everywhere=True), query={"limit": MOST})


def _queue(answers: Answers) -> QueueSeen | None:
    """What Kueue makes of the attempt, as far as it was answered; None where nothing holds it back."""
    owner = answers["owner"]
    if not isinstance(owner, dict):
        return None
    is_everywhere = all(f"every {kind}" in answers for kind in KUEUE)
    kinds = [f"every {kind}" if is_everywhere else kind for kind in KUEUE]
    workloads, queues = (answers[kind]["items"] if kind in answers else None for kind in kinds)
    seen = queueing.queue_seen(owner, workloads or (), queues)
    if seen is None:
        return None
    every = answers.get("ClusterQueue", {"items": ()})["items"]
    cluster_queue = next((one for one in every if one["metadata"]["name"] == seen.cluster_queue), None)
    return quotas.counted(owner, workloads or (), queues, cluster_queue, is_everywhere=is_everywhere)


def at_once(questions: Mapping[str, Callable[[], Json]]) -> Answers:
    """Ask all at the same time. Whoever does not answer in time is unreachable, and is not waited for at the end."""
    told: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def ask(name: str, question: Callable[[], Json]) -> None:
        try:
            told.put((name, question()))
        except EngineError as error:
            told.put((name, error))

    for name, question in questions.items():
        threading.Thread(target=ask, args=(name, question), name=f"why: {name}", daemon=True).start()
    answers: Answers = {}
    give_up = time.monotonic() + ANSWER_SECONDS
    while len(answers) < len(questions):
        try:
            name, answer = told.get(timeout=max(0.0, give_up - time.monotonic()))
        except queue.Empty:
            late = Unreachable(f"the cluster has not answered within {ANSWER_SECONDS:g} s", "")
            return {name: answers.get(name, late) for name in questions}
        answers[name] = answer
    return answers


def _items(answers: Answers, name: str) -> list[Any]:
    """The objects of a list; none where it may not be read."""
    answer = answers[name]
    return [] if isinstance(answer, EngineError) else list(answer["items"])
