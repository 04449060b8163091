"""What a recovery has found and done, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.clusters.terraform.errors import LockInfo


@dataclass(frozen=True, slots=True)
class Imported:
    """A resource that existed and was not in the state."""

    address: str
    id: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Several resources carry the name of one; all but `kept` are in no state and bill."""

    type: str
    name: str
    ids: tuple[str, ...]
    kept: str
    """The id that is in the state."""

    @property
    def extra(self) -> tuple[str, ...]:
        """Ids that are in no state."""
        return tuple(one for one in self.ids if one != self.kept)


@dataclass(frozen=True, slots=True)
class Orphan:
    """A resource with the cluster's tag that is in no state and of no address of the configuration."""

    type: str
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Foreign:
    """A resource that has the name of an address and not the cluster's tag: it is not imported, and apply will fail."""

    address: str
    id: str


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The result of a recovery."""

    lock: LockInfo | None = None
    """The leftover lock that was released."""
    imported: tuple[Imported, ...] = ()
    untainted: tuple[str, ...] = ()
    """Addresses of resources that are complete, and that Terraform would have replaced since their creation was
    interrupted."""
    duplicates: tuple[Duplicate, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    unknown: tuple[str, ...] = ()
    """Addresses that are not in the state and of types that recovery cannot look for."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found that the user has to look at."""
        return not (self.duplicates or self.orphans or self.foreign or self.unknown)
