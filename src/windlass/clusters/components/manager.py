"""Installs, inspects and removes the components of one cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from windlass.clusters.components import installation, readiness, removal
from windlass.clusters.components.component import Chart, Component
from windlass.clusters.components.context import Context
from windlass.clusters.components.helm import Helm
from windlass.clusters.components.record import Record, Records
from windlass.clusters.components.resources import Resources
from windlass.clusters.components.source import ChartSource
from windlass.clusters.components.steps import Progress, Steps
from windlass.clusters.components.table import COMPONENTS, ordered
from windlass.clusters.components.texts import DEFINITION
from windlass.clusters.components.values import ClusterValues
from windlass.engines.kubernetes.access.client import Client
from windlass.runs.clock import Clock

READY_SECONDS: Final = 600.0
"""Time limit in seconds for a component to become ready, including image pulls on new nodes."""
State = Literal["absent", "foreign", "installing", "installed", "removing"]


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """Status of a component in the cluster."""

    name: str
    installed: str
    """Installed version; empty if Windlass did not install the component."""
    wanted: str
    state: State
    """`foreign`: the component exists, but Windlass did not install it."""
    problems: tuple[str, ...]
    """Reasons why the component is not healthy; empty if it is healthy or not installed."""

    @property
    def is_healthy(self) -> bool:
        """Whether everything in the component is ready."""
        return self.state in ("installed", "foreign") and not self.problems

    @property
    def is_current(self) -> bool:
        """Whether the installed version is the one that this version of Windlass installs."""
        return self.installed == self.wanted


class Manager:
    """Installs, inspects and removes components. Its methods raise EngineError, MissingExtra and UsageError."""

    def __init__(
        self,
        client: Client,
        kubeconfig: str,
        values: ClusterValues,
        source: ChartSource,
        *,
        helm: str = "helm",
        table: Sequence[Component] = COMPONENTS,
        clock: Clock | None = None,
    ) -> None:
        """`kubeconfig` is the client's kubeconfig, passed to helm."""
        resources = Resources(client)
        self._context = Context(
            resources,
            Records(resources),
            Helm(helm, kubeconfig, client.context),
            values,
            source,
            tuple(table),
            clock or Clock(),
        )

    def install(self, names: Iterable[str], progress: Progress) -> None:
        """Installs or updates components and their requirements; each must be ready before the next one starts.

        Can be interrupted at any point; the next call continues. Raises NotReady, Foreign, EngineError, MissingExtra,
        UsageError.
        """
        context = self._context
        chosen = ordered(names, context.table)
        if any(isinstance(one.source, Chart) for one in chosen):
            context.helm.version()
        for one in chosen:
            installation.install(context, one, Steps(one.name, progress), READY_SECONDS)

    def status(self, names: Iterable[str] = ()) -> tuple[ComponentStatus, ...]:
        """Returns installed and required versions of components, and why they are not healthy; without names, of all
        components.

        Reads only. Raises Refused, Unreachable.
        """
        chosen, recorded = tuple(names), self._context.records.all()
        wanted = (one for one in self._context.table if one.name in chosen or not chosen)
        return tuple(self._status(one, recorded.get(one.name)) for one in wanted)

    def uninstall(self, names: Iterable[str], progress: Progress) -> None:
        """Removes components in the reverse order of their installation; without names, all that Windlass has
        installed. See `removal.remove`.
        """
        removal.remove(self._context, tuple(names), progress)

    def _status(self, component: Component, record: Record | None) -> ComponentStatus:
        if record is not None:
            problems = self._context.problems(component)
            return ComponentStatus(component.name, record.version, component.version, record.state, problems)
        found = {ref: self._context.resources.get(ref) for ref in readiness.refs(component)}
        if not any(found.values()):
            return ComponentStatus(component.name, "", component.version, "absent", ())
        # Another tool may name a component's objects differently, so only its CRDs must exist.
        missing = tuple(f"{ref}: does not exist" for ref, one in found.items() if ref.kind == DEFINITION and not one)
        return ComponentStatus(component.name, "", component.version, "foreign", missing)
