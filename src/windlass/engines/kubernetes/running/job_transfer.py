"""Transfers files of a run with a Job, which runs without the supervisor and replaces lost pods."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from windlass.compat import override
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.access.files import parsed
from windlass.engines.kubernetes.access.unavailable import refuse
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.find_pod_specs import claims_of
from windlass.engines.kubernetes.objects.labels import COMPONENT, HELPER, TRANSFER
from windlass.engines.kubernetes.objects.object_reports import NOT_ORDINARY, end_of, is_problem, key, warning
from windlass.engines.kubernetes.objects.observations import ObjectReport
from windlass.engines.kubernetes.objects.package import REFUSED
from windlass.engines.kubernetes.objects.pod_status import MAX_WORDS, PodStatus, container_state, has_ended, pod_status
from windlass.engines.kubernetes.objects.quantity import Json, condition
from windlass.engines.kubernetes.reading import admission
from windlass.errors import EngineError
from windlass.runs.clock import Clock
from windlass.runs.events import Warned
from windlass.supervise.transfers import Line, Notes, Transfer, TransferRefused

PROGRESS: Final = frozenset({"name", "done", "of", "moved"})
WAIT: Final = frozenset({"name", "waits"})
"""Fields of a log line that reports what a transfer waits for."""
LOOK_SECONDS: Final = 1.0
"""Seconds between two reads of the Job."""


class JobTransfer(Transfer):
    """Transfer of files by a Job. A supervisor that takes over uses the same Job."""

    def __init__(self, client: Client, manifest: Json, create: Callable[[Json], Json], *, warns: bool = True) -> None:
        """`create` creates the Job, or returns the existing one. With `warns`, problems of the Job's pods are
        recorded.
        """
        self._client = client
        self._manifest = manifest
        self._name: str = manifest["metadata"]["name"]
        self._claims = claims_of([manifest])
        self._create = create
        self._warns = warns
        self._uid = ""
        self._look_at = 0.0
        """Earliest time of the next read of the Job, in monotonic seconds."""
        self._warned: set[str] = set()

    @override
    def reports(self, record: Notes, clock: Clock) -> Iterator[Line]:
        """Yields new progress and results. Reads the Job at most once in LOOK_SECONDS."""
        if clock.monotonic() < self._look_at:
            return
        self._look_at = clock.monotonic() + LOOK_SECONDS
        try:
            yield from self._look(record)
        except (Refused, Unreachable) as error:
            refuse(error)

    @override
    def end(self) -> None:
        """Deletes the Job. Raises Refused, Unreachable."""
        self._client.delete("batch/v1", "Job", self._name)

    # -- reading the Job ----------------------------------------------------------------------------------------------

    def _look(self, record: Notes) -> Iterator[Line]:
        if not self._uid:
            self._uid = self._create(self._manifest)["metadata"]["uid"]
        pods = self._pods()
        for pod in pods:
            if (results := _results(pod)) is not None:
                if len(pod["spec"]["containers"]) > 1:  # Injected containers would keep the pod running.
                    self.end()
                yield from results
                if left_out := _outcome(pod).get("left_out"):
                    message = f"the digests of {left_out} more data sets are not recorded"
                    self._note(record, f"{message}: Job {self._name} has more results than the kubelet keeps")
                self.is_done = True
                return
        live = [pod for pod in pods if not has_ended(pod)]
        for pod in pods if self._warns else ():
            self._warn_of_pod(record, pod_status(0, pod), _error_of(pod))
        if live:
            yield from self._progress(live[-1])
        else:
            self._look_at_job(record, pods)

    def _pods(self) -> list[dict[str, Any]]:
        """Returns the Job's pods, oldest first."""
        its = self._manifest["metadata"]["labels"]
        of = layout.RUN_LABEL if layout.RUN_LABEL in its else HELPER
        found = self._client.find("v1", "Pod", f"{of}={its[of]},{COMPONENT}={TRANSFER}")["items"]
        its = [pod for pod in found if self._uid in {one["uid"] for one in pod["metadata"].get("ownerReferences", ())}]
        return sorted(its, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def _progress(self, pod: Json) -> Iterator[Line]:
        if container_state(pod)[0] != "running":
            return
        with contextlib.suppress(Refused):  # the container may have ended meanwhile
            for line in self._client.logs(pod["metadata"]["name"], container=TRANSFER, follow=False, tail=1):
                reported = parsed(line.partition(b" ")[2])
                if reported is not None and (reported.keys() >= PROGRESS or reported.keys() >= WAIT):
                    yield reported

    def _look_at_job(self, record: Notes, pods: list[dict[str, Any]]) -> None:
        """Handles a Job without live pods: records why, or creates the Job again. Raises EngineError if the Job has
        failed.
        """
        job = self._client.get_if_exists("batch/v1", "Job", self._name)
        if job is None:
            self._uid = ""  # the Job was deleted: the next read creates it again
            return
        if end_of(job) == "Failed":
            raise EngineError(*self._given_up(job, pods))
        # The pod with the results was removed: a new Job finds all files transferred, and reports the results again.
        if end_of(job) and not pods:
            self.end()
            self._uid = ""
        elif not self._warns:
            return
        elif admission.is_suspended(job):
            self._note(record, f"Job {self._name} is suspended: a queue of the cluster has not admitted it")
        elif not pods:
            for event in self._events(self._name):  # for example, a quota or a webhook has refused the pod
                self._warn(record, event)

    def _given_up(self, job: Json, pods: list[dict[str, Any]]) -> tuple[str, str]:
        seen = [pod_status(0, pod) for pod in pods]
        last = seen[-1] if seen else PodStatus(0, reason=str(condition(job, "Failed").get("reason", "")))
        known = (_error_of(pods[-1]) if pods else "") or last.message
        words = ": ".join(part for part in (last.reason, known) if part) or f"exit code {last.exit_code}"
        times = f"its pods have failed {len(seen)} times, the last with " if len(seen) > 1 else ""
        return f"Job {self._name} gives up: {times}{words}", "windlass why RUN shows the state of its pods"

    # -- warnings and results -----------------------------------------------------------------------------------------

    def _warn_of_pod(self, record: Notes, seen: PodStatus, error: str) -> None:
        if is_problem(seen):
            self._warn(record, seen)
        elif seen.state == "ended":
            why = error or f"exit code {seen.exit_code}"
            self._note(record, f"pod {seen.name} has ended with {why}; another pod continues")
        elif seen.state != "running":
            for name in (seen.name, *self._claims):
                for event in self._events(name):
                    self._warn(record, replace(seen, reason=event.reason, message=event.message))

    def _events(self, name: str) -> Iterator[ObjectReport]:
        which = f"involvedObject.name={name},type=Warning,{NOT_ORDINARY}"
        for event in self._client.find("v1", "Event", fieldSelector=which)["items"]:
            about, words = event.get("involvedObject", {}), str(event.get("message") or "").strip()
            yield ObjectReport(str(about.get("kind", "")), name, str(event.get("reason", "")), words[:MAX_WORDS])

    def _warn(self, record: Notes, seen: PodStatus | ObjectReport) -> None:
        reported = warning(seen)
        # During attempts, these details would count as details of the attempt's pods.
        more = {} if record.status.attempts else {name: reported[name] for name in reported if name != "message"}
        self._note(record, reported["message"], key(seen), **more)

    def _note(self, record: Notes, message: str, what: str = "", **more: Any) -> None:
        if (what or message) not in self._warned:
            self._warned.add(what or message)
            record.note(Warned.from_json({"message": message, **more}))


def _outcome(pod: Json) -> Line:
    """Returns what a pod's program reported at its end; empty if it reported nothing."""
    return parsed(str(container_state(pod)[1].get("message") or "").encode()) or {}


def _error_of(pod: Json) -> str:
    """Returns the error that a pod's program reported at its end; empty if it reported none."""
    return str(_outcome(pod).get("error", ""))


def _results(pod: Json) -> list[Line] | None:
    """Returns the results of a pod that has succeeded; None for other pods. Raises TransferRefused if retries would
    fail too, EngineError for a missing result.
    """
    where, ended = container_state(pod)
    if where != "terminated":
        return None
    reported = _outcome(pod)
    if ended.get("exitCode") == REFUSED and "error" in reported:
        raise TransferRefused(str(reported["error"]), str(reported.get("hint", "")))
    if ended.get("exitCode") != 0:
        return None
    if not isinstance(reported.get("results"), list):
        raise EngineError(f"pod {pod['metadata']['name']} has ended without a result", "try it again")
    return list(reported["results"])
