"""Remembers volumes of a cluster: an audit finds them when the cluster that knew them is gone."""

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
    """Names of PersistentVolumes, which tags of the CSI drivers repeat."""
    ids: frozenset[str] = frozenset()
    """Ids of volumes of EBS, which snapshots name."""


def of_cluster(client: Client) -> Volumes:
    """The volumes that exist in the cluster. Raises Refused, Unreachable."""
    from windlass.clusters.components.resources import Resources

    found = list(Resources(client).list("v1", "PersistentVolume"))
    handles = (str(((one.get("spec") or {}).get("csi") or {}).get("volumeHandle", "")) for one in found)
    return Volumes(
        frozenset(str(one["metadata"]["name"]) for one in found),
        frozenset(one for one in handles if one.startswith("vol-")),
    )


def remember(named: ManagedCluster, found: Volumes) -> Volumes:
    """Add volumes to those that are remembered in the folder; gives all. Raises FolderError."""
    before = remembered(named)
    together = Volumes(before.names | found.names, before.ids | found.ids)
    if together != before:
        content = {"names": sorted(together.names), "ids": sorted(together.ids)}
        write_private(named.folder.path / FILE, json.dumps(content, indent=2).encode())
    return together


def remembered(named: ManagedCluster) -> Volumes:
    """The volumes that earlier commands have recorded. Raises FolderError for a damaged record."""
    path = named.folder.path / FILE
    try:
        found = json.loads(path.read_bytes()) if path.exists() else {}
        return Volumes(frozenset(map(str, found.get("names", ()))), frozenset(map(str, found.get("ids", ()))))
    except (ValueError, TypeError, AttributeError) as error:
        hint = "delete it; then an audit does not know volumes that only it names"
        raise FolderError(f"{path} is damaged", hint) from error
