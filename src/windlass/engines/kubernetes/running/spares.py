"""Spares: extra pods of a run's Jobs that belong to no attempt yet and replace lost pods.

The Job of an attempt creates one more pod for each spare. The nodes file has no entry for a spare, which waits for an
order like pods that are kept for reuse (`reuse.py`), until the run ends.
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
    """The spares of one run. For a run without spares, no method makes a request."""

    def __init__(self, client: Client, control: PodControl, plan: Plan, run_dir: Path) -> None:
        self._client = client
        self._control = control
        self._run_id = plan.run_id
        self.num = plan.num_spares
        self._run_dir = run_dir

    def live(self, status: Status) -> dict[PodId, Pod]:
        """Returns the unused spares that have not ended, oldest first. Raises EngineError."""
        if not self.num:
            return {}
        used, pods = self._placed(status.attempts), self._client.find("v1", "Pod", layout.of_attempts(self._run_id))
        return {
            one: pod
            for one, pod in by_id(pods["items"]).items()
            if one not in used and not has_ended(pod) and "deletionTimestamp" not in pod["metadata"]
        }

    def ready(self, status: Status) -> list[PodId]:
        """Returns the unused spares that run on reachable nodes. Raises EngineError."""
        return [one for one, pod in self.live(status).items() if is_alive(pod)]

    def taken(self, status: Status, assignment: PodAssignment) -> list[int]:
        """Returns the places in the newest attempt whose pods were spares before."""
        before = self._placed(status.attempts[:-1])
        return [place for place in assignment.reused if self.num and assignment.pods[place] not in before]

    def end(self, status: Status, before: int | None = None) -> None:
        """Ends all spares, or those created before attempt `before`; deletes spares that do not answer. Raises
        EngineError.
        """
        pods = [pod for one, pod in self.live(status).items() if before is None or one.made_for < before]
        ended = reuse.dismiss(self._control, pods)
        for name in {str(pod["metadata"]["name"]) for pod in pods} - ended:
            self._client.delete("v1", "Pod", name, grace=0)

    def _placed(self, attempts: Sequence[Attempt]) -> set[PodId]:
        """Returns the pods that were used in any of these attempts."""
        found: set[PodId] = set()
        for one in attempts if self.num else ():
            folder, num_nodes = self._run_dir / f"attempt-{one.number}", len(one.members)
            found.update(PodAssignment.of(folder, one.number, num_nodes).pods)
        return found
