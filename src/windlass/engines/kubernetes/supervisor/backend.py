"""Backend of a supervisor in the cluster: writes the record to the cluster before it acts on the run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from windlass.compat import override
from windlass.engines.kubernetes.access.control import ConnectionControl
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.access.unavailable import is_passing
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pod_status import has_ended, sidecars
from windlass.engines.kubernetes.objects.quantity import seconds_of
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.running import expiry, reuse
from windlass.engines.kubernetes.running.attempt import PodAttempt
from windlass.engines.kubernetes.running.backend import KubernetesBackend
from windlass.engines.kubernetes.running.collection import PushFetch
from windlass.engines.kubernetes.supervisor.metrics import MetricsMirror
from windlass.engines.kubernetes.supervisor.mirror import Mirror
from windlass.errors import EngineError
from windlass.plan.plan import Plan
from windlass.plan.steps import AttemptStep
from windlass.runs.clock import Clock
from windlass.runs.events import PodsReused
from windlass.supervise.backend import HeldElsewhere, TargetUnavailable
from windlass.supervise.recorder import Recorder

FLUSH_SECONDS: Final = 20.0
"""Time limit in seconds for writing the record before an attempt starts; the target counts as unavailable after it."""
LEAVE_SECONDS: Final = 5.0
"""Seconds that pods of earlier attempts may take to end before they are deleted together with their logs."""
LEAVE_PAUSE_SECONDS: Final = 0.2
END_SECONDS: Final = 600.0
"""Time limit in seconds for writing the record at the end of a run. A supervisor that exceeds it is restarted, and
finds the end in its local files."""


class InClusterBackend(KubernetesBackend):
    """Backend of one run, for its supervisor in the cluster."""

    def __init__(
        self, plan: Plan, run_dir: Path, mirror: Mirror, metrics: MetricsMirror, control: ConnectionControl
    ) -> None:
        super().__init__(plan, run_dir, control, PushFetch(control))
        self._mirror = mirror
        self._metrics = metrics

    @property
    @override
    def is_lost_to_another(self) -> bool:
        return super().is_lost_to_another or self._mirror.is_lost

    @override
    def requested_at(self, number: int) -> float | None:
        """Returns when the pods of an attempt were requested: the creation time of their owner object. For the
        first attempt, the submitting machine creates that object.
        """
        made = self.plan.only(AttemptStep).manifest
        try:
            found = self.client.get(made["apiVersion"], made["kind"], layout.attempt_name(self.plan.run_id, number))
        except EngineError:
            return None
        return seconds_of(found["metadata"].get("creationTimestamp"), time.time())

    @override
    def owner_config_map(self) -> Mapping[str, Any]:
        """Returns the owner ConfigMap. A missing one is not created, since a removed run must not start again."""
        return self.client.get("v1", "ConfigMap", self.plan.run_id)

    @override
    def start(self, record: Recorder, folder: Path, number: int, members: Sequence[int], clock: Clock) -> PodAttempt:
        """Starts an attempt once the record is written: a later supervisor must find every attempt with pods in the
        record. Its nodes report the points of earlier attempts to no later supervisor, so these are written too.
        """
        self.require_written(FLUSH_SECONDS)
        self._metrics.flush()
        return super().start(record, folder, number, members, clock)

    def _kept_attempts(self, record: Recorder, number: int) -> set[int]:
        self.spares.end(record.status, number)
        made = self.plan.only(AttemptStep).manifest
        if WORKLOADS[self.via].remakes(made):
            return set()
        give_up = time.monotonic() + LEAVE_SECONDS
        released: set[int] = set()
        gone: set[str] = set()
        while True:
            found = self.client.find("v1", "Pod", layout.of_attempts(self.plan.run_id))["items"]
            pods = {pod["metadata"]["name"]: pod for pod in found if layout.attempt_of(pod) != number}
            live = {layout.attempt_of(pod) for name, pod in pods.items() if name not in gone and not has_ended(pod)}
            # no rank of these attempts runs: a live pod only waits for another attempt
            if fresh := live - released:
                for one in fresh:
                    gone |= reuse.release(self.client, self.control, self.plan.run_id, one)
                released |= fresh
            elif not live or time.monotonic() > give_up:
                # a pod that sidecars keep running occupies its GPUs, so it must be deleted
                held = {layout.attempt_of(pod) for pod in pods.values() if sidecars(pod)}
                return {layout.attempt_of(pod) for pod in pods.values()} - live - held
            else:
                time.sleep(LEAVE_PAUSE_SECONDS)

    @override
    def prepare_end(self, record: Recorder) -> None:
        """Writes the metrics to the cluster, so that they are complete once the end of the run is recorded there."""
        super().prepare_end(record)
        self._metrics.flush()

    @override
    def clean_up(self, record: Recorder, *, is_patient: bool = True) -> None:
        """Cleans up once the record is written, and lets the run expire. Raises TargetUnavailable, HeldElsewhere."""
        self.require_written(END_SECONDS)
        super().clean_up(record, is_patient=is_patient)
        self.require_written(END_SECONDS)
        try:
            expiry.begin(self.client, self.plan.run_id)
        except (Refused, Unreachable) as error:
            if is_passing(error):
                raise TargetUnavailable("ClusterUnreachable", f"the run cannot be ended: {error.message}") from error

    def _of_submission(self) -> list[Mapping[str, Any]]:
        return []  # the user's machine creates these objects; the supervisor needs no permission for that

    @override
    def keep_decision(self, record: Recorder, folder: Path, decided: PodsReused) -> None:
        """Records which pods an attempt reuses, and waits until the record is written. Raises TargetUnavailable,
        HeldElsewhere.
        """
        record.note(decided)
        self.require_written(FLUSH_SECONDS)
        super().keep_decision(record, folder, decided)

    def require_written(self, seconds: float) -> None:
        """Waits until all events of the run are written to the cluster. Raises TargetUnavailable, HeldElsewhere."""
        if self._mirror.flush(seconds):
            return
        if self._mirror.is_lost:
            raise HeldElsewhere("another supervisor has written the record of the run")
        raise TargetUnavailable("ClusterUnreachable", "the record of the run cannot be written to the cluster")
