"""Looks at a cluster before anything runs there: what it has, what it lets us do, and whether its pods can meet."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windlass.actions.edge import Edge
from windlass.engines.checking import Check

if TYPE_CHECKING:
    from windlass.engines.kubernetes.client import Client
    from windlass.spec.targets import KubernetesTarget


@dataclass(frozen=True, slots=True)
class Report:
    """What was found of a cluster."""

    target: str
    context: str
    namespace: str
    server: str
    checks: tuple[Check, ...]
    missing: tuple[str, ...]
    """Rights that are needed and not had, as `create jobs.batch`."""
    network: Mapping[str, Any] | None = None
    """Figures; None where the network was not tried."""

    @property
    def ok(self) -> bool:
        """Whether jobs can run there."""
        return all(check.level != "fail" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {"ok": self.ok, **dataclasses.asdict(self), "checks": [dataclasses.asdict(one) for one in self.checks]}


def connect(target: KubernetesTarget, edge: Edge) -> Client:
    """A client for the target's context and namespace. Raises UsageError, EngineError, MissingPart."""
    from windlass.engines.kubernetes.client import Client
    from windlass.engines.kubernetes.facts import find_kubeconfig

    return Client(target.context, target.namespace, find_kubeconfig(edge.environ))


def look(target: KubernetesTarget, edge: Edge) -> Report:
    """What the cluster has and lets us do; changes nothing. Raises UsageError for a context that is not there."""
    from windlass.engines.kubernetes.checks import checks
    from windlass.engines.kubernetes.survey import survey

    with contextlib.closing(connect(target, edge)) as client:
        seen = survey(client)
    return Report(
        target=target.name,
        context=target.context,
        namespace=target.namespace,
        server=seen.server,
        checks=tuple(checks(seen, target)),
        missing=tuple(str(right) for right in seen.missing),
    )


def role(target: KubernetesTarget, edge: Edge) -> list[dict[str, Any]]:
    """The objects that give the target's login exactly the rights that are needed. Raises EngineError, UsageError."""
    from windlass.engines.kubernetes import rights
    from windlass.engines.kubernetes.survey import survey

    with contextlib.closing(connect(target, edge)) as client:
        seen = survey(client)
    if (error := seen.error("version")) is not None:
        raise error
    made = [rights.role(target.namespace, rights.useful(seen.groups))]
    return [*made, rights.binding(target.namespace, seen.user)] if seen.user else made
