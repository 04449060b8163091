"""What a finder is: one kind of object, the calls that list it, and the function that picks the cluster's."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.audit.calls import Ask
from windlass.clusters.audit.report import Found, PriceKey
from windlass.clusters.audit.scope import Owner, Scope, kept

GIB: Final = 1024**3
GLOBAL: Final = "global"
CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Finder:
    """Lists one kind of object of one service."""

    service: str
    """Name of the boto3 client."""
    kind: str
    """Singular, as a person reads it: `volume`."""
    asks: tuple[str, ...]
    """All operations that `find` may call, `CLIENT:Operation`; the policy of the audit is made of them."""
    find: Callable[[Ask, Scope], Iterable[Found]]


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
) -> Found:
    """A row of the report on an object that is `what` (service, kind); it bills if it has prices.

    Control characters in text from outside are replaced.
    """
    tags, keys = tags or {}, tuple(prices)
    return Found(
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
    """An `aws` command as a person may paste it; names from outside are quoted."""
    where = f" --region {scope.region}" if region else ""
    return f"aws {words} {' '.join(shlex.quote(clean(name)) for name in names)}{where}"


def hourly(service: str, dimension: str = "", quantity: float = 1) -> PriceKey:
    """A part of a bill that runs by the hour."""
    return PriceKey(service, "hour", dimension, float(quantity))


def stored(service: str, dimension: str, gib: float | None) -> PriceKey:
    """A part of a bill that runs by the size."""
    return PriceKey(service, "GiB-month", dimension, None if gib is None else round(float(gib), 4))


def gib(num_bytes: Any) -> float:
    """Bytes as GiB."""
    return float(num_bytes or 0) / GIB


def clean(text: str) -> str:
    """Text from outside with its control characters replaced."""
    return CONTROLS.sub("�", str(text))
