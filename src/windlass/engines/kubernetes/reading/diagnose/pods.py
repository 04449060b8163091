"""Rules on pods that do not start, on pods that were ended from outside, and on a cluster that does not respond.

The rules give no verdict if a script failed, that is, if a rank ended with an exception or its own exit code.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from windlass.diagnose.observations import Observations
from windlass.diagnose.rules.collectives import is_rendezvous_missed
from windlass.diagnose.rules.restarts import resumed
from windlass.diagnose.verdict import Verdict
from windlass.engines.kubernetes.objects.observations import ClusterStatus
from windlass.engines.kubernetes.objects.pod_status import PodStatus
from windlass.engines.kubernetes.reading.diagnose.pod_reasons import ENDS, KARPENTER_REASONS, explained
from windlass.engines.kubernetes.reading.diagnose.scheduling import unschedulable
from windlass.engines.kubernetes.reading.eviction import KARPENTER
from windlass.runs.events import StopRequested, Warned, entries
from windlass.runs.phase import Phase
from windlass.runs.record import SUPERVISOR_ABSENT

NOT_BEGUN: Final = ("missing", "queued", "pulling")
OWNERS: Final = ("Job", "JobSet", "TrainJob", "PyTorchJob", "MPIJob")
"""Kinds of owner objects."""
START_ERRORS: Final = ("StartError", "ContainerCannotRun", "RunContainerError")
NODE_GONE: Final = ("NodeNotReady", "NodeLost", "DeletionByTaintManager", "DeletionByPodGC")
ENDED: Final = ("Deleted", "DeadlineExceeded")
MAX_EVIDENCE: Final = 6
_NAME: Final = re.compile(r"waiting for the name (\S+), (\d+) s so far|the name (\S+) is not known after (\d+) s")
"""Log lines of a pod that waits until another pod's name resolves (`worker/pod.py`)."""


def not_started(cluster: ClusterStatus, case: Observations) -> Iterator[Verdict]:
    """Yields verdicts on pods that are not created, are not scheduled, or do not start."""
    waiting = waiting_pods(cluster, case)
    if not waiting:
        return
    about = [(_called(pod), f"{pod.reason}: {pod.message}") for pod in waiting if pod.reason]
    reports = [one for one in cluster.reports if one.reason not in ENDED]
    about += [(f"{one.kind} {one.name}", f"{one.reason}: {one.message}") for one in reports]
    evidence = tuple(dict.fromkeys(f"{name}: {message}" for name, message in about))[:MAX_EVIDENCE]
    for name, message in about:
        if found := explained(message, name, evidence, 108, image=cluster.container.get("image", "")):
            yield found
    unplaced = [pod for pod in waiting if pod.reason == "Unschedulable" and explained(pod.message, "", (), 0) is None]
    if unplaced:
        yield unschedulable(cluster, unplaced, evidence)
    if cluster.is_suspended and cluster.queue is None:
        yield Verdict(
            "queue-waits",
            "the job is suspended by a queue of the cluster",
            None,
            evidence,
            "see the queue: kubectl get workloads; or leave out queue:",
            104,
        )
    if not case.status.phase.is_terminal and not cluster.unreachable:
        yield _no_reason(waiting, evidence)


def _no_reason(waiting: Sequence[PodStatus], evidence: tuple[str, ...]) -> Verdict:
    """Returns the verdict on pods that wait without a reported reason, possibly because they were just requested."""
    created = [pod for pod in waiting if pod.state != "missing"]
    idle = [pod for pod in created if pod.state == "queued" and not pod.reason]
    if not created:
        code, summary, score = "pods-not-made", f"the cluster has not created {_count(waiting)}; no reason reported", 60
        fix = "if that lasts, its controllers do not work: a cluster administrator can see why"
    elif idle:
        code, summary, score = "not-scheduled", f"the scheduler has not considered {_count(idle)} yet", 60
        fix = "if that lasts, the cluster's scheduler does not work: a cluster administrator can see why"
    else:
        why = ", ".join(dict.fromkeys(pod.reason or pod.state for pod in created))
        where = ", ".join(dict.fromkeys(pod.machine for pod in created if pod.machine))
        summary = f"{_count(created)} {'do' if len(created) > 1 else 'does'} not run yet: {why}"
        code, summary, score = "pods-waiting", summary + (f" on {where}" if where else ""), 50
        fix = f"if that lasts: kubectl describe pod {created[0].name}"
    return Verdict(code, summary, None, evidence, fix, score, is_effect=True)


