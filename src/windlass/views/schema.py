"""JSON Schemas (draft 2020-12) of everything that `-o json` prints, from the type hints and docstrings of the views.

Every field of a view is always there. New fields may come; those that are there keep their meaning. What comes from the
record (progress, causes, checkpoints) has a field only where it is known, and may have fields of newer versions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from windlass.plan.plan import Plan, Step
from windlass.spec.docstrings import field_docstrings
from windlass.views import cluster, cluster_pods, platform, prices, reports, rights, run
from windlass.worker.values import REQUIRED, Value

PRINTED: Final[Mapping[str, Any]] = {
    "plan": Plan,
    "run": reports.RunId | run.Run,
    "status": run.Run | cluster_pods.RunOnClusterWithPods,
    "stop": run.Run | cluster_pods.RunOnClusterWithPods,
    "ps": list[run.RunSummary]
    | list[cluster.RunOnCluster]
    | cluster.RunOnCluster
    | reports.Removed
    | cluster_pods.ClusterAnswer,
    "events": reports.EventView,
    "logs": reports.LogLineView,
    "why": reports.Why,
    "cost": reports.CostReport,
    "resume": reports.RunId | run.Run,
    "rerun": reports.RunId | run.Run,
    "checkpoints": reports.CheckpointList,
    "checkpoints-verify": reports.VerifiedCheckpoints,
    "checkpoints-prune": reports.PrunedCheckpoints,
    "checkpoints-export": reports.ExportedCheckpoint,
    "artifacts": reports.ArtifactList,
    "cp": reports.CopiedFiles,
    "rm": reports.RemovedRuns,
    "note": reports.RunNote,
    "prune": reports.PrunedRuns,
    "du": reports.DiskUse,
    "init": reports.WrittenJob,
    "import": reports.ImportedJob,
    "check": reports.CheckedJob | reports.CheckedCluster,
    "targets": list[reports.TargetView],
    "target-setup": reports.TargetSetup,
    "warm-ls": list[reports.WarmProcess],
    "warm-stop": reports.StoppedWarm,
    "data-copy": reports.DataCopied | reports.DataCopyPreview,
    "data-verify": reports.DataVerified,
    "data-ls": reports.DataList | reports.DataCacheList,
    "data-stage": reports.StagedData,
    "data-rm": reports.CachedData,
    "prices-list": prices.PriceList,
    "prices-update": prices.PricesUpdated,
    "cluster-init": platform.WrittenCluster,
    "cluster-plan": platform.ClusterPlan,
    "cluster-up": platform.ClusterMade,
    "cluster-down": platform.ClusterRemoved,
    "cluster-ls": list[platform.ClusterSummary],
    "cluster-status": platform.ClusterStatus,
    "cluster-audit": platform.ClusterAudit,
    "cluster-export": platform.ExportedCluster,
    "cluster-policy": rights.ClusterPolicies,
    "doctor": reports.DoctorReport,
    "error": reports.ErrorReport,
}
"""The view that each command prints. `run` and `resume` print the first with --detach; `status`, `stop` and `ps` the
second with --on, `ps --watch` a line for each of the others; `events` and `logs` one a line; `check` the second for a
cluster."""


_VALUES: Final[dict[type, type[Value]]] = {}
"""Values of the record, by the dataclass that replaces each in a schema."""


def _of_value(kind: type[Value], _source: Any, handler: Any) -> Any:
    """pydantic's schema of a `Value`: that of a dataclass with the same fields."""
    fields: list[Any] = [
        (name, hint)
        if (default := kind.fields()[name]) is REQUIRED
        else (name, hint, dataclasses.field(default=default if default.__hash__ else None))
        for name, hint in get_type_hints(kind).items()
        if name in kind.fields()
    ]
    made = dataclasses.make_dataclass(kind.__name__, fields, kw_only=True)
    made.__doc__ = kind.__doc__
    _VALUES[made] = kind
    return handler(made)


Value.__get_pydantic_core_schema__ = classmethod(_of_value)  # type: ignore[attr-defined]


def schema_of(name: str) -> dict[str, Any]:
    """The schema of what the command `name` prints."""
    schema = TypeAdapter(PRINTED[name]).json_schema(mode="serialization", schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, **schema}


class _Generator(GenerateJsonSchema):
    """Adds what type hints do not say: docstrings of fields, and which fields are always there."""

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        made = super().dataclass_schema(schema)
        kind, found = schema["cls"], self.resolve_ref_schema(made)
        kind = _VALUES.get(kind, kind)
        is_open = issubclass(kind, (Value, reports.EventView))
        for name, text in docstrings(kind).items():
            if name in found["properties"]:
                found["properties"][name]["description"] = text
        if not issubclass(kind, Value):
            found["required"] = list(found["properties"])
        found["properties"] = {name.rstrip("_"): one for name, one in found["properties"].items()}
        found["additionalProperties"] = is_open
        if kind is Step:
            found["if"] = {"properties": {"kind": {"const": "code"}}}
            code = self.generate_inner(TypeAdapter(reports.CodeRequest).core_schema)
            found["then"] = {"properties": {"request": code}}
        return made

    def is_instance_schema(self, schema: Any) -> dict[str, Any]:
        return {"type": "object"}  # a value of the worker's protocol, which is standard library alone

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])


@cache
def docstrings(kind: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base) or issubclass(base, Value):
            found |= {name: " ".join(words.split()) for name, words in field_docstrings(base).items()}
    return found
