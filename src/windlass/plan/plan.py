"""What a run would do, as plain data that prints, diffs and stores; an engine's `plan` makes it, `submit` does it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from windlass.errors import PlanError, Problem, StoreTooNew

FORMAT: Final = 1
"""Version of the JSON form; a plan in the record may be older than the Windlass that reads it."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something to know before the run."""

    code: str
    """Stable name: `ranks-exceed-cores`."""
    message: str
    """What was asked and what was found."""
    fix: str
    """What to do about it."""
    blocks: bool = False
    """Whether the plan cannot be carried out as it is."""


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
    """What whoever watches the run must know: timeout_seconds, grace_seconds, max_restarts."""
    job: Mapping[str, Any]
    """The job, every field that is not its default."""
    steps: tuple[Step, ...]
    notes: tuple[Note, ...] = ()
    price: Mapping[str, Any] | None = None
    """Dollars an hour and where the figure is from; None where the target costs nothing by the hour."""

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
        return {"format": FORMAT, **dataclasses.asdict(self)}

    def to_text(self) -> str:
        """The plan as JSON text, the same for the same plan."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Read `to_json` back. Raises StoreTooNew for a form that is not known here."""
        if data.get("format") != FORMAT:
            raise StoreTooNew(f"the plan is of format {data.get('format')}; this Windlass reads {FORMAT}")
        fields = {name: value for name, value in data.items() if name != "format"}
        fields["steps"] = tuple(Step(**step) for step in data["steps"])
        fields["notes"] = tuple(Note(**note) for note in data["notes"])
        return cls(**fields)
