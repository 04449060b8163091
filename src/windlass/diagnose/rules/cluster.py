"""What goes wrong below the script in a cluster: pods that cannot run, that were ended, or that nobody can ask about.

A script that fails by itself is none of this: where a rank has ended by an exception or an exit code of its own, these
rules are silent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Final

from windlass.diagnose.observations import ClusterSeen, ObjectSaid, PodSeen
from windlass.diagnose.rules.case import Case
from windlass.diagnose.rules.clusterwords import ENDS, Meaning, meaning_of
from windlass.diagnose.rules.placing import unschedulable
from windlass.diagnose.verdict import Verdict
from windlass.runs.record import Phase

NOT_BEGUN: Final = ("missing", "queued", "pulling")
MAKE_PODS: Final = ("Job", "JobSet", "TrainJob", "PyTorchJob", "MPIJob")
"""Kinds without whose objects a run has no pods."""
START_ERRORS: Final = ("StartError", "ContainerCannotRun", "RunContainerError")
MAX_EVIDENCE: Final = 6
_NAME: Final = re.compile(r"waiting for the name (\S+), (\d+) s by now|the name (\S+) is not known after (\d+) s")


def not_begun(case: Case) -> Iterator[Verdict]:
    """Pods that are not made, find no place, or do not start."""
    cluster = case.seen.cluster
    waiting = waiting_pods(case)
    if cluster is None or not waiting:
        return
    about = [(_pod_name(pod), f"{pod.reason}: {pod.message}") for pod in waiting if pod.reason]
    said = [one for one in cluster.said if one.reason not in ENDED]
    about += [(f"{one.kind} {one.name}", f"{one.reason}: {one.message}") for one in said]
    evidence = tuple(dict.fromkeys(f"{name}: {words}" for name, words in about))[:MAX_EVIDENCE]
    places = [pod for pod in waiting if pod.reason == "Unschedulable" and meaning_of(pod.message) is None]
    for name, words in about:
        if found := meaning_of(words):
            yield _meant(case, found, name, evidence, 108 - _order(found[0].pattern))
    if places:
        yield unschedulable(case, places, evidence)
    if cluster.is_suspended and cluster.queue is None:
        yield Verdict("queue-waits", "the job waits for its turn in a queue of the cluster", None, evidence,
                      "see the queue: kubectl get workloads; or leave out queue:", 104)  # fmt: skip
    if not case.status.phase.is_terminal and not cluster.unreachable:
        yield _fallback(waiting, evidence)


def _fallback(waiting: Sequence[PodSeen], evidence: tuple[str, ...]) -> Verdict:
    """Where nobody says why pods wait; which may be that they have only just been asked for."""
    missing = [pod for pod in waiting if pod.state == "missing"]
    named = [pod for pod in waiting if pod.state != "missing"]
    if missing and not named:
        return Verdict("pods-not-made", f"the cluster has not made {_count(missing)} yet, and says nothing of it", None,
                       evidence, "if that lasts, its controllers do not work: whoever keeps the cluster can see why",
                       60)  # fmt: skip
    unseen = [pod for pod in named if pod.state == "queued" and not pod.reason]
    if unseen:
        return Verdict("not-scheduled", f"the scheduler has not looked at {_count(unseen)} yet", None, evidence,
                       "if that lasts, the cluster's scheduler does not work: whoever keeps the cluster can see why",
                       60)  # fmt: skip
    said = ", ".join(dict.fromkeys(pod.reason or pod.state for pod in named))
    where = ", ".join(dict.fromkeys(pod.machine for pod in named if pod.machine))
    return Verdict("pods-waiting", f"{_count(named)} {'do' if len(named) > 1 else 'does'} not run yet: {said}"
                   + (f" on {where}" if where else ""), None, evidence,
                   f"if that lasts: kubectl describe pod {named[0].name}", 50)  # fmt: skip


ENDED: Final = ("Deleted", "DeadlineExceeded")


def ended(case: Case) -> Iterator[Verdict]:
    """Pods, or all of them with what makes them, that were ended from outside."""
    cluster = case.seen.cluster
    if cluster is None or not _is_open(case):
        return
    yield from _object_ended(case, cluster.said)
    first = case.cause.get("node_lost")
    pods = sorted(cluster.pods, key=lambda pod: (pod.node != first, pod.node))
    for at, pod in enumerate(pod for pod in pods if pod.reason in ENDS):
        if pod.reason == "Deleted" and pod.state in NOT_BEGUN:
            continue
        code, summary, fix = ENDS[pod.reason]
        told = {"it": _pod_name(pod), "message": pod.message or pod.reason, "machine": pod.machine or "NAME"}
        evidence = (f"{_pod_name(pod)}: {pod.reason}" + (f": {pod.message}" if pod.message else ""),
                    *_where(pod), *_machines(cluster, pod))  # fmt: skip
        yield Verdict(code, summary.format(**told), _rank_of(case, pod), evidence, fix.format(**told),
                      105 - at * 0.1 - (3 if pod.reason == "Deleted" else 0))  # fmt: skip


def _object_ended(case: Case, said: Sequence[ObjectSaid]) -> Iterator[Verdict]:
    for one in said:
        name = f"{one.kind} {one.name}"
        if one.kind not in MAKE_PODS:
            continue
        if one.reason == "Deleted":
            yield Verdict("job-deleted", f"somebody has deleted {name}, and with it all pods of the run", None,
                          (one.message,), f"see who does that here; windlass resume {case.status.id} goes on",
                          106)  # fmt: skip
        elif one.reason == "DeadlineExceeded":
            yield Verdict("deadline", f"the cluster has ended {name}: its activeDeadlineSeconds are over", None,
                          (f"{one.reason}: {one.message}",),
                          "Windlass sets none: see which policy of the cluster does, and use timeout: instead",
                          107)  # fmt: skip


def oom(case: Case) -> Iterator[Verdict]:
    """A rank that was killed, in a pod of which the cluster says that it took too much memory."""
    cluster = case.seen.cluster
    if cluster is None or case.first is None or case.signal != "SIGKILL" or "node_lost" in case.cause:
        return
    for pod in cluster.pods:
        if pod.node == case.first.node and (pod.reason == "OOMKilled" or case.facts.get("oom_kills_of_group")):
            code, summary, fix = ENDS["OOMKilled"]
            counted = "OOMKilled" if pod.reason == "OOMKilled" else "the kernel has killed a process of it for memory"
            evidence = (f"{_pod_name(pod)}: {counted}", f"{case.who} was ended by SIGKILL", *_asked(case, "memory"))
            yield Verdict(code, summary.format(it=_pod_name(pod)), case.first.rank, evidence, fix, 101)


def lost_peer(case: Case) -> Iterator[Verdict]:
    """Ranks that were left by a peer whose machine no longer answers."""
    cluster = case.seen.cluster
    if cluster is None or not case.only_victims:
        return
    for pod in cluster.pods:
        if pod.reason in ("NodeNotReady", "NodeLost", "DeletionByTaintManager", "DeletionByPodGC"):
            code, summary, fix = ENDS[pod.reason]
            told = {"it": _pod_name(pod), "machine": pod.machine or "NAME"}
            yield Verdict(code, summary.format(**told), None, (*_where(pod), *_machines(cluster, pod)),
                          fix.format(**told), 97)  # fmt: skip


def name_unknown(case: Case) -> Iterator[Verdict]:
    """Pods that do not find the first one by its name."""
    if case.seen.cluster is None or waiting_pods(case):
        return
    begun = {state.node for state in case.status.ranks if state.pid is not None}
    for node in case.seen.nodes:
        said = list(_NAME.finditer(node.words))
        if not said or node.node in begun:
            continue
        name, seconds = said[-1][1] or said[-1][3], said[-1][2] or said[-1][4]
        yield Verdict(
            "name-unknown", f"the pods do not find each other: the name {name} is not known after {seconds} s", None,
            (f"node {node.node}: {said[-1][0]}", "the first pod runs, so its name should be known"),
            "see whether the cluster's DNS works: kubectl -n kube-system get pods -l k8s-app=kube-dns; windlass check "
            "--on TARGET --network tries it", 103,
        )  # fmt: skip
        return


def unreachable(case: Case) -> Iterator[Verdict]:
    """A run that goes on, as far as is known, in a cluster that does not answer."""
    cluster = case.seen.cluster
    if cluster is None or not cluster.unreachable or case.status.phase.is_terminal:
        return
    since = f"; the last that is known of the run: it was {case.status.phase}"
    evidence = [cluster.unreachable]
    if (condition := case.status.condition) is not None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(condition["since"]))
        evidence.append(f"since {stamp}: {condition['message']}")
    yield Verdict("cluster-unreachable", f"the cluster cannot be asked: {cluster.unreachable}{since}", None,
                  tuple(evidence), "pods go on without it, and the run is followed again when it answers; see: "
                  "kubectl cluster-info", 109)  # fmt: skip


def not_followed(case: Case) -> Iterator[Verdict]:
    """A run that goes on, of which its supervisor cannot find out something, though the cluster answers here."""
    condition = case.status.condition
    if not condition or case.status.phase.is_terminal:
        return
    message, since = str(condition["message"]), f"the last that is known of the run: it was {case.status.phase}"
    if case.seen.cluster is not None and (found := meaning_of(message)):
        yield _meant(case, found, "the cluster", (message,), 106)
    yield Verdict("run-not-followed", f"the run's supervisor cannot follow it: {message}", None, (message, since),
                  "pods go on without it, and it tries again every few seconds; see: windlass check --on "
                  f"{case.status.target}", 30)  # fmt: skip


def lines_missing(case: Case) -> Iterator[Verdict]:
    """A log that was rotated away before it was read: what broke the run may have been in it."""
    found = [event.data for event in case.seen.events if event.data.get("missing")]
    if found:
        total = sum(sum(data["missing"].values()) for data in found)
        yield Verdict("log-incomplete", f"{total:,} lines are missing from the logs of the run",
                      None, tuple(str(data["message"]) for data in found[-4:]),
                      "have a supervisor run while the job prints much: any windlass command "
                      "starts one, and the kubelet's containerLogMaxSize sets how much it keeps", 1)  # fmt: skip


def could_not_start(case: Case) -> Iterator[Verdict]:
    """An attempt whose objects the cluster has refused."""
    summary = str(case.cause.get("summary", ""))
    if case.seen.cluster is None or not summary.startswith("could not start: "):
        return
    words = summary.removeprefix("could not start: ")
    if found := meaning_of(words):
        yield _meant(case, found, "the cluster", (words,), 106)
    elif "does not answer" in words:
        yield Verdict("cluster-unreachable", f"the cluster could not be asked for pods: {words}", None, (words,),
                      f"when it answers: windlass resume {case.status.id}", 106)  # fmt: skip
    elif "the cluster refused" in words:
        yield Verdict("admission-refused", f"the run could not be started: {words}", None, (words,),
                      "change the job as the cluster says", 105)  # fmt: skip


# -- what rules ask ---------------------------------------------------------------------------------------------------


def _is_open(case: Case) -> bool:
    """Whether the script itself does not say why the run ended, or goes on."""
    status = case.status
    if not status.phase.is_terminal:
        return True
    if status.phase is Phase.SUCCEEDED or (status.phase is Phase.STOPPED and _asked_to_stop(case)):
        return False
    return case.timed_out or status.phase is not Phase.FAILED or "node_lost" in case.cause or "rank" not in case.cause


def _asked_to_stop(case: Case) -> bool:
    """Whether a person has, since the run was last begun."""
    for event in reversed(case.seen.events):
        if event.kind in ("stop", "resume"):
            return event.kind == "stop"
    return False


def waiting_pods(case: Case) -> list[PodSeen]:
    """Pods of nodes of which no rank was ever started."""
    cluster = case.seen.cluster
    if cluster is None or not _is_open(case):
        return []
    begun = {state.node for state in case.status.ranks if state.pid is not None or state.exit_code == 0}
    return [
        pod
        for pod in cluster.pods
        if pod.node not in begun and (pod.state in NOT_BEGUN or pod.reason in START_ERRORS or _is_refused(pod))
    ]


def _is_refused(pod: PodSeen) -> bool:
    """Whether its machine has ended it before it ran."""
    return pod.state == "ended" and pod.exit_code is None and pod.reason not in ENDS and bool(pod.reason)


def _order(pattern: str) -> float:
    """What is told by a maker's catch-all is less than what names a cause."""
    return 3.0 if pattern.startswith(("FailedCreate", "(?:FailedMount", "unbound", "(?:CreateContainer")) else 0.0


