"""Gathers what this machine knows of a run, for `why`: the record, the logs, and what its node workers have said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.diagnose.observations import Observations
from windlass.engines import observing
from windlass.engines.watchdogs import read_watchdogs
from windlass.runs.record import Phase, Status
from windlass.runs.store import Store


def observe(store: Store, status: Status) -> Observations:
    """What is known of a run on this machine. Reads files only."""
    run_dir = store.run_dir(status.id)
    facts: dict[str, Any] = {"keeper_words": observing.text_of(run_dir / "supervisor.log")}
    began = status.attempts[-1].started_at if status.attempts else 0.0
    written = [path for path in run_dir.glob("nccl-trace-rank-*") if path.stat().st_mtime >= began]
    facts["flights"] = read_watchdogs(written)
    if status.phase is Phase.LOST and (booted_at := _booted_at()) is not None:
        facts["booted_at"] = booted_at
    facts["record_disk_full"] = not store.reserve.has_room()
    return observing.observe(store, status, heard=observing.hear(store, status), facts=facts)


def _booted_at() -> float | None:
    """When this machine came up, in Unix seconds."""
    try:
        for line in Path("/proc/stat").read_text().splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    except (OSError, ValueError):
        pass
    return None
