"""Finds resources that exist in AWS and are in the configuration, but are missing in the state.

The search asks AWS for each resource that a plan would create. Existing resources get an import block, which gives the
next plan attributes that other resources depend on, such as a subnet's id. The search repeats until a plan finds no
more existing resources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from windlass.clusters.recovery.report import Duplicate, Foreign, Imported
from windlass.clusters.recovery.search import FoundResource, NotKnownYet, Search, Status, Values
from windlass.clusters.recovery.table import FINDERS, WITHOUT_OBJECT
from windlass.clusters.terraform.changes import Action, Change
from windlass.clusters.terraform.driver import RECOVERY, RECOVERY_OVERRIDE, Plan, Terraform, import_block
from windlass.clusters.terraform.errors import Interrupted, TerraformFailed
from windlass.clusters.terraform.events import TerraformNote
from windlass.runs.clock import Clock

POLL_SECONDS: Final = 5.0
SETTLE_SECONDS: Final = 45 * 60.0
"""Longest time in seconds that AWS takes to create or delete one resource: an EKS cluster or an FSx file system."""
_LOOKED_FOR: Final = {*FINDERS, *WITHOUT_OBJECT}
_NOT_THERE: Final = re.compile(r'import an existing object to "((?:[^"\\]|\\.)*)"')


@dataclass(slots=True)
class Discovery:
    """Search for existing resources, with the results so far."""

    terraform: Terraform
    search: Search
    clock: Clock
    plan: Callable[[], Plan]
    """Function that creates a plan, without refreshing the state if possible."""
    ids: dict[str, str] = field(default_factory=dict)
    """Import ids by address."""
    failed: list[str] = field(default_factory=list)
    """Addresses of resources that AWS failed to create."""
    duplicates: list[Duplicate] = field(default_factory=list)
    foreign: list[Foreign] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    rejected: set[str] = field(default_factory=set)
    """Addresses whose import Terraform refused, because the resource was deleted meanwhile."""
    unkept: set[str] = field(default_factory=set)
    """Resource blocks whose provider rejects `ignore_changes = all`."""

    def run(self) -> tuple[Imported, ...]:
        """Finds all missing resources and returns their imports. Raises TerraformError, AwsError."""
        while True:
            creates = self._creates()
            found = {change.address: id for change in creates if (id := self._import_id(change)) is not None}
            if not found:
                self.unknown = [one.address for one in creates if one.type not in _LOOKED_FOR]
                return tuple(Imported(address, id) for address, id in sorted(self.ids.items()))
            self.ids |= found
            self.write_blocks()

    def write_blocks(self) -> None:
        """Writes the import blocks into the folder, and an override that keeps the plan from changing imported
        resources.

        Attributes that imports do not read (`force_delete`), or that a killed command had not set yet, are left to the
        plan that the user confirms.
        """
        folder = self.terraform.folder.path
        blocks = [import_block(*one) for one in sorted(self.ids.items())]
        (folder / RECOVERY).write_text("\n".join(blocks), encoding="utf-8")
        names = sorted({_block(address) for address in self.ids} - self.unkept)
        kept = [f"resource {name} {{\n  lifecycle {{\n    ignore_changes = all\n  }}\n}}\n" for name in names]
        (folder / RECOVERY_OVERRIDE).write_text("\n".join(kept), encoding="utf-8")

    def _creates(self) -> Sequence[Change]:
        """Returns the resources that a plan with the import blocks would still create."""
        while True:
            try:
                plan = self.plan()
            except TerraformFailed as error:
                if not self._gives_way(error):
                    raise
                self.write_blocks()
                continue
            plan.path.unlink(missing_ok=True)
            return [one for one in plan.summary.changes if one.action is Action.CREATE]

    def _gives_way(self, error: TerraformFailed) -> bool:
        """Drops what made a plan fail: imports of deleted resources, and `ignore_changes` where a provider rejects it.

        Returns whether anything was dropped. For example, aws_nat_gateway rejects its number of secondary addresses,
        which is in the state but in no file.
        """
        refused = {found for one in error.diagnostics for found in _refused(one.detail)} & set(self.ids)
        for address in refused:
            del self.ids[address]
        self.rejected |= refused
        unkept = {_block(one.address) for one in error.diagnostics if one.address in self.ids} - self.unkept
        self.unkept |= unkept
        return bool(refused or unkept)

    def _import_id(self, change: Change) -> str | None:
        """Returns the id of the existing resource for an address; None if none exists or it cannot be
        determined yet.
        """
        if change.address in self.rejected or any(one.address == change.address for one in self.foreign):
            return None
        found = self.settled(change.address, change.type, change.after)
        if not found:
            return None
        if not found[0].is_ours:
            self.foreign.append(Foreign(change.address, found[0].id))
            return None
        kept = min(found, key=lambda one: (one.status is Status.FAILED, one.created, one.id))
        if len(found) > 1:
            ids = tuple(sorted(one.id for one in found))
            self.duplicates.append(Duplicate(change.type, kept.name, ids, kept.id))
        if kept.status is Status.FAILED:
            self.failed.append(change.address)
        return kept.id

    def settled(self, address: str, type: str, values: Values) -> Sequence[FoundResource]:
        """Returns the existing resources for an address, after waiting until AWS has finished creating or deleting
        them.
        """
        waited = 0.0
        while True:
            try:
                listed = FINDERS[type](self.search, values) if type in FINDERS else ()
            except NotKnownYet:
                return ()
            found = [one for one in listed if one.status is not Status.GONE]
            busy = [one for one in found if one.status in (Status.PENDING, Status.GOING)]
            if not busy:
                return found
            if waited >= SETTLE_SECONDS:
                word = busy[0].status.value
                message = f"{address} ({busy[0].id}) is still {word} after {SETTLE_SECONDS / 60:.0f} minutes"
                raise TerraformFailed(message, "look at it in the AWS console, then run the command again")
            if self.terraform.stop.count:
                raise Interrupted("stopped while recovering; nothing was changed", "run the command again")
            if waited % 60 == 0:
                self.terraform.on_event(
                    TerraformNote(f"waiting for {address} ({busy[0].id}), which is {busy[0].status.value}")
                )
            self.clock.wait(POLL_SECONDS)
            waited += POLL_SECONDS


def _block(address: str) -> str:
    """Returns the HCL block labels of an address: `"aws_vpc" "main"` for `aws_vpc.main["a"]`."""
    type, name = address.partition("[")[0].split(".")[-2:]
    return f'"{type}" "{name}"'


def remove_blocks(terraform: Terraform) -> None:
    """Removes the files of `write_blocks`: if an id in them disappeared later, every plan would fail."""
    for name in (RECOVERY, RECOVERY_OVERRIDE):
        (terraform.folder.path / name).unlink(missing_ok=True)


def _refused(detail: str) -> list[str]:
    """Returns the addresses for which Terraform found no object to import."""
    return [json.loads(f'"{found}"') for found in _NOT_THERE.findall(detail)]
