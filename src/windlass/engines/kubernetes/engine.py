"""The Kubernetes engine's second door: runs on a cluster, kept by detached supervisors of this machine.

The pods train on whether or not a supervisor lives; what it decides, such as another attempt, waits until the next
command starts it again.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.engines import ahead
from windlass.engines.keeping.engine import KeptEngine
from windlass.engines.keeping.ground import Ground
from windlass.engines.keeping.recording import Recording
from windlass.engines.keeping.supervisor import Supervisor
from windlass.engines.kubernetes import ending, marks
from windlass.engines.kubernetes.ground import UNFINISHED, ClusterGround
from windlass.engines.kubernetes.lease import held_elsewhere
from windlass.engines.kubernetes.observe import at_once
from windlass.errors import EngineError, UsageError, WindlassError
from windlass.plan.plan import Plan
from windlass.runs.record import Phase, Status
from windlass.runs.store import RunWriter

if TYPE_CHECKING:
    from windlass.diagnose.observations import Observations

KEEPER = Path(__file__).with_name("__main__.py")
CLEAN_AGAIN_SECONDS = 30.0
"""Between two tries to finish what an unreachable cluster has kept from being cleaned up."""


class KubernetesEngine(KeptEngine):
    """Runs in one namespace of a cluster."""

    def observe(self, run_id: str) -> Observations:
        """All that can be seen of a run. Raises NoSuchRun."""
        from windlass.engines.kubernetes.observe import observe

        return observe(self.store, self.status(run_id))

    def _keeper_command(self, run_id: str, lock: int) -> Sequence[str]:
        return [sys.executable, "-I", str(KEEPER), str(self.store.home), run_id, str(lock)]

    def _hand_over(self, run_id: str, lock: int, log: int) -> bool:
        return ahead.keep(self.store.home, run_id, lock, log)

    def _ground(self, plan: Plan, run_dir: Path) -> ClusterGround:
        return ClusterGround(plan, run_dir)

    def _held_elsewhere(self, ground: Ground) -> str:
        """By the run's Lease. Where the cluster does not answer, the supervisor will find out."""
        assert isinstance(ground, ClusterGround)
        with contextlib.suppress(EngineError):
            return held_elsewhere(ground.client, ground.plan.run_id, self.store.home, self._clock())
        return ""

    def left_running(self, run_id: str) -> list[str]:
        """See `Engine`: pods of an ended run that have not ended. Raises EngineError."""
        plan, run_dir = Plan.from_json(self.store.plan(run_id)), self.store.run_dir(run_id)

        def look() -> dict[str, list[str]]:
            try:
                with contextlib.closing(ClusterGround(plan, run_dir)) as ground:
                    return {"names": ending.live_pods(ground.client, run_id)}
            except UsageError as error:  # of a context that is no longer there
                raise EngineError(error.message, error.hint) from error

        answer = at_once({"pods": look})["pods"]  # a person waits
        if isinstance(answer, EngineError):
            raise answer
        names: list[str] = answer["names"]
        return names

    def _end_leftovers(self, run_id: str, *, now: bool) -> None:
        plan = Plan.from_json(self.store.plan(run_id))
        with contextlib.closing(ClusterGround(plan, self.store.run_dir(run_id))) as ground:
            ending.end_leftovers(ground.client, run_id, now=now)

    def _look_after(self, status: Status) -> Status:
        """Finish a clean-up that failed; of a lost run, see whether it is."""
        run_dir = self.store.run_dir(status.id)
        with contextlib.suppress(WindlassError, OSError):
            if time.time() - (run_dir / UNFINISHED).stat().st_mtime > CLEAN_AGAIN_SECONDS:
                self._finish(status.id, run_dir)
        if status.phase is not Phase.LOST:
            return status
        try:
            left = self.left_running(status.id)
        except WindlassError:
            return status
        if not left:
            return status
        message = f"pods of this run still run in the cluster ({', '.join(left[:4])}): windlass stop {status.id}"
        return replace(status, condition={"type": "PodsStillRunning", "message": message, "since": status.ended_at})

    def _finish(self, run_id: str, run_dir: Path) -> None:
        writer = self.store.writer(run_id)
        if writer is None:
            return
        try:
            plan = Plan.from_json(self.store.plan(run_id))
            with contextlib.closing(ClusterGround(plan, run_dir)) as ground:
                ground.finish(Recording(writer), is_patient=False)
        finally:
            writer.close()

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
        with contextlib.closing(ClusterGround(plan, self.store.run_dir(plan.run_id))) as ground:
            try:
                ground.remove()
            except EngineError as error:
                raise EngineError(error.message, ground.by_hand) from error

    def _clean_up(self, plan: Plan) -> None:
        with contextlib.closing(ClusterGround(plan, self.store.run_dir(plan.run_id))) as ground:
            ground.remove()
