"""Records the volumes of a cluster, so that an audit can find them after the cluster is deleted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from windlass.clusters.find import ManagedCluster
from windlass.clusters.terraform.folder import FolderError, write_private

if TYPE_CHECKING:
    from windlass.engines.kubernetes.access.client import Client

FILE: Final = "volumes.json"


@dataclass(frozen=True, slots=True)
class Volumes:
    """Volumes that a cluster has, or has had."""

    names: frozenset[str] = frozenset()
    """Names of PersistentVolumes, which CSI drivers repeat in tags."""
    ids: frozenset[str] = frozenset()
    """Ids of EBS volumes, which snapshots refer to."""


def of_cluster(client: Client) -> Volumes:
    """Returns the volumes that exist in the cluster. Raises Refused, Unreachable."""
    from windlass.clusters.components.resources import Resources

    found = list(Resources(client).list("v1", "PersistentVolume"))
    handles = (str(((one.get("spec") or {}).get("csi") or {}).get("volumeHandle", "")) for one in found)
    return Volumes(
        frozenset(str(one["metadata"]["name"]) for one in found),
        frozenset(one for one in handles if one.startswith("vol-")),
    )


def remember(named: ManagedCluster, found: Volumes) -> Volumes:
    """Adds volumes to the record in the folder; returns all recorded volumes. Raises FolderError."""
    before = remembered(named)
    together = Volumes(before.names | found.names, before.ids | found.ids)
    if together != before:
        content = {"names": sorted(together.names), "ids": sorted(together.ids)}
        write_private(named.folder.path / FILE, json.dumps(content, indent=2).encode())
    return together


def remembered(named: ManagedCluster) -> Volumes:
    """Returns the volumes recorded by earlier commands. Raises FolderError for a damaged record."""
    path = named.folder.path / FILE
    try:
        found = json.loads(path.read_bytes()) if path.exists() else {}
        return Volumes(frozenset(map(str, found.get("names", ()))), frozenset(map(str, found.get("ids", ()))))
    except (ValueError, TypeError, AttributeError) as error:
        hint = "delete it; an audit then misses volumes that are only recorded in it"
        raise FolderError(f"{path} is damaged", hint) from error