def _meant(
    case: Case, found: tuple[Meaning, re.Match[str]], it: str, evidence: tuple[str, ...], score: float
) -> Verdict:
    """The verdict that words of the cluster mean, said by `it`."""
    meaning, match = found
    parts = {str(at): (part or "").strip().rstrip(".") for at, part in enumerate(match.groups(), 1)}
    parts |= {"it": it, "image": str(case.container.get("image", "the job's image"))}
    texts = []
    for text in (meaning.summary, meaning.fix):
        for name, part in parts.items():
            text = text.replace("{" + name + "}", part)
        texts.append(text.replace("{{", "{").replace("}}", "}"))
    return Verdict(meaning.code, texts[0], None, evidence, texts[1], score)


def _pod_name(pod: PodSeen) -> str:
    return f"pod {pod.name}" if pod.name else f"the pod of node {pod.node}"


def _count(pods: Sequence[PodSeen]) -> str:
    return _pod_name(pods[0]) if len(pods) == 1 else f"{len(pods)} pods"


def _where(pod: PodSeen) -> list[str]:
    code = f", and its container ended with exit code {pod.exit_code}" if pod.exit_code is not None else ""
    return [f"it was on machine {pod.machine}{code}"] if pod.machine else []


def _machines(cluster: ClusterSeen, pod: PodSeen) -> list[str]:
    return [
        f"machine {one.name} is not ready" for one in cluster.machines if one.name == pod.machine and not one.is_ready
    ]


def _rank_of(case: Case, pod: PodSeen) -> int | None:
    ranks = [state.rank for state in case.status.ranks if state.node == pod.node]
    return ranks[0] if len(ranks) == 1 and len(case.status.ranks) > 1 else None


def _asked(case: Case, what: str) -> list[str]:
    limit = case.container.get("resources", {}).get("limits", {}).get(what)
    return [f"each pod may have {what}: {limit}"] if limit else []
