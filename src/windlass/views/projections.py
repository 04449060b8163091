"""Which attributes of domain values `-o json` prints, and under which names; a dataclass that is not here prints all.

A row is the class and what is printed of it, in order: `NAME`, or `NAME=PATH` for an attribute of another name, a
property or an attribute of an attribute, and `:2` behind either for an amount that is rounded to cents.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

PROJECTIONS: Final[Mapping[str, str]] = {
    "windlass.clusters.audit.report.AuditReport": (
        "name=cluster region is_clean leaks kept possible unknown usd_per_month num_calls at"
    ),
    "windlass.clusters.audit.report.Found": (
        "service kind id name region reason bills usd_per_month detail remedy is_kept=kept_on_purpose"
    ),
    "windlass.clusters.audit.report.Unknown": "asked what=kind reason hint",
    "windlass.clusters.components.manager.ComponentStatus": "name installed wanted state is_healthy problems",
    "windlass.clusters.holdings.Holding": "kind=ref.kind namespace=ref.namespace name=ref.name holds why",
    "windlass.clusters.policies.documents.Document": "name whom size document notes",
    "windlass.clusters.terraform.changes.Change": "address action reason",
    "windlass.pricing.cluster.Estimate": "usd_per_month=base_month_usd:2 rows pools unknown dates",
    "windlass.pricing.cluster.PoolCost": "name usd_per_hour=per_hour_usd:2",
    "windlass.pricing.cluster.Row": "what usd_per_month=per_month_usd:2 is_by_use unknown",
}


class Printed(NamedTuple):
    """One field of a projection."""

    name: str
    path: str
    """Of the attribute, with a dot before each further one."""
    read: Callable[[Any], Any]


_read: Final[dict[type, tuple[Printed, ...]]] = {}


def projection(kind: type) -> tuple[Printed, ...]:
    """What is printed of a class; nothing for one that prints all of its fields."""
    found = _read.get(kind)
    if found is None:
        row = PROJECTIONS.get(f"{kind.__module__}.{kind.__qualname__}", "")
        found = _read[kind] = tuple(map(_printed, row.split()))
    return found


def _printed(text: str) -> Printed:
    field, _, digits = text.partition(":")
    name, _, path = field.partition("=")
    read = attrgetter(path or name)
    return Printed(name, path or name, _rounded(read, int(digits)) if digits else read)


def _rounded(read: Callable[[Any], float | None], digits: int) -> Callable[[Any], float | None]:
    def rounded(value: Any) -> float | None:
        found = read(value)
        return None if found is None else round(found, digits)

    return rounded
