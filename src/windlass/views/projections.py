"""Defines which attributes of domain values `-o json` prints, and their names; other dataclasses print all fields.

Each row has a class and its printed attributes in order. An attribute is the path of a field or property, such as
`ref.kind`. The JSON name is the last part of the path, or NAME in NAME=PATH; `:2` after a path rounds an amount to
cents.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

PROJECTIONS: Final[Mapping[str, str]] = {
    "windlass.clusters.audit.report.AuditReport": (
        "name=cluster region account_id is_clean leaks kept possible unknown usd_per_month num_calls at"
    ),
    "windlass.clusters.audit.report.FoundObject": (
        "service kind id name region reason bills usd_per_month detail remedy is_kept=kept_on_purpose"
    ),
    "windlass.clusters.audit.report.Unknown": "asked what=kind reason hint",
    "windlass.clusters.components.manager.ComponentStatus": "name installed wanted state is_healthy problems",
    "windlass.clusters.holdings.Holding": "ref.kind ref.namespace ref.name holds why",
    "windlass.clusters.policies.documents.Document": "name whom size document notes",
    "windlass.clusters.terraform.changes.Change": "address action reason",
    "windlass.diagnose.verdict.Verdict": "verdict=code summary rank evidence fix",
    "windlass.pricing.cluster.Estimate": "usd_per_month=base_month_usd:2 rows pools unknown dates",
    "windlass.pricing.cluster.PoolCost": "name usd_per_hour=per_hour_usd:2",
    "windlass.pricing.cluster.Row": "what usd_per_month=per_month_usd:2 is_by_use unknown",
    "windlass.pricing.price.SpotRange": "low_usd=low.amount_usd high_usd=high.amount_usd days low.source low.date",
    "windlass.storage.progress.Refusal": "name why",
    "windlass.views.data.DataCopied": (
        "source destination copied.digest files=copied.num_files bytes=copied.set_bytes copied_files=copied.num_copied "
        "copied_bytes=copied.num_bytes unchanged_files=copied.num_unchanged copied.refused copied.seconds"
    ),
    "windlass.views.data.DataVerified": (
        "address ok found.digest files=found.num_files bytes=found.num_bytes found.problems found.extra"
    ),
    "windlass.views.prices.InstancePrice": (
        "type facts.vcpus facts.memory_mib facts.architecture facts.gpus facts.gpu_model facts.gpu_memory_mib "
        "facts.neuron_devices facts.neuron_model facts.efa_interfaces facts.network_cards facts.network_gbps "
        "facts.network_peak_gbps facts.nvme_gb on_demand spot unknown"
    ),
    "windlass.views.verdict.Why": (
        "verdict=diagnosis.verdict.code diagnosis.verdict.summary diagnosis.verdict.rank diagnosis.verdict.evidence "
        "diagnosis.verdict.fix status.id status.phase diagnosis.others diagnosis.not_seen restarts status.warnings "
        "data_differences"
    ),
}


class Printed(NamedTuple):
    """A printed attribute of a projection."""

    name: str
    path: str
    """Attribute path, such as `ref.kind`."""
    read: Callable[[Any], Any]


_read: Final[dict[type, tuple[Printed, ...]]] = {}


def projection(kind: type) -> tuple[Printed, ...]:
    """Returns which attributes of an object of this class are printed; empty if all of its fields are printed."""
    found = _read.get(kind)
    if found is None:
        row = PROJECTIONS.get(f"{kind.__module__}.{kind.__qualname__}", "")
        found = _read[kind] = tuple(map(_printed, row.split()))
    return found


def _printed(text: str) -> Printed:
    field, _, digits = text.partition(":")
    path = field.rpartition("=")[2]
    name, read = field.partition("=")[0] if "=" in field else path.rpartition(".")[2], attrgetter(path)
    return Printed(name, path, _rounded(read, int(digits)) if digits else read)


def _rounded(read: Callable[[Any], float | None], digits: int) -> Callable[[Any], float | None]:
    def rounded(value: Any) -> float | None:
        found = read(value)
        return None if found is None else round(found, digits)

    return rounded