def ended(cluster: ClusterStatus, case: Observations) -> Iterator[Verdict]:
    """Yields verdicts on pods that were ended from outside, alone or together with their owner object."""
    if not _is_open(case):
        return
    for one in cluster.reports:
        name = f"{one.kind} {one.name}"
        if one.kind in OWNERS and one.reason == "Deleted":
            yield Verdict(
                "job-deleted",
                f"{name} was deleted, and with it all pods of the run",
                None,
                (one.message,),
                f"find out what deletes Jobs there; to continue the run: windlass resume {case.status.id}",
                106,
            )
        elif one.kind in OWNERS and one.reason == "DeadlineExceeded":
            yield Verdict(
                "deadline",
                f"the cluster has ended {name}: its activeDeadlineSeconds are over",
                None,
                (f"{one.reason}: {one.message}",),
                "Windlass sets none: see which policy of the cluster does, and use timeout: instead",
                107,
            )
    first = case.cause.node_lost
    pods = sorted(cluster.pods, key=lambda pod: (pod.node != first, pod.node))
    for at, pod in enumerate(pod for pod in pods if pod.reason in ENDS):
        if pod.reason == "Deleted" and pod.state in NOT_BEGUN:
            continue
        reported = f"{_called(pod)}: {pod.reason}" + (f": {pod.message}" if pod.message else "")
        score = 105 - at * 0.1 - (3 if pod.reason == "Deleted" else 0)
        yield _of_end(case, pod, score, (reported, *_where(cluster, pod)), _rank_of(case, pod))


def oom(cluster: ClusterStatus, case: Observations) -> Iterator[Verdict]:
    """Yields a verdict on a rank that was killed because its pod was out of memory."""
    if case.first is None or case.signal != "SIGKILL" or case.cause.node_lost is not None:
        return
    for pod in cluster.pods:
        if pod.node == case.first.node and (pod.reason == "OOMKilled" or case.host.oom_kills_of_group):
            counted = (
                "OOMKilled"
                if pod.reason == "OOMKilled"
                else "the kernel killed one of its processes for lack of memory"
            )
            limit = cluster.container.get("resources", {}).get("limits", {}).get("memory")
            limits = (f"memory limit of each pod: {limit}",) if limit else ()
            evidence = (f"{_called(pod)}: {counted}", f"{case.who} was ended by SIGKILL", *limits)
            yield ENDS["OOMKilled"].verdict(evidence, score=101, rank=case.first.rank, it=_called(pod))


def lost_peer(cluster: ClusterStatus, case: Observations) -> Iterator[Verdict]:
    """Yields a verdict on ranks that lost the connection to a rank on a node that no longer responds."""
    if case.only_victims:
        for pod in (pod for pod in cluster.pods if pod.reason in NODE_GONE):
            yield _of_end(case, pod, 97, _where(cluster, pod))


def _of_end(
    case: Observations, pod: PodStatus, score: float, evidence: tuple[str, ...], rank: int | None = None
) -> Verdict:
    of_log = f"log of node {pod.node}: its last lines are missing"
    evidence += tuple(one.message for one in entries(case.events, Warned) if one.message.startswith(of_log))
    is_named = pod.message.startswith(KARPENTER)
    why = KARPENTER_REASONS.get(pod.message.removeprefix(KARPENTER), "") if is_named else ""
    found = ENDS[KARPENTER if is_named else pod.reason].verdict(
        evidence,
        score=score,
        rank=rank,
        it=_called(pod),
        message=f"{pod.message}: {why}" if why else pod.message or pod.reason,
        machine=pod.machine or "NAME",
    )
    if not case.status.phase.is_terminal or "restarts:" not in found.fix:
        return found
    return replace(found, fix=f"{found.fix}; now: {resumed(case)}")


def name_unknown(cluster: ClusterStatus, case: Observations) -> Iterator[Verdict]:
    """Yields a verdict on pods that cannot resolve the name of the first pod."""
    if waiting_pods(cluster, case):
        return
    begun = {state.node for state in case.status.ranks if state.pid is not None}
    for node in case.nodes:
        if node.node in begun or not (found := list(_NAME.finditer(node.words))):
            continue
        name, seconds = found[-1][1] or found[-1][3], found[-1][2] or found[-1][4]
        yield Verdict(
            "name-unknown",
            f"the pods cannot find each other: the name {name} is not known after {seconds} s",
            None,
            (f"node {node.node}: {found[-1][0]}", "the first pod runs, so its name should resolve"),
            "see whether the cluster's DNS works: kubectl -n kube-system get pods -l k8s-app=kube-dns; windlass check "
            "--on TARGET --network tries it",
            103,
        )
        return


