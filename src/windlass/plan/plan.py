"""What a run would do, as plain data that prints, diffs and stores; `plan` of an engine makes it, `submit` does it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from windlass.code.revision import Revision
from windlass.errors import PlanError, Problem, StoreError, UnsupportedVersion
from windlass.plan.template import NO_NODES, NodeTemplate
from windlass.worker.values import ShapeError

FORMAT: Final = 2
"""Version of the JSON form; a plan of another one is not read."""
NOT_IN_JSON: Final[Mapping[str, Any]] = MappingProxyType({"json": False})
"""Metadata of a field that is not part of the JSON form."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something to know before the run."""

    code: str
    """Stable name: `ranks-exceed-cores`."""
    message: str
    """What was asked and what was found."""
    fix: str
    """What the user can do about it; empty where there is nothing to do."""
    blocks: bool = False
    """Whether the plan cannot be carried out as it is."""


def blocker(code: str, message: str, fix: str) -> Note:
    """A note that blocks the plan."""
    return Note(code, message, fix, blocks=True)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that apply does, with the request as it will be sent."""

    kind: str
    summary: str
    request: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Every step and every request that a run would make. The same inputs give the same plan, byte for byte."""

    run_id: str
    name: str
    target: str
    engine: str
    output_dir: str
    num_nodes: int
    procs_per_node: int
    policy: Mapping[str, Any]
    """Limits that the supervisor applies: timeout_seconds, grace_seconds, max_restarts, …"""
    job: Mapping[str, Any]
    """The job, every field that is not its default."""
    steps: tuple[Step, ...]
    notes: tuple[Note, ...] = ()
    price: Mapping[str, Any] | None = None
    """What it costs an hour, and where the figure is from; null where the target has no price."""
    nodes: NodeTemplate = NO_NODES
    """What `compose` makes the node specs of each attempt of. The steps of kind `node` show them without an attempt."""
    format: int = FORMAT
    """Version of this form."""
    revision: Revision | None = None
    """The commit that the folder of the code is at; null outside of a git work tree."""
    archive: bytes | None = field(default=None, compare=False, metadata=NOT_IN_JSON)
    """The archive of the code, as it was packed while planning, for the command that submits it. It is not part of the
    JSON: None in a plan that was read from a record, and where no code travels."""

    def __repr__(self) -> str:
        blocked = ", cannot be run" if any(note.blocks for note in self.notes) else ""
        size = f"{self.num_nodes} × {self.procs_per_node} ranks"
        return f"<windlass.Plan {self.run_id} on {self.target}: {size}, {len(self.steps)} steps{blocked}>"

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_nodes * self.procs_per_node

    @property
    def warnings(self) -> tuple[Note, ...]:
        """What does not stop the run."""
        return tuple(note for note in self.notes if not note.blocks)

    def require_runnable(self) -> None:
        """Raise PlanError with all the reasons why this plan cannot be carried out, if there are any."""
        problems = [Problem(self.name, "", note.message, note.fix) for note in self.notes if note.blocks]
        if problems:
            raise PlanError(problems)

    def requests(self, kind: str) -> Sequence[Mapping[str, Any]]:
        """The requests of all steps of one kind, in order."""
        return [step.request for step in self.steps if step.kind == kind]

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON data."""
        names = [one.name for one in dataclasses.fields(self) if one.metadata.get("json", True)]
        data = {name: getattr(self, name) for name in names}
        steps = [dataclasses.asdict(step) for step in self.steps]
        notes = [dataclasses.asdict(note) for note in self.notes]
        revision = None if self.revision is None else dataclasses.asdict(self.revision)
        return {**data, "steps": steps, "notes": notes, "nodes": self.nodes.to_json(), "revision": revision}

    def to_text(self) -> str:
        """The plan as JSON text, the same for the same plan."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Read `to_json` back. Raises StoreError; UnsupportedVersion for another format."""
        if not isinstance(data, Mapping):
            raise StoreError(f"the plan is a {type(data).__name__}, and no mapping", "give it what to_json made")
        if data.get("format") != FORMAT:
            raise UnsupportedVersion(
                f"the plan of {data.get('run_id', 'a run')} has format {data.get('format')}, and this Windlass reads "
                f"format {FORMAT}",
                "use the version of Windlass that made it",
            )
        try:
            steps = tuple(Step(**step) for step in data["steps"])
            notes = tuple(Note(**note) for note in data["notes"])
            nodes = NodeTemplate.from_json(data["nodes"])
            revision = Revision(**found) if (found := data["revision"]) else None
            fields = {**data, "steps": steps, "notes": notes, "nodes": nodes, "revision": revision}
            return cls(**fields)
        except (KeyError, TypeError, ShapeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            problem = f"the recorded plan of {data.get('run_id', 'a run')} cannot be read: {what}"
            raise StoreError(problem, "start a new run of its job: windlass run") from error
