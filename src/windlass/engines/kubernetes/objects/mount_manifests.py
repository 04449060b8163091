"""The volumes by which a cluster mounts data sets. Pure: the same set gives the same names.

PersistentVolume       the bucket or a file system that shows it: static, of the whole cluster, for the claim below
PersistentVolumeClaim  of the namespace of the runs

Runs share them, and no run removes them: `Retain` leaves the data where it is when the claim is deleted.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from windlass.engines.kubernetes.objects import labels as named
from windlass.engines.kubernetes.objects.mount_choice import LUSTRE, S3_FILES, Way
from windlass.engines.kubernetes.objects.workloads.base import Manifest

CAPACITY: Final = "1Ti"
"""Required by the API, and ignored by these drivers."""
NAME_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume and its claim."""

    persistent: Manifest
    claim: Manifest

    @property
    def claim_name(self) -> str:
        """Of the namespace."""
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
