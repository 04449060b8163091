"""Gathers what this machine knows of a run, for `why`: the record, the logs, and what its node workers have said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.diagnose.observations import NodeSeen, Observations
from windlass.engines import observing
from windlass.engines.watchdogs import read_watchdogs
from windlass.runs.record import Phase, Status
from windlass.runs.store import Store


def observe(store: Store, status: Status) -> Observations:
    """What is known of a run on this machine. Reads files only."""
    run_dir = store.run_dir(status.id)
    folder = run_dir / f"attempt-{len(status.attempts)}"
    ends = {node: _end(folder / f"node-{node}.events") for node in sorted({state.node for state in status.ranks})}
    nodes = [NodeSeen(node, _text(folder / f"node-{node}.out"), end.get("facts", {})) for node, end in ends.items()]
    ours = [one["rank"] for end in ends.values() for one in end.get("failures", ()) if one["ended_by_us"]]
    words = {one["rank"]: one["tail"] for end in ends.values() for one in end.get("failures", ())}
    facts: dict[str, Any] = {"keeper_words": _text(run_dir / "supervisor.log")}
    began = status.attempts[-1].started_at if status.attempts else 0.0
    written = [path for path in run_dir.glob("nccl-trace-rank-*") if path.stat().st_mtime >= began]
    facts["flights"] = read_watchdogs(written)
    if status.phase is Phase.LOST and (booted_at := _booted_at()) is not None:
        facts["booted_at"] = booted_at
    return observing.observe(store, status, nodes=nodes, facts=facts, ended_by_us=ours, words=words)


def _end(path: Path) -> dict[str, Any]:
    """The last word of a node; empty where it has none."""
    for event in _lines(path):
        if event.get("kind") == "end":
            return event
    return {}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)
    except (OSError, ValueError):
        return


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()[-4000:]
    except OSError:
        return ""


def _booted_at() -> float | None:
    """When this machine came up, in Unix seconds."""
    try:
        for line in Path("/proc/stat").read_text().splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    except (OSError, ValueError):
        pass
    return None
