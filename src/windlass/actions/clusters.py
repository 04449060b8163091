"""Looks at a cluster before anything runs there: what it has, what it lets us do, and whether its pods can meet."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windlass.actions.edge import Edge
from windlass.engines.checking import Check
from windlass.errors import EngineError

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
    """What the cluster has and lets us do. Raises UsageError for a context that is not there.

    Nothing is made, and nothing removed but what an earlier check has left that was killed.
    """
    from windlass.engines.kubernetes import helpers
    from windlass.engines.kubernetes.checks import checks
    from windlass.engines.kubernetes.survey import survey

    left: list[str] = []
    with contextlib.closing(connect(target, edge)) as client:
        seen = survey(client)
        if seen.error("version") is None and not seen.missing:
            with contextlib.suppress(EngineError):
                left = helpers.sweep(client)
    return Report(
        target=target.name,
        context=target.context,
        namespace=target.namespace,
        server=seen.server,
        checks=(*checks(seen, target), *_leftovers(left)),
        missing=tuple(str(right) for right in seen.missing),
    )


def _leftovers(names: Sequence[str]) -> list[Check]:
    return [Check("leftovers", "ok", f"removed, of commands that were killed: {', '.join(names)}")] if names else []


def try_network(report: Report, target: KubernetesTarget, edge: Edge, told: Callable[[str], None]) -> Report:
    """The report with what two pods have found out about the network; they are removed again, whatever happens.

    `told` is given a line whenever something new begins. Raises UsageError, EngineError.
    """
    from windlass.engines.kubernetes import network

    with contextlib.closing(connect(target, edge)) as client:
        found = network.probe(client, target, told)
    return dataclasses.replace(report, checks=(*report.checks, *network.checks(found)), network=found.figures())


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
