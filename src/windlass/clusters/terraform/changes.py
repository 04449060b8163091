"""Parses the changes of a saved plan from `terraform show -json`."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final


class Action(enum.StrEnum):
    """Planned action on a resource."""

    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    DELETE = "delete"
    READ = "read"
    IMPORT = "import"
    """The existing resource is added to the state unchanged."""
    FORGET = "forget"
    """The resource is removed from the state but continues to exist."""
    NONE = "no-op"


_ACTIONS: Final = {
    ("create",): Action.CREATE,
    ("update",): Action.UPDATE,
    ("delete",): Action.DELETE,
    ("read",): Action.READ,
    ("no-op",): Action.NONE,
    ("forget",): Action.FORGET,
    ("delete", "create"): Action.REPLACE,
    ("create", "delete"): Action.REPLACE,
    ("create", "forget"): Action.REPLACE,
}


@dataclass(frozen=True, slots=True)
class Change:
    """What a Terraform plan does to one resource."""

    address: str
    type: str
    action: Action
    before: Mapping[str, Any] = field(repr=False)
    """Current attributes, including sensitive ones: must not be printed. Empty for a resource that does not exist."""
    after: Mapping[str, Any] = field(repr=False)
    """Planned attributes, as far as they are known, including sensitive ones. Empty for a resource that will be
    deleted."""
    unknown: Mapping[str, Any]
    """Attributes that are known only after apply, each with a true value."""
    reason: str = ""
    """Terraform's reason for a replacement or deletion: `replace_because_tainted`."""
    import_id: str = ""
    """Import id; empty for a resource that is not imported."""

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the attributes that change."""
        names = {*self.before, *self.after, *(name for name, value in self.unknown.items() if value)}
        return tuple(sorted(name for name in names if self._differs(name)))

    def _differs(self, name: str) -> bool:
        before, after = self.before.get(name), self.after.get(name)
        is_other = before != after and bool(before or after)  # null, false, 0, "", [] and {} count as equal
        return bool(self.unknown.get(name)) or is_other


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """Changes and drift in a saved plan."""

    changes: tuple[Change, ...]
    """Changes, without unchanged resources and data sources."""
    drift: tuple[Change, ...] = ()
    """Changes made outside Terraform, detected when the plan was created."""
    output_changes: tuple[str, ...] = ()

    @property
    def drift_to_undo(self) -> tuple[Change, ...]:
        """Drift that the plan reverts.

        The remaining drift consists of attributes that AWS sets after creation, or that the configuration does not set.
        """
        planned = {change.address for change in self.changes}
        return tuple(change for change in self.drift if change.address in planned)

    def _count(self, *actions: Action) -> int:
        return sum(change.action in actions for change in self.changes)

    @property
    def add(self) -> int:
        """Number of resources to create, including replacements."""
        return self._count(Action.CREATE, Action.REPLACE)

    @property
    def change(self) -> int:
        """Number of resources to change in place."""
        return self._count(Action.UPDATE)

    @property
    def destroy(self) -> int:
        """Number of resources to destroy, including replacements."""
        return self._count(Action.DELETE, Action.REPLACE)

    @property
    def replace(self) -> int:
        """Number of resources to destroy and create again."""
        return self._count(Action.REPLACE)

    @property
    def imports(self) -> int:
        """Number of resources to import, including those that are also changed."""
        return sum(bool(change.import_id) for change in self.changes)

    @property
    def is_empty(self) -> bool:
        """Whether the plan changes no resource."""
        return not self.changes

    @property
    def text(self) -> str:
        """Text such as `8 to add, 1 to change, 0 to destroy`, with imports and replacements."""
        words = [f"{self.add} to add", f"{self.change} to change", f"{self.destroy} to destroy"]
        words += [f"{self.imports} to import"] if self.imports else []
        text = ", ".join(words)
        return f"{text} ({self.replace} of them replaced)" if self.replace else text


def summary_of(plan: Mapping[str, Any]) -> PlanSummary:
    """Parses a plan as printed by `terraform show -json` (format version 1)."""
    changes = tuple(
        change for change in _changes(plan.get("resource_changes")) if change.action not in (Action.NONE, Action.READ)
    )
    drift = tuple(
        change for change in _changes(plan.get("resource_drift")) if change.action is not Action.NONE and change.changed
    )
    outputs = plan.get("output_changes") or {}
    changed = tuple(sorted(name for name, found in outputs.items() if found.get("actions") != ["no-op"]))
    return PlanSummary(changes, drift, changed)


def _changes(found: Any) -> Iterator[Change]:
    for one in found or ():
        if one.get("mode") == "managed":
            yield _change(one)


def _change(found: Mapping[str, Any]) -> Change:
    change = found["change"]
    action = _ACTIONS.get(tuple(change["actions"]), Action.UPDATE)
    import_id = str((change.get("importing") or {}).get("id") or "")
    if import_id and action is Action.NONE:
        action = Action.IMPORT
    unknown = change.get("after_unknown")
    return Change(
        address=found["address"],
        type=found["type"],
        action=action,
        before=change.get("before") or {},
        after=change.get("after") or {},
        unknown=unknown if isinstance(unknown, dict) else {},
        reason=str(found.get("action_reason") or ""),
        import_id=import_id,
    )
