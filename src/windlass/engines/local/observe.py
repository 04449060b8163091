"""Collects observations of a run on this machine, for `why`: the record, the logs, the reports of node workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass.diagnose import observe as diagnose
from windlass.diagnose.nccl_dumps import read_watchdogs
from windlass.diagnose.observations import Observations
from windlass.engines.local.diagnose import waits
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.runs.store import Store


def observe(store: Store, status: Status) -> Observations:
    """Observations of a run on this machine. Reads files only."""
    run_dir = store.run_dir(status.id)
    facts: dict[str, Any] = {}
    began = status.attempts[-1].started_at if status.attempts else 0.0
    written = [path for path in run_dir.glob("nccl-trace-rank-*") if path.stat().st_mtime >= began]
    facts["flights"] = read_watchdogs(written)
    if status.phase is Phase.LOST and (booted_at := _booted_at()) is not None:
        facts["booted_at"] = booted_at
    facts["record_disk_full"] = not store.reserve.has_room()
    seen = Observations(status, store.plan(status.id))
    facts["environment"] = environment(seen.python, seen.code_dir)
    return replace(diagnose.observe(store, status, facts=facts), rules=(waits,))


def environment(python: str, code_dir: str) -> dict[str, str]:
    """What the packages of an interpreter are managed with: `kind` (`uv-project`, `poetry`, `uv`, `conda`, `venv` or
    `system`) and its `prefix`; empty where there is no interpreter.
    """
    if not python:
        return {}
    prefix = Path(python).parent.parent
    found = {"prefix": str(prefix)}
    if (prefix / "conda-meta").is_dir():
        return {**found, "kind": "conda"}
    try:
        config = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {**found, "kind": "system"}
    folder = Path(code_dir or prefix)
    for lock, kind in (("uv.lock", "uv-project"), ("poetry.lock", "poetry")):
        project = next((one for one in (folder, *folder.parents) if (one / lock).is_file()), None)
        if project is not None and (kind == "poetry" or prefix == project / ".venv"):
            return {**found, "kind": kind}
    # uv puts no pip into the environments that it makes.
    made_by_uv = any(line.partition("=")[0].strip() == "uv" for line in config.splitlines())
    return {**found, "kind": "uv" if made_by_uv else "venv"}


def _booted_at() -> float | None:
    """When this machine came up, in Unix seconds."""
    try:
        for line in Path("/proc/stat").read_text().splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    except (OSError, ValueError):
        pass
    return None
