"""Values that engines return: states of runs, their pods, locations of results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.runs.record import Status


@dataclass(frozen=True, slots=True)
class Placement:
    """The pods of a run as its cluster lists them, or the hosts of its SageMaker training job."""

    namespace: str
    """Kubernetes namespace; empty for targets without namespaces."""
    attempt: int
    """Number of the newest attempt that has pods; 0 before the first attempt."""
    pods_ready: int
    pods_total: int
    pods: tuple[Mapping[str, Any], ...] = ()
    """The pods of the newest attempt as JSON data with `node`, `name`, `machine` and `state`. Filled in only when a
    single run is read."""


@dataclass(frozen=True, slots=True)
class RunState:
    """A run's status, and how current that status is."""

    status: Status
    as_of: float
    """When the status was read, in Unix seconds."""
    stale: str = ""
    """Why the status may have changed since `as_of`; empty if it is current."""
    is_recorded: bool = True
    """Whether this user started the run on this machine, so that its events, plan and logs are here."""
    placement: Placement | None = None
    """The run's pods; None if the target was not asked."""


@dataclass(frozen=True, slots=True)
class ResultsLocation:
    """Where the results of a run are."""

    kind: str
    """`folder` (on this machine), `claim`, `pods` (deleted together with the pods) or `store`."""
    path: str
    """Path of the folder, path in the claim or pod, or address in the store."""
    claim: str = ""
    """Name of the claim; empty for other kinds."""
    copied: str = ""
    """Folder on this machine that holds a copy; empty if there is no copy."""
    elsewhere: str = ""
    """Why the results cannot be copied to this machine, for example because another machine holds them; empty if no
    reason is known."""
    note: str = ""
    """Why the results are not in the place that the job asks for; empty if they are."""
