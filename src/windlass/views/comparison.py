"""Compares runs: metrics, and the settings, code, data and environment in which they differ. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from windlass.plan.plan import Plan
from windlass.plan.steps import StageStep
from windlass.runs.metrics import Series
from windlass.runs.phase import Phase
from windlass.runs.record import Status
from windlass.spec.runline import split_run
from windlass.views.metrics import NODE, MetricSummary, chosen, summary_of

_ASSIGNED: Final = re.compile(r"(-{0,2}[A-Za-z+~][\w./@+-]*)=(.*)", re.DOTALL)
"""An argument with its value in the same word: `--lr=0.1`, or `optimizer.lr=0.1` as in Hydra."""
_NEGATIVE: Final = re.compile(r"-\.?\d")
_UNKNOWN: Final = object()


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Data of one of the runs to compare."""

    status: Status
    plan: Plan | None
    """The recorded plan; None for a run without a record on this machine."""
    series: Sequence[Series]
    code_digest: str | None
    """SHA-256 of the code archive that is kept with the run; None if no code was kept on this machine."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the compared runs."""

    id: str
    phase: Phase
    seconds: float
    """Seconds from the start of the run to its end, or to now."""
    metrics: Mapping[str, MetricSummary]
    """Summary of each metric of the run, by name."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A property in which the runs differ."""

    kind: str
    """Kind of property: `argument` of the script, `env` (variable of the job), `setting` (other field of the job),
    `code`, `data` (digest of a data set) or `environment`."""
    name: str
    """Name of the property: `--lr`, `restarts.max`, `commit`, or the name of a variable or data set."""
    values: tuple[Any, ...]
    """Value for each run, in the order of the runs; null if the run does not set it, or if it is unknown."""
    unknown: tuple[int, ...]
    """Indexes of the runs for which the value is unknown, from 0."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side."""

    runs: tuple[ComparedRun, ...]
    metrics: tuple[str, ...]
    """Names of all metrics; those that most runs have are first."""
    differences: tuple[Difference, ...]
    """Properties in which the runs differ; properties with equal values are left out."""


def compare_runs(facts: Sequence[RunFacts], now: float) -> Comparison:
    """Compares runs at `now` (Unix seconds)."""
    runs = tuple(_compared(one, now) for one in facts)
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    names.sort(key=lambda name: -sum(name in run.metrics for run in runs))
    return Comparison(runs, tuple(names), tuple(_differences([dict(_properties(one)) for one in facts])))


def _compared(facts: RunFacts, now: float) -> ComparedRun:
    status = facts.status
    ended = now if status.times.ended_at is None else status.times.ended_at
    shown = chosen(one for one in facts.series if one.source != NODE and len(one))
    seconds = round(ended - status.times.created_at, 3)
    return ComparedRun(status.id, status.phase, seconds, {one.name: summary_of(one) for one in shown})


def _differences(found: Sequence[Mapping[tuple[str, str], Any]]) -> Iterator[Difference]:
    """Yields the properties that differ. `found` has the properties of each run; a run whose plan is unknown has
    none.
    """
    for key in sorted({key for one in found for key in one}, key=lambda key: (KINDS.index(key[0]), key[1])):
        values = [one.get(key) if one else _UNKNOWN for one in found]
        unknown = tuple(at for at, value in enumerate(values) if value is _UNKNOWN)
        shown = tuple(None if value is _UNKNOWN else value for value in values)
        known = {json.dumps(value, sort_keys=True) for value in values if value is not _UNKNOWN}
        if len(known) > 1 or (known and unknown):
            yield Difference(*key, shown, unknown)


SHOWN_APART: Final = frozenset({"name", "run", "command", "env"})
"""Fields of a job that are not shown as settings: the name is part of the run's id, the others are shown as arguments
and variables."""
KINDS: Final = ("argument", "env", "setting", "code", "data", "environment")
"""Kinds of properties, in the order in which they are shown."""


def _properties(facts: RunFacts) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yields the properties of a run with their values; the value `_UNKNOWN` for an unknown one."""
    plan = facts.plan
    if plan is None:
        return
    job = plan.job
    for name, value in arguments_of(job).items():
        yield ("argument", name), value
    for name, value in job.get("env", {}).items():
        yield ("env", name), value
    for name, value in _flat({name: value for name, value in job.items() if name not in SHOWN_APART}):
        yield ("setting", name), value
    revision = plan.revision
    yield ("code", "commit"), _UNKNOWN if revision is None else revision.commit
    yield ("code", "changed files"), _UNKNOWN if revision is None else revision.changed
    yield ("code", "digest"), facts.code_digest or _UNKNOWN
    for step in plan.every(StageStep):
        yield ("data", step.name), _UNKNOWN
    for staged in facts.status.files.data:
        yield ("data", staged.name), staged.digest
    yield ("environment", "target"), plan.target
    yield ("environment", "interpreter"), plan.nodes.worker_python or _UNKNOWN


def arguments_of(job: Mapping[str, Any]) -> dict[str, str]:
    """Returns the script of a job and its arguments by name: `train.py --lr 0.1 --amp` is `{"script": "train.py",
    "--lr": "0.1", "--amp": "yes"}`.

    The value of an option is all words up to the next option. A repeated option has the values of all its uses.
    """
    words = [*(job.get("command") or split_run(job.get("run") or "", job.get("env")))]
    found: dict[str, list[str]] = {}
    name = "script"
    for word in words:
        if name == "script" and not found and word == "-m":
            continue
        if (assigned := _ASSIGNED.fullmatch(word)) is not None:
            found.setdefault(assigned[1], []).append(assigned[2])
            name = assigned[1] if word.startswith("-") else name
        elif word.startswith("-") and not _NEGATIVE.match(word):
            name = word
            found.setdefault(name, [])
        else:
            found.setdefault(name, []).append(word)
    return {name: " ".join(values) or "yes" for name, values in found.items()}


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the fields of nested mappings by path: `restarts.max`."""
    for name, value in fields.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
