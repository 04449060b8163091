"""Spares: pods of a run's Jobs that have a place in no attempt yet, and take that of a pod that is lost.

A Job of an attempt has as many pods more as the run has spares. They find no node of theirs in the nodes file, and wait
for an order as pods do that are kept alive (`reuse.py`), for as long as the run lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.control import PodControl
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.pod_assignment import PodAssignment
from windlass.engines.kubernetes.objects.pod_status import has_ended, is_alive
from windlass.engines.kubernetes.objects.pods import Pod, PodId, by_id
from windlass.engines.kubernetes.running import reuse
from windlass.plan.plan import Plan
from windlass.runs.record import Attempt, Status


class Spares:
    """The spares of one run. Without any, nothing here makes a request."""

    def __init__(self, client: Client, control: PodControl, plan: Plan, run_dir: Path) -> None:
        self._client = client
        self._control = control
        self._run_id = plan.run_id
        self.num = plan.num_spares
        """How many the run has in all."""
        self._run_dir = run_dir

    def left(self, status: Status) -> dict[PodId, Pod]:
        """The spares that have not ended, the oldest first. Raises EngineError."""
        if not self.num:
            return {}
        used, pods = self._placed(status.attempts), self._client.find("v1", "Pod", layout.of_attempts(self._run_id))
        return {
            one: pod
            for one, pod in by_id(pods["items"]).items()
            if one not in used and not has_ended(pod) and "deletionTimestamp" not in pod["metadata"]
        }

    def ready(self, status: Status) -> list[PodId]:
        """Those that run, on nodes that answer. Raises EngineError."""
        return [one for one, pod in self.left(status).items() if is_alive(pod)]

    def taken(self, status: Status, assignment: PodAssignment) -> list[int]:
        """The places of the newest attempt whose pods have been spares until now."""
        before = self._placed(status.attempts[:-1])
        return [place for place in assignment.reused if self.num and assignment.pods[place] not in before]

    def end(self, status: Status, before: int | None = None) -> None:
        """End all spares, or those of attempts before one: what does not answer is deleted. Raises EngineError."""
        pods = [pod for one, pod in self.left(status).items() if before is None or one.made_for < before]
        ended = reuse.dismiss(self._control, pods)
        for name in {str(pod["metadata"]["name"]) for pod in pods} - ended:
            self._client.delete("v1", "Pod", name, grace=0)

    def _placed(self, attempts: Sequence[Attempt]) -> set[PodId]:
        """The pods that had a place in any of these attempts."""
        found: set[PodId] = set()
        for one in attempts if self.num else ():
            folder, num_nodes = self._run_dir / f"attempt-{one.number}", len(one.members)
            found.update(PodAssignment.of(folder, one.number, num_nodes).pods)
        return found
