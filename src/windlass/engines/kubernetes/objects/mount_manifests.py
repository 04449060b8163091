"""The volumes by which a cluster mounts data sets. Pure: the same set gives the same names.

mountpoint  Mountpoint for Amazon S3: reads objects of the bucket as files; changes no file in place
s3-files    S3 Files, by the driver of EFS from 3.0 on: a file system of NFS over a bucket
lustre      FSx for Lustre with a data repository association

PersistentVolume       the bucket or a file system that shows it: static, of the whole cluster, for the claim below
PersistentVolumeClaim  of the namespace of the runs

Runs share them, and no run removes them: `Retain` leaves the data where it is when the claim is deleted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.objects import labels as named
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.workloads.base import Manifest

if TYPE_CHECKING:
    from windlass.spec.sections import FileSystem

MOUNTPOINT, S3_FILES, LUSTRE = "mountpoint", "s3-files", "lustre"
DRIVERS: Final = {MOUNTPOINT: "s3.csi.aws.com", S3_FILES: "efs.csi.aws.com", LUSTRE: "fsx.csi.aws.com"}
ADD_ONS: Final = {
    MOUNTPOINT: "aws-mountpoint-s3-csi-driver",
    S3_FILES: "aws-efs-csi-driver",
    LUSTRE: "aws-fsx-csi-driver",
}
"""Of EKS, by which each driver is installed."""
CAPACITY: Final = "1Ti"
"""Required by the API, and ignored by these drivers."""
NAME_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class Way:
    """How one set can be mounted."""

    kind: str
    folder: str
    """The folder of the volume that has the set, relative; empty if the whole volume is the set."""
    file_system: FileSystem | None = None
    """The file system of the volume; None for Mountpoint, whose volume is the set itself."""

    @property
    def driver(self) -> str:
        """Name of the CSI driver."""
        return DRIVERS[self.kind]


@dataclass(frozen=True, slots=True)
class Mounted:
    """A data set as the pods of a run mount it."""

    name: str
    """The name of the data set."""
    claim: str
    folder: str
    """The folder of the claim; empty for the whole claim."""
    is_written: bool

    @property
    def path(self) -> str:
        """Where the ranks find it."""
        return f"{layout.MOUNTS}/{self.name}"


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume and its claim."""

    persistent: Manifest
    claim: Manifest

    @property
    def claim_name(self) -> str:
        """The name of the claim."""
        return str(self.claim["metadata"]["name"])


def volume(way: Way, source: str, namespace: str, user: int) -> Volume:
    """The volume of a way to mount `source`, for pods that run as `user`.

    Of one file system there is one volume in a namespace: two volumes with the same handle in one pod do not mount.
    """
    csi, options = _csi(way, source, user)
    number = hashlib.sha256(json.dumps([csi, options], sort_keys=True).encode()).hexdigest()[:NAME_DIGITS]
    name, claim = f"windlass-{namespace}-{number}", f"windlass-mount-{number}"
    csi.setdefault("volumeHandle", name)
    labels = named.of_setup(named.DATA)
    # The drivers of EFS and FSx take no ReadOnlyMany: pods mount read-only instead.
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeMode": "Filesystem"}
    persistent = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            **common,
            "capacity": {"storage": CAPACITY},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim},
            "mountOptions": options,
            "csi": csi,
        },
    }
    wanted = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": namespace, "labels": labels},
        "spec": {**common, "resources": {"requests": {"storage": CAPACITY}}, "volumeName": name},
    }
    return Volume(persistent, wanted)


def _csi(way: Way, source: str, user: int) -> tuple[dict[str, Any], list[str]]:
    """The source of a volume as its driver has it, and the mount options."""
    if way.file_system is None:
        bucket, _, prefix = source.removeprefix("s3://").partition("/")
        # Mountpoint gives files to one user, root unless it is named; `allow-other` lets that user in.
        options = ["read-only", "allow-other", f"uid={user}", f"gid={user}"]
        options += [f"prefix {prefix.rstrip('/')}/"] if prefix.rstrip("/") else []
        return {"driver": way.driver, "volumeAttributes": {"bucketName": bucket}}, options
    one = way.file_system
    if way.kind == S3_FILES:
        return {"driver": way.driver, "volumeHandle": f"s3files:{one.id}"}, []
    assert way.kind == LUSTRE
    attributes = {"dnsname": one.dns_name, "mountname": one.mount_name}
    return {"driver": way.driver, "volumeHandle": one.id, "volumeAttributes": attributes}, ["flock"]


def pod_volumes(sets: tuple[Mounted, ...]) -> Iterator[tuple[str, str, Manifest, Manifest]]:
    """Volumes of a pod: name, mount path, source, further fields of the mount. Sets of one claim share a volume."""
    places = {claim: at for at, claim in enumerate(dict.fromkeys(one.claim for one in sets))}
    for one in sets:
        more: Manifest = {"subPath": one.folder} if one.folder else {}
        if not one.is_written:
            more["readOnly"] = True
        yield f"mount-{places[one.claim]}", one.path, {"persistentVolumeClaim": {"claimName": one.claim}}, more
