"""The Kubernetes engine's second door: runs on a cluster, kept by detached supervisors of this machine.

The pods train on whether or not a supervisor lives; what it decides, such as another attempt, waits until the next
command starts it again.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.engines import ahead
from windlass.engines.keeping.engine import KeptEngine
from windlass.engines.keeping.recording import Recording
from windlass.engines.keeping.supervisor import Supervisor
from windlass.engines.kubernetes import marks
from windlass.engines.kubernetes.ground import ClusterGround
from windlass.errors import EngineError
from windlass.plan.plan import Plan
from windlass.runs.store import RunWriter

if TYPE_CHECKING:
    from windlass.diagnose.observations import Observations

KEEPER = Path(__file__).with_name("__main__.py")


class KubernetesEngine(KeptEngine):
    """Runs in one namespace of a cluster."""

    def observe(self, run_id: str) -> Observations:
        """All that can be seen of a run. Raises NoSuchRun."""
        from windlass.engines.kubernetes.observe import observe

        return observe(self.store, self.status(run_id))

    def _keeper_command(self, run_id: str, lock: int) -> Sequence[str]:
        # What libraries warn of is no defect of ours, which is what a supervisor's words are taken for.
        return [sys.executable, "-I", "-W", "ignore", str(KEEPER), str(self.store.home), run_id, str(lock)]

    def _hand_over(self, run_id: str, lock: int, log: int) -> bool:
        return ahead.keep(self.store.home, run_id, lock, log)

    def _ground(self, plan: Plan, run_dir: Path) -> ClusterGround:
        return ClusterGround(plan, run_dir)

    def _settle(self, supervisor: Supervisor) -> bool:
        """Pods are looked at by their keeper alone: of two who read a log, each would write what it has read."""
        return supervisor.settle_unseen()

    def _until_when_observed(self, run_id: str) -> dict[str, Any]:
        """When the supervisor last wrote something of the pods: they went on, or ended, without it."""
        progress_at = self.store.status(run_id).progress.get("at", 0.0)
        noted_at = max(event.time for event in self.store.events(run_id) if event.kind != "adopted")
        return {"observed_until": max(progress_at, noted_at)}

    def _prepare(self, plan: Plan, writer: RunWriter) -> None:
        with contextlib.closing(ClusterGround(plan, self.store.run_dir(plan.run_id))) as ground:
            owner = ground.lay()
            if writer.status.attempts:
                marks.forget(ground.client, plan.run_id)
                return
            # A keeper takes a moment to start. What is refused now is refused again then, and goes into the record.
            with contextlib.suppress(EngineError):
                ground.begin(Recording(writer), owner)

    def _undo(self, plan: Plan) -> None:
        self._clean_up(plan)

    def _clean_up(self, plan: Plan) -> None:
        with contextlib.closing(ClusterGround(plan, self.store.run_dir(plan.run_id))) as ground:
            ground.remove()
