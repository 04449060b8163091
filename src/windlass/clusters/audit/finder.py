"""Defines a finder: one kind of object, the calls that list it, and the function that selects the cluster's objects."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.audit.calls import FinderCalls
from windlass.clusters.audit.report import FoundObject, PriceKey
from windlass.clusters.audit.scope import Owner, Scope, kept

GIB: Final = 1024**3
GLOBAL: Final = "global"
CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Finder:
    """Finder for one kind of object of one AWS service."""

    service: str
    """Name of the boto3 client."""
    kind: str
    """Display name in the singular, such as `volume`."""
    operations: tuple[str, ...]
    """Operations that `find` may call, as `CLIENT:Operation`; the audit's IAM policy is built from them."""
    find: Callable[[FinderCalls, Scope], Iterable[FoundObject]]


def row(
    what: tuple[str, str],
    scope: Scope,
    owner: Owner,
    id: str,
    *,
    name: str = "",
    tags: Mapping[str, str] | None = None,
    prices: Iterable[PriceKey] = (),
    remedy: str = "",
    detail: str = "",
    region: str = "",
    is_kept: bool = False,
) -> FoundObject:
    """Builds the report row of an object; `what` is its service and kind. The object bills if it has prices.

    Control characters in external text are replaced.
    """
    tags, keys = tags or {}, tuple(prices)
    return FoundObject(
        service=what[0],
        kind=what[1],
        id=clean(id),
        name=clean(name or tags.get("Name") or id),
        region=region or scope.region,
        reason=clean(owner.reason),
        bills=bool(keys),
        price_keys=keys,
        kept_on_purpose=is_kept or kept(tags),
        remedy=remedy,
        is_certain=owner.is_certain,
        detail=clean(detail),
    )


def command(scope: Scope, words: str, *names: str, region: bool = True) -> str:
    """Returns an `aws` command that is safe to paste: external names are quoted."""
    where = f" --region {scope.region}" if region else ""
    return f"aws {words} {' '.join(shlex.quote(clean(name)) for name in names)}{where}"


def hourly(service: str, dimension: str = "", quantity: float = 1) -> PriceKey:
    """Returns the price key of a charge per hour."""
    return PriceKey(service, "hour", dimension, float(quantity))


def stored(service: str, dimension: str, gib: float | None) -> PriceKey:
    """Returns the price key of a charge per GiB-month."""
    return PriceKey(service, "GiB-month", dimension, None if gib is None else round(float(gib), 4))


def gib(num_bytes: Any) -> float:
    """Converts bytes to GiB."""
    return float(num_bytes or 0) / GIB


def clean(text: str) -> str:
    """Replaces the control characters of external text."""
    return CONTROLS.sub("�", str(text))
