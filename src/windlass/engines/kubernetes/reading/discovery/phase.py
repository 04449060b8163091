"""Derives the phase of a run from its objects in the lists of its namespace. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from windlass.engines.kubernetes.objects.pod_status import STARTING_REASONS, STUCK
from windlass.engines.kubernetes.objects.quantity import Json
from windlass.engines.kubernetes.objects.summary import summarised
from windlass.engines.kubernetes.reading.discovery.followups import SUSPENDED, More
from windlass.engines.values import Placement, RunState
from windlass.runs.phase import Phase
from windlass.runs.record import Status, Times

STOP: Final = "stop"
END: Final = "end"
"""Name of the marker of an ended run; `STOP` is that of a requested stop (`running/markers.py`)."""
WELL: Final = "well"
"""Value of the end marker of a run that has succeeded."""
ENDED_WELL: Final = ("Complete", "SuccessCriteriaMet")
ENDED_BADLY: Final = ("Failed", "FailureTarget")
"""Texts in the status column of a Job that has failed."""
STATES: Final = {
    "Running": "running",
    "NotReady": "running",
    "Completed": "done",
    "Succeeded": "done",
    "Pending": "queued",
    "SchedulingGated": "queued",
    "Terminating": "ending",
    **dict.fromkeys((*STARTING_REASONS, *STUCK), "pulling"),
}
"""State of a pod by the text in its status column."""
LIVE: Final = frozenset({"queued", "pulling", "running", "ending"})
MAKING_SECONDS: Final = 60.0
"""Maximum seconds between the creation of a run's owner ConfigMap and of its first Job."""
UNSAID: Final = "the run has failed, and its supervisor has not reported whether it restarts"
GONE: Final = "its pods and their owner objects were deleted"
ENDED_SOMEHOW: Final = "the run has ended, and its result is not recorded"


class PodRow(NamedTuple):
    """Row of a pod in the list of pods."""

    name: str
    is_ready: bool
    word: str
    """Text of the status column."""

    @property
    def state(self) -> str:
        """State of the pod: `queued`, `pulling`, `running`, `ending`, `done` or `failed`."""
        return "pulling" if self.word.startswith("Init:") else STATES.get(self.word, "failed")


@dataclass(slots=True)
class RunObjects:
    """Objects of one run, as listed."""

    name: str
    """Name of the job."""
    created_at: float
    """Creation time of the run, in Unix seconds."""
    labels: Mapping[str, str]
    """Labels of the job."""
    note: str | None
    """Note that users have written on the run; None if there is none."""
    num_spares: int
    """Number of spare pods, in addition to one pod per node."""
    markers: dict[str, str] = field(default_factory=dict)
    """Values of the run's markers, by name. The value of the end marker is `well`, `badly`, or empty if unknown."""
    summary: Json | None = None
    """Status summary that a supervisor in the cluster recorded last; None if there is none."""
    jobs: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Status of the Job and its number of pods, by attempt."""
    pods: dict[int, list[PodRow]] = field(default_factory=dict)
    """Pods, by the attempt for which they were created."""
    supervisors: list[PodRow] = field(default_factory=list)
    supervisor_job: str = ""
    """Status of the Job of the run's supervisor in the cluster; empty if there is none."""

    @property
    def is_bare(self) -> bool:
        """Whether the run has neither a Job nor a pod."""
        return not self.jobs and not self.pods

    @property
    def supervisor_absence(self) -> str:
        """State of a supervisor in the cluster that does not run, such as `Pending` or `no pod`; empty if it runs or
        none is needed.
        """
        has_open_job = self.supervisor_job not in ("", *ENDED_WELL, *ENDED_BADLY)
        if not has_open_job or any(pod.state == "running" for pod in self.supervisors):
            return ""
        return self.supervisors[-1].word if self.supervisors else "no pod"

    @property
    def supervisor_trouble(self) -> str:
        """Reason why no pod of the supervisor runs, such as `CrashLoopBackOff`; empty if a pod runs or is starting."""
        is_in_trouble = all(pod.word in STUCK or pod.state == "failed" for pod in self.supervisors)
        return self.supervisors[-1].word if self.supervisors and is_in_trouble else ""


@dataclass(frozen=True, slots=True)
class Seen:
    """State of a run, derived from its listed objects."""

    id: str
    namespace: str
    objects: RunObjects
    phase: Phase
    """Phase of the run: `training` once all pods run, since their logs are not read."""
    waits_for: str
    """Reason that the cluster reports for a run that does not proceed; empty if nothing blocks the run."""
    attempt: int
    """Newest attempt with pods; 0 before the first attempt."""
    pods_ready: int
    pods_total: int

    def state(self, target: str) -> RunState:
        """Returns the state of the run on `target`, without a local record."""
        of = self.objects
        status = Status(
            self.id,
            of.name,
            target,
            self.phase,
            Times(of.created_at, of.created_at),
            "",
            waits_for=self.waits_for or None,
        )
        if of.summary is not None:
            status = summarised(status, of.summary)
        if (absent := of.supervisor_absence) and self.phase is Phase.TRAINING and not status.phase.is_terminal:
            waits = f"its supervisor: {absent}; {self.pods_ready} of {self.pods_total} pods train unsupervised"
            is_behind = status.phase in (Phase.QUEUED, Phase.PROVISIONING, Phase.PULLING, Phase.STARTING)
            status = replace(status, phase=self.phase if is_behind else status.phase, waits_for=waits)
        elif of.supervisor_trouble and not status.phase.is_terminal:
            status = replace(status, waits_for=f"its supervisor: {of.supervisor_trouble}")
        status = replace(status, about=replace(status.about, labels=of.labels, note=of.note or ""))
        # The newest attempt may run in the pods of an older one, and then only the record names it.
        recorded = 0 if of.summary is None else int(of.summary.get("attempts") or 0)
        placement = Placement(self.namespace, max(self.attempt, recorded), self.pods_ready, self.pods_total)
        return RunState(status, time.time(), is_recorded=False, placement=placement)


