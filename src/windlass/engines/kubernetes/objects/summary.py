"""Summary of a run's status for lists of runs, stored as an annotation of the run's record in the cluster.

Other users of the namespace can change the annotation, so its fields are checked when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from windlass.engines.kubernetes.objects import layout
from windlass.runs.events import ConditionChanged, Progress, RootCause
from windlass.runs.phase import Phase
from windlass.runs.record import CLUSTER, Status
from windlass.runs.store import NOTE_CHARS
from windlass.runs.warnings import RunWarning
from windlass.worker.values import read_as

Json = Mapping[str, Any]

REQUIRED: Final[Mapping[str, Any]] = {"phase": Phase, "created_at": float, "phase_since": float}
OPTIONAL: Final[Mapping[str, Any]] = {
    "exit_code": int,
    "ended_at": float,
    "restarts_left": int,
    "waits_for": str,
    "condition": ConditionChanged,
    "user": str,
    "stop_requested": bool,
    "last_seq": int,
}
"""Types of the optional fields of a summary; fields with empty values are omitted."""
DERIVED: Final[Mapping[str, Any]] = {
    "attempts": int,
    "progress": Mapping[str, Any],
    "cause": str,
    "warnings": tuple[RunWarning, ...],
}
TIMES: Final = ("created_at", "phase_since", "ended_at")
LATEST: Final = 1e11
"""Latest valid time, in Unix seconds: larger numbers cannot be converted to dates."""
CAUSE_CHARS: Final = 300
MAX_WARNINGS: Final = 16


def summary_of(status: Status, progress: Json) -> dict[str, Any]:
    """Returns the summary of a status, including the newest progress."""
    times, supervision, cause = status.times, status.supervision, status.cause
    found = {
        "phase": status.phase,
        "created_at": times.created_at,
        "phase_since": times.phase_since,
        "exit_code": status.exit_code,
        "ended_at": times.ended_at,
        "restarts_left": status.restarts_left,
        "waits_for": status.waits_for,
        "condition": supervision.condition.to_json() if supervision.condition is not None else None,
        "user": status.about.user,
        "stop_requested": supervision.stop_requested,
        "last_seq": status.last_seq,
        "attempts": len(status.attempts),
        "progress": dict(progress),
        "cause": cause.summary[:CAUSE_CHARS] if cause is not None else "",
        "warnings": [
            one.replace(message=one.message[:CAUSE_CHARS], ranks=one.ranks[:MAX_WARNINGS]).to_json()
            for one in status.warnings[:MAX_WARNINGS]
        ],
    }
    return {name: value for name, value in found.items() if name in REQUIRED or value not in (None, "", {}, [], False)}


def summary_in(metadata: Json) -> Json | None:
    """Returns the summary in the metadata of a record's head ConfigMap, or None if the annotation is damaged."""
    try:
        found = json.loads((metadata.get("annotations") or {}).get(layout.STATUS_ANNOTATION) or "{}")
        for name, hint in {**REQUIRED, **OPTIONAL, **DERIVED}.items():
            if name in REQUIRED or name in found:
                read_as(hint, found[name])
        return found if all(0 <= found.get(name, 0) < LATEST for name in TIMES) else None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def summarised(status: Status, summary: Json) -> Status:
    """Returns a status that is updated with the summary written by the run's supervisor."""
    condition = ConditionChanged.from_json(summary["condition"]) if "condition" in summary else None
    stop_requested = summary.get("stop_requested", status.supervision.stop_requested)
    times = {name: summary[name] for name in TIMES if name in summary}
    same = {name: summary[name] for name in ("exit_code", "restarts_left", "last_seq") if name in summary}
    return replace(
        status,
        phase=Phase(summary["phase"]),
        times=replace(status.times, **times),
        progress=Progress.from_json(summary.get("progress", {})),
        cause=RootCause(summary["cause"]) if summary.get("cause") else None,
        waits_for=summary.get("waits_for"),
        supervision=replace(status.supervision, supervisor=CLUSTER, stop_requested=stop_requested, condition=condition),
        about=replace(status.about, user=summary.get("user", status.about.user)),
        warnings=tuple(map(RunWarning.from_json, summary.get("warnings", ()))),
        **same,
    )


def note_in(metadata: Mapping[str, Any]) -> str | None:
    """Returns the user's note from the metadata of an owner ConfigMap: empty if it was removed, None if none was ever
    written.
    """
    found = (metadata.get("annotations") or {}).get(layout.NOTE_ANNOTATION)
    return None if found is None else str(found)[:NOTE_CHARS]
