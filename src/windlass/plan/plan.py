"""Plan of a run as plain data that can be printed, compared and stored. An engine's `plan` makes a plan, `submit` runs
it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from windlass.code.revision import Revision
from windlass.errors import PlanError, Problem, StoreError, UnsupportedVersion
from windlass.plan.compose import NO_NODES, NodeTemplate
from windlass.plan.notes import Note
from windlass.plan.price import Price
from windlass.plan.steps import FolderStep, ManifestStep, Step
from windlass.worker.values import ShapeError, StrictValue

if TYPE_CHECKING:
    from windlass.spec.job import Job

S = TypeVar("S", bound=Step)
FORMAT: Final = 3
"""Version of the JSON form. Plans of other versions are not read. Every change to a field or kind of step increments
the version."""
NOT_IN_JSON: Final[Mapping[str, Any]] = MappingProxyType({"json": False})
"""Metadata of a field that is not part of the JSON form."""


class Policy(StrictValue):
    """Settings of the job for the supervisor: time limit, grace period, hang detection, restarts, webhook."""

    timeout_seconds: float | None
    """Time limit of the run; null for none."""
    grace_seconds: float
    """Seconds from SIGTERM to SIGKILL."""
    hang_seconds: float | None
    """Seconds without output after which ranks count as hung; null for no limit."""
    max_restarts: int
    restart_on: tuple[str, ...]
    """Reasons for which an attempt is restarted: `failure`, `node-loss`, `preemption`, `hang`."""
    min_nodes: int
    """Minimum number of nodes for an attempt."""
    node_back_seconds: float = 0.0
    """Minimum seconds before a lost node of an elastic run on this machine may rejoin."""
    notify: str | None = None
    """Name of the secret with the address of the webhook that is called when the run ends."""
    port: int | None = None
    """MASTER_PORT of runs on this machine; null to use a free port."""

    @classmethod
    def of_job(cls, job: Job) -> Policy:
        """Returns the policy of a job, without settings that depend on its target."""
        return cls(
            timeout_seconds=job.timeout,
            grace_seconds=job.grace,
            hang_seconds=job.hang,
            max_restarts=job.restarts.max,
            restart_on=tuple(job.restarts.on),
            min_nodes=job.nodes.max if job.launcher == "mpi" else job.nodes.min,
            node_back_seconds=job.local.back_after,
            notify=job.notify,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Every step and request of a future run. Equal inputs give byte-identical plans."""

    run_id: str
    name: str
    target: str
    engine: str
    output_dir: str
    num_nodes: int
    procs_per_node: int
    policy: Policy
    """Settings of the job for the supervisor."""
    job: Mapping[str, Any]
    """Fields of the job that differ from their defaults; `rerun` and `resume` make another plan from these fields."""
    steps: tuple[Step, ...]
    notes: tuple[Note, ...] = ()
    price: Price | None = None
    """Price per hour and its source; null if the target has no price."""
    num_spares: int = 0
    """Number of spare pods that wait to replace lost pods."""
    nodes: NodeTemplate = NO_NODES
    """Template from which `compose` makes the node specs of each attempt. Steps of kind `node` show the specs without
    values of an attempt."""
    format: int = FORMAT
    """Version of the JSON form."""
    revision: Revision | None = None
    """Commit of the code folder; null outside of a git work tree."""
    archive: bytes | None = field(default=None, compare=False, metadata=NOT_IN_JSON)
    """Archive of the code, packed while planning, for the command that submits the plan. The archive is not part of the
    JSON. None in a plan from a record, and if no code is sent."""

    service_files: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False, metadata=NOT_IN_JSON)
    """Files of a service by name: its certificate, key and token, and others. `submit` stores the files where only the
    ranks of the run read them. They are not part of the JSON, and no record contains them."""

    def __repr__(self) -> str:
        blocked = ", cannot be run" if any(note.blocks for note in self.notes) else ""
        size = f"{self.num_nodes} × {self.procs_per_node} ranks"
        return f"<windlass.Plan {self.run_id} on {self.target}: {size}, {len(self.steps)} steps{blocked}>"

    @property
    def world_size(self) -> int:
        """Number of ranks in the whole job."""
        return self.num_nodes * self.procs_per_node

    @property
    def runs_here(self) -> bool:
        """Whether the nodes are processes on the machine that submits the run, and share the folders of this
        machine.
        """
        return self.first(FolderStep) is not None

    @property
    def warnings(self) -> tuple[Note, ...]:
        """Notes that do not prevent the run."""
        return tuple(note for note in self.notes if not note.blocks)

    def require_runnable(self) -> None:
        """Raises PlanError with all reasons that prevent the run, if there are any."""
        problems = [Problem(self.name, "", note.message, note.fix) for note in self.notes if note.blocks]
        if problems:
            raise PlanError(problems)

    def every(self, kind: type[S]) -> list[S]:
        """Returns all steps of a class, in order."""
        return [step for step in self.steps if isinstance(step, kind)]

    def first(self, kind: type[S]) -> S | None:
        """Returns the first step of a class; None if the plan has none."""
        return next((step for step in self.steps if isinstance(step, kind)), None)

    def only(self, kind: type[S]) -> S:
        """Returns the only step of a class. Raises StoreError if the plan has none or several."""
        found = self.every(kind)
        if len(found) != 1:
            raise StoreError(f"the plan of {self.run_id} has {len(found)} steps of kind {kind.kind}, and needs one")
        return found[0]

    def manifests(self, *kinds: type[ManifestStep]) -> list[Mapping[str, Any]]:
        """Returns the manifests of all steps of these classes, in the order of the classes."""
        return [step.manifest for kind in kinds for step in self.every(kind)]

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON data."""
        names = [one.name for one in dataclasses.fields(self) if one.metadata.get("json", True)]
        return {
            **{name: getattr(self, name) for name in names},
            "policy": self.policy.to_json(),
            "steps": [step.to_json() for step in self.steps],
            "notes": [dataclasses.asdict(note) for note in self.notes],
            "price": None if self.price is None else self.price.to_json(),
            "nodes": self.nodes.to_json(),
            "revision": None if self.revision is None else dataclasses.asdict(self.revision),
        }

    def to_text(self) -> str:
        """Returns the plan as JSON text; equal plans give equal texts."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Parses the output of `to_json`. Raises StoreError, also for unknown fields and kinds of steps, and
        UnsupportedVersion for another format.
        """
        if not isinstance(data, Mapping):
            raise StoreError(f"the plan is a {type(data).__name__}, and no mapping", "give it what to_json made")
        if data.get("format") != FORMAT:
            raise UnsupportedVersion(
                f"the plan of {data.get('run_id', 'a run')} has format {data.get('format')}, and this Windlass reads "
                f"format {FORMAT}",
                "use the version of Windlass that made it",
            )
        try:
            return cls(
                **{
                    **data,
                    "policy": Policy.from_json(data["policy"]),
                    "steps": tuple(map(Step.from_json, data["steps"])),
                    "notes": tuple(Note(**note) for note in data["notes"]),
                    "price": Price.from_json(price) if (price := data["price"]) is not None else None,
                    "nodes": NodeTemplate.from_json(data["nodes"]),
                    "revision": Revision(**found) if (found := data["revision"]) else None,
                }
            )
        except (KeyError, TypeError, ShapeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            problem = f"the recorded plan of {data.get('run_id', 'a run')} cannot be read: {what}"
            raise StoreError(problem, "start a new run of its job: windlass run") from error


NO_PLAN: Final = Plan("", "", "", "", "", 0, 0, Policy(None, 0.0, None, 0, (), 0), {}, ())
"""Placeholder for an unknown plan."""
