"""Generates JSON Schemas (draft 2020-12) for all `-o json` output, from type hints and docstrings of the views.

Every field of a view is always present. New fields may be added; existing fields keep their meaning. Values from the
record (progress, causes, checkpoints) contain only known fields, and fields may be added.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from windlass.clusters import down, draft, export, plan, up
from windlass.clusters import status as clusters
from windlass.clusters.audit import AuditReport
from windlass.clusters.policies.named import ClusterPolicies
from windlass.plan.plan import Plan
from windlass.plan.steps import KINDS, ManifestStep, NodeStep, Step, TrainingJobStep
from windlass.spec.docstrings import field_docstrings
from windlass.views import (
    artifacts,
    checkpoints,
    comparison,
    cost,
    data,
    disk,
    error,
    job_files,
    lines,
    metrics,
    pages,
    ports,
    prices,
    run,
    services,
    targets,
    verdict,
    warm,
)
from windlass.views import cluster_runs as runs
from windlass.views.projections import PROJECTIONS, projection
from windlass.worker.values import REQUIRED, StrictValue, Value

PRINTED: Final[Mapping[str, Any]] = {
    "plan": Plan,
    "run": run.RunId | run.Run,
    "status": run.Run | runs.RunOnClusterWithPods,
    "stop": run.Run | runs.RunOnClusterWithPods,
    "ps": list[run.RunSummary] | list[runs.RunOnCluster] | runs.RunOnCluster | runs.Removed | runs.ClusterAnswer,
    "events": lines.EventView,
    "logs": lines.LogLineView,
    "why": verdict.Why,
    "cost": cost.CostReport,
    "metrics": metrics.RunMetrics,
    "compare": comparison.Comparison,
    "resume": run.RunId | run.Run,
    "rerun": run.RunId | run.Run,
    "checkpoints": checkpoints.CheckpointList,
    "checkpoints-verify": checkpoints.VerifiedCheckpoints,
    "checkpoints-prune": checkpoints.PrunedCheckpoints,
    "checkpoints-export": checkpoints.ExportedCheckpoint,
    "artifacts": artifacts.ArtifactList,
    "cp": artifacts.CopiedFiles,
    "port-forward": ports.ForwardedPort,
    "deploy": services.ServiceView | services.PlannedDeployment,
    "invoke": services.Invocation,
    "tensorboard": services.ServiceView,
    "notebook": services.ServiceView,
    "services": services.ServiceList,
    "close": list[services.ClosedService],
    "undeploy": list[services.ClosedService],
    "rm": disk.RemovedRuns,
    "note": run.RunNote,
    "prune": disk.PrunedRuns,
    "du": disk.DiskUse,
    "init": job_files.WrittenJob,
    "import": job_files.ImportedJob,
    "check": targets.CheckedJob | targets.CheckedCluster,
    "targets": list[targets.TargetView],
    "target-setup": targets.TargetSetup,
    "warm-ls": list[warm.WarmProcess],
    "warm-stop": warm.StoppedWarm,
    "data-copy": data.DataCopied | data.DataCopyPreview,
    "data-verify": data.DataVerified,
    "data-ls": data.DataList | data.DataCacheList,
    "data-stage": data.StagedData,
    "data-rm": data.CachedData,
    "prices-list": prices.PriceList,
    "prices-update": prices.PricesUpdated,
    "cluster-init": draft.WrittenCluster,
    "cluster-plan": plan.ClusterPlan,
    "cluster-up": up.ClusterMade,
    "cluster-down": down.ClusterRemoved,
    "cluster-ls": list[clusters.ClusterSummary],
    "cluster-status": clusters.ClusterStatus,
    "cluster-audit": AuditReport,
    "cluster-export": export.ExportedCluster,
    "cluster-policy": ClusterPolicies,
    "doctor": targets.DoctorReport,
    "error": error.ErrorReport,
    "page-runs": pages.RunsPage,
    "page-run": pages.RunPage,
    "page-run-why": verdict.Why,
    "page-run-time": pages.RunTime,
    "page-run-events": pages.RunEvents,
    "page-run-plan": pages.RunPlan,
    "page-run-environment": pages.RunEnvironment,
    "page-run-checkpoints": pages.RunCheckpoints,
    "page-run-artifacts": pages.RunArtifacts,
    "page-run-logs": pages.LogsPage,
    "page-run-logs-lines": pages.LogWindow,
    "page-run-logs-search": pages.LogMatches,
    "page-run-metrics": pages.MetricsData,
    "page-run-heatmap": pages.HeatMap,
    "page-compare": pages.ComparePage,
    "page-compare-metrics": pages.CompareData,
    "page-targets": pages.TargetsPage,
    "page-disk": pages.DiskPage,
    "page-disk-use": pages.DiskPart,
    "page-error": pages.RefusalPage,
}
"""Views that each command prints. For `run` and `resume`, the first view is that of --detach. For `status`, `stop` and
`ps`, the second view is that of --on. `ps --watch` prints one of the further views per line; `events` and `logs` print
one view per line. For `check`, the second view is that of a cluster. Names that begin with `page-` are those of
the pages of `windlass ui`."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepView:
    """A step of a run, with the request that it will send."""

    kind: str
    summary: str
    """One-line description of the step."""
    request: Mapping[str, Any]