class _Attempt(NamedTuple):
    """Newest attempt of a run, with its Job and pods."""

    number: int
    job: str
    """Status of the attempt's Job; empty without a Job, or if the Job does not determine the state of the run."""
    num_wanted: int
    """Number of pods that the Job is expected to have."""
    pods: Sequence[PodRow]
    reused: Sequence[PodRow] = ()
    """Pods that were created for earlier attempts and now run this attempt."""


def seen(run_id: str, namespace: str, objects: RunObjects, more: More, now: float) -> Seen:
    """Derives the state of a run from its objects; `now` is in Unix seconds by the cluster's clock."""
    maker = more.makers.get(run_id) if objects.is_bare else None
    attempt = _newest(objects, objects.jobs if maker is None else {maker[0]: maker[1:]})
    phase = _phase(attempt, objects.markers, is_fresh=now - objects.created_at < MAKING_SECONDS)
    coming = [more.coming[pod.name] for pod in attempt.pods if pod.state == "queued" and pod.name in more.coming]
    if phase is Phase.QUEUED and coming:
        phase, waits = Phase.PROVISIONING, f"node provisioning: {', '.join(dict.fromkeys(coming))}"
    else:
        waits = _waits(phase, attempt, objects, more)
    ready = sum(pod.is_ready for pod in (*attempt.pods, *attempt.reused))
    total = max(attempt.num_wanted, len(attempt.pods)) + len(attempt.reused)
    return Seen(run_id, namespace, objects, phase, waits, attempt.number, ready, total)


def _newest(objects: RunObjects, jobs: Mapping[int, tuple[str, int]]) -> _Attempt:
    number = max((*jobs, *objects.pods), default=0)
    job, num_wanted = jobs.get(number, ("", 0))
    pods = objects.pods.get(number, [])
    # If only lost pods were replaced, pods of earlier attempts run the newest one.
    earlier = (pod for attempt, made in objects.pods.items() if attempt != number for pod in made)
    reused = [pod for pod in earlier if pod.state == "running"]
    if not objects.num_spares:
        return _Attempt(number, job, num_wanted, pods, reused)
    # Rows do not show which pods are spares. Pods that do not run are counted as spares first, because a run does not
    # wait for spares while enough other pods run.
    num_wanted = max(1, num_wanted + len(reused) - objects.num_spares)
    found = sorted((*pods, *reused), key=lambda pod: pod.state == "running")
    found = found[max(0, len(found) - num_wanted) :]
    is_known = bool(objects.markers.get(END)) or any(pod.state in LIVE for pod in found)
    # The newest Job may contain only spares; its end does not end the run.
    return _Attempt(number, "" if is_known else job, num_wanted, found)


def _phase(attempt: _Attempt, markers: Mapping[str, str], *, is_fresh: bool) -> Phase:
    """Returns the phase of a run, derived from its newest Job, its pods and its markers.

    If no pod runs, the end marker determines the phase, since a Job with `ttl` may already be deleted.
    """
    job, states = attempt.job, {pod.state for pod in attempt.pods}
    is_live = not states.isdisjoint(LIVE)
    if STOP in markers:
        return Phase.STOPPING if is_live else Phase.STOPPED
    if job in ENDED_WELL:  # a completed Job counts even if the supervisor has declared the run lost
        return Phase.SUCCEEDED
    if markers.get(END) and not is_live:
        return Phase.SUCCEEDED if markers[END] == WELL else Phase.FAILED
    if job in ENDED_BADLY or (not job and "failed" in states and not is_live):
        return Phase.FAILED if END in markers else Phase.RESTARTING
    if not job and not is_live:
        if "done" in states:
            return Phase.SUCCEEDED
        return Phase.QUEUED if is_fresh and END not in markers else Phase.LOST
    if "queued" in states or len(attempt.pods) < max(1, attempt.num_wanted):
        return Phase.QUEUED
    return Phase.PULLING if "pulling" in states else Phase.TRAINING


def _waits(phase: Phase, attempt: _Attempt, objects: RunObjects, more: More) -> str:
    """Returns why a run does not proceed; empty if it does."""
    if phase in (Phase.QUEUED, Phase.PULLING):
        stuck = (pod.word for pod in attempt.pods if pod.word in STUCK)
        return next(stuck, SUSPENDED if attempt.job == SUSPENDED else "")
    if phase is Phase.RESTARTING:
        return UNSAID
    if phase is not Phase.LOST:
        return ""
    if END in objects.markers:
        return ENDED_SOMEHOW
    return f"{GONE}, or they are {'s or '.join(more.unlisted)}s, which may not be listed" if more.unlisted else GONE
