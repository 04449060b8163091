"""All rules, each a function from a case to the verdicts that it sees; every one looks, and the best verdict wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from windlass.diagnose.rules import (
    checkpoints,
    cluster,
    deaths,
    endings,
    exceptions,
    machines,
    ports,
    queues,
    recorded,
    restarts,
    together,
)
from windlass.diagnose.rules.case import Case
from windlass.diagnose.verdict import Verdict

RULES: Final[tuple[Callable[[Case], Iterator[Verdict]], ...]] = (
    endings.stopped,
    endings.timeout,
    endings.lost,
    endings.node_killed,
    endings.could_not_start,
    endings.log_incomplete,
    cluster.unreachable,
    cluster.not_followed,
    cluster.could_not_start,
    queues.waits,
    queues.evicted,
    machines.wait_for_machines,
    cluster.not_begun,
    cluster.ended,
    cluster.oom,
    cluster.lost_peer,
    cluster.name_unknown,
    restarts.same_step_twice,
    together.silent,
    recorded.collectives,
    together.mismatch,
    together.left_early,
    together.waited_in_vain,
    together.rendezvous,
    together.alone,
    exceptions.known,
    ports.taken,
    exceptions.nan_loss,
    exceptions.any_other,
    deaths.killed,
    deaths.segfault,
    deaths.aborted,
    deaths.signalled,
    deaths.exit_code,
    cluster.lines_missing,
    checkpoints.damaged,
)
