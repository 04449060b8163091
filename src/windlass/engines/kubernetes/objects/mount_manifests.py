"""Builds the volumes through which a cluster mounts data sets. Pure: the same set gives the same names.

mountpoint  Mountpoint for Amazon S3: reads objects of the bucket as files; cannot change a file in place
s3-files    S3 Files, by the EFS driver from version 3.0 on: an NFS file system over a bucket
lustre      FSx for Lustre with a data repository association

PersistentVolume       the bucket, or a file system over it: static, cluster-wide, bound to the claim below
PersistentVolumeClaim  in the namespace of the runs

Runs share both objects, and no run removes them. The volume's reclaim policy `Retain` keeps the data if the claim is
deleted.
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
"""EKS add-on that installs the driver of each kind of volume."""
CAPACITY: Final = "1Ti"
"""Capacity of the volumes: required by the API, and ignored by these drivers."""
NAME_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class MountMethod:
    """A method of mounting one data set."""

    kind: str
    folder: str
    """Folder of the set inside the volume, relative; empty if the whole volume is the set."""
    file_system: FileSystem | None = None
    """The file system of the volume; None for Mountpoint, whose volume is the set itself."""

    @property
    def driver(self) -> str:
        """Name of the CSI driver."""
        return DRIVERS[self.kind]


@dataclass(frozen=True, slots=True)
class Mounted:
    """A data set that is mounted into the pods of a run."""

    name: str
    claim: str
    folder: str
    """Folder of the set inside the claim; empty for the whole claim."""
    is_written: bool

    @property
    def path(self) -> str:
        """Mount path of the set in the pods."""
        return f"{layout.MOUNTS}/{self.name}"


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume and the claim that is bound to it."""

    persistent: Manifest
    claim: Manifest

    @property
    def claim_name(self) -> str:
        """Name of the claim of the volume."""
        return str(self.claim["metadata"]["name"])


def volume(method: MountMethod, source: str, namespace: str, user: int) -> Volume:
    """Returns the volume that mounts `source` by this method, for pods that run as the user id `user`.

    Data sets on the same file system share one volume per namespace: a pod cannot mount two volumes with the same
    handle.
    """
    csi, options = _csi(method, source, user)
    number = hashlib.sha256(json.dumps([csi, options], sort_keys=True).encode()).hexdigest()[:NAME_DIGITS]
    name, claim = f"windlass-{namespace}-{number}", f"windlass-mount-{number}"
    csi.setdefault("volumeHandle", name)
    labels = named.of_setup(named.DATA)
    # The EFS and FSx drivers do not support ReadOnlyMany; pods mount these volumes read-only instead.
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


def _csi(method: MountMethod, source: str, user: int) -> tuple[dict[str, Any], list[str]]:
    """Returns the `csi` source of a volume for its driver, and the mount options."""
    if method.file_system is None:
        bucket, _, prefix = source.removeprefix("s3://").partition("/")
        # By default, Mountpoint's files belong to root, and no other user can access them.
        options = ["read-only", "allow-other", f"uid={user}", f"gid={user}"]
        options += [f"prefix {prefix.rstrip('/')}/"] if prefix.rstrip("/") else []
        return {"driver": method.driver, "volumeAttributes": {"bucketName": bucket}}, options
    one = method.file_system
    if method.kind == S3_FILES:
        return {"driver": method.driver, "volumeHandle": f"s3files:{one.id}"}, []
    assert method.kind == LUSTRE
    attributes = {"dnsname": one.dns_name, "mountname": one.mount_name}
    return {"driver": method.driver, "volumeHandle": one.id, "volumeAttributes": attributes}, ["flock"]


def pod_volumes(sets: tuple[Mounted, ...]) -> Iterator[tuple[str, str, Manifest, Manifest]]:
    """Yields the volumes of a pod as name, mount path, volume source, and further fields of the mount. Data sets in the
    same claim share a volume.
    """
    places = {claim: at for at, claim in enumerate(dict.fromkeys(one.claim for one in sets))}
    for one in sets:
        more: Manifest = {"subPath": one.folder} if one.folder else {}
        if not one.is_written:
            more["readOnly"] = True
        yield f"mount-{places[one.claim]}", one.path, {"persistentVolumeClaim": {"claimName": one.claim}}, more
