"""Diagnosis rules of this machine: what a run waits for before its admission."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.diagnose.observations import Observations
from windlass.diagnose.verdict import Verdict
from windlass.runs.events import FOR_SLOTS, QueueChanged
from windlass.runs.phase import Phase


def waits(case: Observations) -> Iterator[Verdict]:
    """Reports that the run waits for slots of its target, or for other runs."""
    seen = case.last(QueueChanged)
    if seen is None or not seen.is_of_machine or case.status.phase is not Phase.QUEUED:
        return
    if seen.reason == FOR_SLOTS:
        fix = (
            "it starts when enough of them end; request less (nodes:, procs_per_node:, resources.gpus), use a higher "
            f"priority:, or raise slots: of target {seen.queue} in targets.yaml, which counts for runs started later"
        )
        yield Verdict("queue-slots", f"the run waits for slots: {seen.message}", None, (), fix, 108.5)
    else:
        fix = f"nothing to do; windlass rerun {case.status.id} starts its job without waiting"
        yield Verdict("queue-after", f"the run waits: {seen.message}", None, (), fix, 108.5)
