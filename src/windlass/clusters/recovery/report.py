"""Result of a recovery, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.clusters.terraform.errors import LockInfo


@dataclass(frozen=True, slots=True)
class Imported:
    """A resource that existed in AWS and was missing in the state."""

    address: str
    id: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Several resources with the same name; all except `kept` are in no state and bill."""

    type: str
    name: str
    ids: tuple[str, ...]
    kept: str
    """Id of the resource in the state."""

    @property
    def extra(self) -> tuple[str, ...]:
        """Ids of the resources that are in no state."""
        return tuple(one for one in self.ids if one != self.kept)


@dataclass(frozen=True, slots=True)
class Orphan:
    """A resource with the cluster's tag that is in no state and matches no address of the configuration."""

    type: str
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Foreign:
    """A resource with the name of an address but without the cluster's tag: not imported, and apply will fail."""

    address: str
    id: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The result of a recovery."""

    lock: LockInfo | None = None
    """The leftover lock that was released."""
    imported: tuple[Imported, ...] = ()
    untainted: tuple[str, ...] = ()
    """Addresses of complete resources that Terraform would have replaced because their creation was interrupted."""
    duplicates: tuple[Duplicate, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    unknown: tuple[str, ...] = ()
    """Addresses missing in the state whose type the recovery cannot search for, and objects that it may not read."""

    @property
    def is_clean(self) -> bool:
        """Whether the recovery found nothing that the user has to check."""
        return not (self.duplicates or self.orphans or self.foreign or self.unknown)