_DOCSTRINGS: Final[dict[type, Mapping[str, str]]] = {}
"""Field docstrings of generated dataclasses, each of which replaces another class in a schema."""
_OPEN: Final[set[type]] = {lines.EventView}
"""Dataclasses of values from the record, whose JSON objects may have additional fields."""


def _of_value(kind: Any, _source: Any, handler: Any) -> Any:
    """Returns pydantic's schema of a `Value`: the schema of an equivalent dataclass, or of `StepView` for a step."""
    if kind is Step:
        return handler(StepView)
    fields: list[Any] = [
        (name, hint)
        if (default := kind.fields()[name]) is REQUIRED
        else (name, hint, dataclasses.field(default=default if default.__hash__ else None))
        for name, hint in get_type_hints(kind).items()
        if name in kind.fields() and not (issubclass(kind, Step) and name == "summary")
    ]
    made = _stand_in(kind, fields, docstrings(kind))
    if not issubclass(kind, StrictValue):
        _OPEN.add(made)
    return handler(made)


def _of_projection(kind: type, _source: Any, handler: Any) -> Any:
    """Returns pydantic's schema of a class with a projection: the schema of a dataclass with the printed attributes."""
    found = {one.name: _attribute(kind, one.path) for one in projection(kind)}
    fields = [(name, hint) for name, (hint, _) in found.items()]
    return handler(_stand_in(kind, fields, {name: text for name, (_, text) in found.items() if text}))


def _stand_in(kind: type, fields: list[Any], described: Mapping[str, str]) -> type:
    made = dataclasses.make_dataclass(kind.__name__, fields, kw_only=True)
    made.__doc__ = kind.__doc__
    _DOCSTRINGS[made] = described
    return made


def _attribute(kind: type, path: str) -> tuple[Any, str]:
    """Returns the type and the docstring of an attribute."""
    name, _, rest = path.partition(".")
    base = next(one for one in kind.__mro__ if name in vars(one).get("__annotations__", {}) or name in vars(one))
    member = vars(base).get(name)
    if isinstance(member, property):
        assert member.fget is not None
        hint, text = get_type_hints(member.fget)["return"], " ".join((member.__doc__ or "").split())
    else:
        alone = {"__annotations__": {name: base.__annotations__[name]}, "__module__": base.__module__}
        # Resolves this annotation alone: types of other fields may be imported only for type checking.
        hint = get_type_hints(type("Alone", (), alone))[name]
        text = docstrings(kind).get(name, "")
    return _attribute(hint, rest) if rest else (hint, text)


Value.__get_pydantic_core_schema__ = classmethod(_of_value)  # type: ignore[attr-defined]
for _name in PROJECTIONS:
    _module, _, _class = _name.rpartition(".")
    getattr(importlib.import_module(_module), _class).__get_pydantic_core_schema__ = classmethod(_of_projection)


def schema_of(name: str) -> dict[str, Any]:
    """Returns the schema of the output of the command `name`."""
    schema = TypeAdapter(PRINTED[name]).json_schema(mode="serialization", schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, **schema}


class _Generator(GenerateJsonSchema):
    """Schema generator that adds descriptions from field docstrings and marks the fields that are always present."""

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        made = super().dataclass_schema(schema)
        kind, found = schema["cls"], self.resolve_ref_schema(made)
        for field in dataclasses.fields(kind):
            if not field.metadata.get("json", True):
                del found["properties"][field.name]
        for name, text in (_DOCSTRINGS[kind] if kind in _DOCSTRINGS else docstrings(kind)).items():
            if name in found["properties"]:
                found["properties"][name]["description"] = text
        if kind not in _OPEN or kind is lines.EventView:
            found["required"] = list(found["properties"])
        found["properties"] = {name.rstrip("_"): one for name, one in found["properties"].items()}
        found["additionalProperties"] = kind in _OPEN
        if kind is StepView:
            found["allOf"] = [
                {
                    "if": {"properties": {"kind": {"const": name}}},
                    "then": {"properties": {"request": self.generate_inner(TypeAdapter(step).core_schema)}},
                }
                for name, step in KINDS.items()
                if not issubclass(step, (ManifestStep, NodeStep, TrainingJobStep))
            ]
        return made

    def is_instance_schema(self, schema: Any) -> dict[str, Any]:
        # values of the worker protocol have no pydantic schema: its module must not import pydantic
        return {"type": "object"}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])


@cache
def docstrings(kind: type) -> dict[str, str]:
    """Returns the docstring under each field of a dataclass, including its base classes."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base) or issubclass(base, Value):
            found |= {name: " ".join(words.split()) for name, words in field_docstrings(base).items()}
    return found
