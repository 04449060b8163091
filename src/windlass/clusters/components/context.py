"""Context shared by installation, status and removal of components: cluster, clock, and waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from windlass.clusters.components import readiness
from windlass.clusters.components.component import Component, Generated
from windlass.clusters.components.helm import RUN_SECONDS, Helm
from windlass.clusters.components.record import Record, Records, Worker
from windlass.clusters.components.resources import NotServed, Resources
from windlass.clusters.components.source import ChartSource
from windlass.clusters.components.values import ClusterValues
from windlass.errors import EngineError
from windlass.runs.clock import Clock

POLL_SECONDS: Final = 1.0
CLOCK_SKEW_SECONDS: Final = 120.0


class NotReady(EngineError):
    """A component did not become ready, or was not removed, in time."""


@dataclass(frozen=True, slots=True)
class Context:
    """Clients, values and clock of one cluster, shared by the operations of one command."""

    resources: Resources
    records: Records
    helm: Helm
    values: ClusterValues
    source: ChartSource
    table: tuple[Component, ...]
    clock: Clock

    def until(self, is_true: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
        """Waits until a condition is true. Raises NotReady after `seconds`."""
        give_up = self.clock.monotonic() + seconds
        while not is_true():
            if self.clock.monotonic() >= give_up:
                raise NotReady(f"not done after {seconds:.0f} s: {why()}", "the same command continues")
            self.clock.wait(POLL_SECONDS)

    def await_worker(self, record: Record | None) -> None:
        """Raises EngineError while another process installs or removes a component."""
        if record is None or record.state == "installed":
            return
        worker, is_running = record.worker, Worker.here().is_running(record.worker)
        if is_running is None:
            # A helm process exits with its parent. Processes on other machines cannot be checked: assume that they run
            # until the time limit has passed.
            is_running = record.is_release and self.clock.time() - record.since < RUN_SECONDS + CLOCK_SKEW_SECONDS
        if is_running:
            raise EngineError(
                f"component {record.component} is {record.state}: process {worker.pid} on {worker.host}",
                "wait for it; if that machine is gone, try again in ten minutes",
            )

    def problems(self, component: Component) -> tuple[str, ...]:
        """Returns why a component is not ready, including its generated objects. Raises Refused, Unreachable."""
        found = readiness.problems(self.resources, component)
        if not isinstance(component.source, Generated):
            return found
        for each in component.source.make(self.values):
            try:
                ref = self.resources.ref(each, component.namespace)
            except NotServed as error:
                return (*found, error.message)
            one = self.resources.get(ref)
            why = "does not exist" if one is None else readiness.of_object({**one, "kind": ref.kind})
            found += (f"{ref}: {why}",) if why else ()
        return found