def unreachable(cluster: ClusterStatus, case: Observations) -> Iterator[Verdict]:
    """Yields a verdict on an unfinished run whose cluster does not respond."""
    if not cluster.unreachable or case.status.phase.is_terminal:
        return
    evidence = [cluster.unreachable]
    if (state := case.status.supervision.condition) is not None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(state.since))
        evidence.append(f"since {stamp}: {state.message}")
    summary = f"the cluster cannot be reached: {cluster.unreachable}; the run's last known phase: {case.status.phase}"
    yield Verdict(
        "cluster-unreachable",
        summary,
        None,
        tuple(evidence),
        "the pods continue without it, and the run is followed again when it responds; see: kubectl cluster-info",
        109,
    )


def not_followed(cluster: ClusterStatus, case: Observations) -> Iterator[Verdict]:
    """Yields a verdict on an active run whose supervisor cannot follow it, although the cluster responds to this
    command.
    """
    state = case.status.supervision.condition
    if state is None or case.status.phase.is_terminal or state.type == SUPERVISOR_ABSENT:
        return
    message = state.message
    if found := explained(message, "the cluster", (message,), 106):
        yield found
    yield Verdict(
        "run-not-followed",
        f"the run's supervisor cannot follow it: {message}",
        None,
        (message, f"the run's last known phase: {case.status.phase}"),
        f"pods continue without it, and it retries every few seconds; see: windlass check --on {case.status.target}",
        30,
    )


def could_not_start(cluster: ClusterStatus, case: Observations) -> Iterator[Verdict]:
    """Yields a verdict on an attempt whose objects the cluster has refused."""
    message = case.cause.summary
    if not message.startswith("could not start: "):
        return
    message = message.removeprefix("could not start: ")
    if found := explained(message, "the cluster", (message,), 106):
        yield found
    elif "does not answer" in message:
        yield Verdict(
            "cluster-unreachable",
            f"the cluster did not accept requests for pods: {message}",
            None,
            (message,),
            f"when it responds: windlass resume {case.status.id}",
            106,
        )
    elif "the cluster refused" in message:
        yield Verdict(
            "admission-refused",
            f"the run could not be started: {message}",
            None,
            (message,),
            "change the job as the message requires",
            105,
        )


# -- conditions of the rules ------------------------------------------------------------------------------------------


def waiting_pods(cluster: ClusterStatus, case: Observations) -> list[PodStatus]:
    """Returns the pods of nodes on which no rank has started; empty if a rank of another node failed by itself."""
    if not (_is_open(case) or is_rendezvous_missed(case)):
        return []
    begun = {state.node for state in case.status.ranks if state.pid is not None or state.exit_code == 0}
    return [
        pod
        for pod in cluster.pods
        if pod.node not in begun and (pod.state in NOT_BEGUN or pod.reason in START_ERRORS or _is_rejected(pod))
    ]


def _is_open(case: Observations) -> bool:
    """Whether the run has not ended, or has ended for a reason other than its script or its user."""
    status = case.status
    if not status.phase.is_terminal:
        return True
    if status.phase is Phase.SUCCEEDED or (status.phase is Phase.STOPPED and case.last(StopRequested) is not None):
        return False
    cause = case.cause
    return case.timed_out or status.phase is not Phase.FAILED or cause.node_lost is not None or cause.rank is None


def _is_rejected(pod: PodStatus) -> bool:
    """Whether the pod's node rejected the pod before it ran."""
    return pod.state == "ended" and pod.exit_code is None and pod.reason not in ENDS and bool(pod.reason)


def _called(pod: PodStatus) -> str:
    return f"pod {pod.name}" if pod.name else f"the pod of node {pod.node}"


def _count(pods: Sequence[PodStatus]) -> str:
    return _called(pods[0]) if len(pods) == 1 else f"{len(pods)} pods"


def _where(cluster: ClusterStatus, pod: PodStatus) -> tuple[str, ...]:
    if not pod.machine:
        return ()
    code = f", and its container ended with exit code {pod.exit_code}" if pod.exit_code is not None else ""
    unready = [f"node {one.name} is not ready" for one in cluster.nodes if one.name == pod.machine and not one.is_ready]
    return (f"it was on node {pod.machine}{code}", *unready)


def _rank_of(case: Observations, pod: PodStatus) -> int | None:
    ranks = [state.rank for state in case.status.ranks if state.node == pod.node]
    return ranks[0] if len(ranks) == 1 and len(case.status.ranks) > 1 else None
