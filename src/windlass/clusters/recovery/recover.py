"""Restores consistency between state and AWS after a crash of Windlass, of Terraform, or of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from windlass.clusters.aws import Aws
from windlass.clusters.recovery import lock as locks
from windlass.clusters.recovery.discovery import Discovery, remove_blocks
from windlass.clusters.recovery.report import Duplicate, Imported, Orphan, RecoveryReport
from windlass.clusters.recovery.search import FoundResource, Search, Status, name_of
from windlass.clusters.recovery.table import COMPLETE_BY_NAME, FINDERS, LISTERS
from windlass.clusters.terraform import process
from windlass.clusters.terraform.changes import Action
from windlass.clusters.terraform.driver import ERRORED_STATE, RECOVERY, RECOVERY_OVERRIDE, UNFINISHED, Plan, Terraform
from windlass.clusters.terraform.errors import LockInfo, StateLocked, TerraformError, TerraformFailed
from windlass.clusters.terraform.events import TerraformNote
from windlass.clusters.terraform.folder import STATE, ClusterFolder, FolderError
from windlass.clusters.terraform.state import StateResource
from windlass.runs.clock import Clock

T = TypeVar("T")


def needs_recovery(folder: ClusterFolder) -> bool:
    """Whether a command on this cluster was killed, judging by files it left in the folder; does not query AWS."""
    marks = (UNFINISHED, ERRORED_STATE, RECOVERY, RECOVERY_OVERRIDE, process.RECORD, process.KILLED)
    return any((folder.path / name).exists() for name in marks)


def recover(terraform: Terraform, aws: Aws, *, break_lock: bool = False, clock: Clock | None = None) -> RecoveryReport:
    """Waits for a Terraform process that still runs, releases a leftover lock, and imports resources missing in the
    state.

    Must be called inside `ClusterFolder.locked`, before the plan of `up` and `down`. Creates and destroys nothing.
    `break_lock` releases a lock even if its holder is not provably gone. Raises StateLocked, TerraformError, AwsError.
    """
    return _Recovery(terraform, Search(aws, terraform.folder.name), break_lock, clock or Clock()).run()


class _Recovery:
    def __init__(self, terraform: Terraform, search: Search, break_lock: bool, clock: Clock) -> None:
        self._terraform, self._search, self._break_lock = terraform, search, break_lock
        self._found = Discovery(terraform, search, clock, self._plan)
        self._lock: LockInfo | None = None

    def run(self) -> RecoveryReport:
        self._follow()
        self._set_damaged_state_aside()
        with self._blocks():
            self._unlocked(self._terraform.push_errored_state)
            imported = self._found.run()
            if imported:
                with self._without_taints():
                    self._import(imported)
        untainted = self._untaint()
        duplicates, orphans = self._extra()
        self._terraform.mark_recovered()
        unknown = (*self._found.unknown, *sorted(self._search.unread))
        return RecoveryReport(self._lock, imported, untainted, duplicates, orphans, tuple(self._found.foreign), unknown)

    def _follow(self) -> None:
        try:
            self._terraform.follow()
        except TerraformError as error:  # an earlier failure does not end the recovery
            self._terraform.on_event(TerraformNote(f"the earlier command failed: {error.message}"))

    def _set_damaged_state_aside(self) -> None:
        """Renames a local state that was truncated by a kill. Terraform cannot read it; the recovery rebuilds it from
        AWS.
        """
        folder = self._terraform.folder
        try:
            folder.local_state()
        except FolderError:
            kept = (folder.path / STATE).rename(folder.path / f"{STATE}.damaged")
            self._terraform.on_event(
                TerraformNote(f"the state is damaged: kept as {kept}, and rebuilt from existing resources")
            )

    @contextmanager
    def _blocks(self) -> Iterator[None]:
        """Context in which a recovery may write its files; deletes them on entry and exit."""
        remove_blocks(self._terraform)
        try:
            yield
        finally:
            remove_blocks(self._terraform)

    def _unlocked(self, work: Callable[[], T]) -> T:
        """Runs a Terraform command; releases a leftover lock at most once."""
        try:
            return work()
        except StateLocked as error:
            if self._lock is not None:
                raise
            self._lock = locks.release(self._terraform, error, is_forced=self._break_lock)
            self._terraform.on_event(
                TerraformNote(f"released the lock of a command that no longer runs ({self._lock.doing})")
            )
            return work()

    def _plan(self) -> Plan:
        with self._quiet():
            try:
                return self._unlocked(lambda: self._terraform.plan(refresh=False))
            # A refresh reads attributes of interrupted resources that other resources need.
            except TerraformFailed:
                return self._unlocked(self._terraform.plan)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Hides events of internal plans, which the user could mistake for the real plan or for a failure."""
        loud = self._terraform.on_event
        self._terraform.on_event = lambda event: loud(event) if isinstance(event, TerraformNote) else None
        try:
            yield
        finally:
            self._terraform.on_event = loud

    @contextmanager
    def _without_taints(self) -> Iterator[None]:
        """Removes all taints during the import. The plan includes dependencies, which Terraform would replace if
        tainted.
        """
        tainted = [one.address for one in self._terraform.state() if one.is_tainted]
        for address in tainted:
            self._terraform.untaint(address)
        try:
            yield
        finally:
            for address in tainted:
                self._terraform.taint(address)

    def _import(self, imported: tuple[Imported, ...]) -> None:
        """Applies the import blocks. Raises TerraformFailed if the plan would destroy any resource."""
        self._terraform.on_event(
            TerraformNote(f"importing {len(imported)} existing resources that are missing in the state")
        )
        with self._quiet():
            plan = self._terraform.plan(targets=[one.address for one in imported])
        for one in plan.summary.changes:
            if one.action in (Action.DELETE, Action.REPLACE):
                message = f"the import of {one.address} would {one.action} it ({', '.join(one.changed)})"
                raise TerraformFailed(message, f"import it by hand in {self._terraform.folder.path}")
        with self._quiet():  # hides Terraform's warning about plans with targets
            self._terraform.apply(plan)
        remove_blocks(self._terraform)  # the override would hide changes from later plans
        for address in self._found.failed:
            self._terraform.taint(address)

    def _untaint(self) -> tuple[str, ...]:
        """Untaints complete resources that Terraform tainted because their creation was interrupted."""
        done = []
        for one in self._terraform.state():
            if one.is_tainted and one.address not in self._found.failed and self._is_complete(one):
                self._terraform.untaint(one.address)
                done.append(one.address)
        return tuple(done)

    def _is_complete(self, one: StateResource) -> bool:
        if one.type not in FINDERS:
            return False
        found = self._found.settled(one.address, one.type, one.values)
        if len(found) != 1 or found[0].status is not Status.READY:
            return False
        return found[0].has_status or one.type in COMPLETE_BY_NAME

    def _extra(self) -> tuple[tuple[Duplicate, ...], tuple[Orphan, ...]]:
        """Returns tagged resources that are missing in the state: duplicates of resources in the state, and orphans."""
        state = [one for one in self._terraform.state() if one.mode == "managed"]
        known = {one.id for one in state}
        names = {(one.type, name_of(one.values)): one.id for one in state}
        duplicates, orphans = [], []
        for type in sorted({one.type for one in state} & set(LISTERS)):
            for found in self._strays(type, known):
                if kept := names.get((type, found.name)):
                    duplicates.append(Duplicate(type, found.name, (kept, found.id), kept))
                else:
                    orphans.append(Orphan(type, found.id, found.name))
        return tuple(duplicates), tuple(orphans)

    def _strays(self, type: str, known: set[str]) -> list[FoundResource]:
        ended = (Status.GOING, Status.GONE)
        return [one for one in LISTERS[type](self._search) if one.id not in known and one.status not in ended]
