"""Builds storage classes, and the volumes and claims for file systems created by Terraform. Pure."""

from __future__ import annotations

from typing import Any, Final

from windlass.clusters.components.values import ClusterValues, Efs, Fsx

GP3: Final = "gp3"
EFS: Final = "efs"
FSX: Final = "fsx"
"""Name of the claim for FSx for Lustre in the namespace of the runs."""
EFS_GIB: Final = 1024
"""Size in GiB that Kubernetes requires in claims for EFS; EFS ignores it."""
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"


def objects(values: ClusterValues) -> list[dict[str, Any]]:
    """Returns all storage objects that runs need in this cluster."""
    made = [_gp3(values.disk_key_arn)]
    if values.efs is not None:
        made += [_efs_class(values.efs), *(_efs_claim(values.efs, values) if values.efs.access_point_id else ())]
    if values.fsx is not None:
        made += _fsx_claim(values.fsx, values)
    return made


def _class(name: str, provisioner: str, parameters: dict[str, str], **more: Any) -> dict[str, Any]:
    meta = {"name": name, **more.pop("meta", {})}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": meta,
        "provisioner": provisioner,
        "parameters": parameters,
        "reclaimPolicy": "Delete",
        **more,
    }


def _gp3(key_arn: str) -> dict[str, Any]:
    return _class(
        GP3,
        "ebs.csi.aws.com",
        {"type": "gp3", "encrypted": "true", **({"kmsKeyId": key_arn} if key_arn else {})},
        meta={"annotations": {DEFAULT_CLASS: "true"}},
        # Waits until a pod is scheduled: an EBS volume must be created in the zone of the pod's node.
        volumeBindingMode="WaitForFirstConsumer",
        allowVolumeExpansion=True,
    )


def _efs_class(efs: Efs) -> dict[str, Any]:
    return _class(
        EFS,
        "efs.csi.aws.com",
        {
            "provisioningMode": "efs-ap",
            "fileSystemId": efs.file_system_id,
            "directoryPerms": "700",
            "basePath": "/claims",
            "ensureUniqueDirectory": "true",
        },
    )


def _efs_claim(efs: Efs, values: ClusterValues) -> list[dict[str, Any]]:
    driver = {"driver": "efs.csi.aws.com", "volumeHandle": f"{efs.file_system_id}::{efs.access_point_id}"}
    return _pair(EFS, values, EFS_GIB, driver, ["tls"])


def _fsx_claim(fsx: Fsx, values: ClusterValues) -> list[dict[str, Any]]:
    driver = {
        "driver": "fsx.csi.aws.com",
        "volumeHandle": fsx.file_system_id,
        "volumeAttributes": {"dnsname": fsx.dns_name, "mountname": fsx.mount_name},
    }
    return _pair(FSX, values, fsx.size_gib, driver, ["flock"])


def _pair(claim: str, values: ClusterValues, gib: int, driver: dict[str, Any], options: list[str]) -> list[Any]:
    """Returns a PersistentVolume and the only claim that may bind it. The volume is retained: Terraform created its
    storage.
    """
    # PersistentVolumes are cluster-scoped; the cluster's name prevents collisions.
    volume, size = f"windlass-{values.name}-{claim}", f"{gib}Gi"
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
         "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
                  "persistentVolumeReclaimPolicy": "Retain", "mountOptions": options, "csi": driver,
                  "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim,
                               "namespace": values.namespace}}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
         "metadata": {"name": claim, "namespace": values.namespace},
         "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": volume,
                  "resources": {"requests": {"storage": size}}}},
    ]  # fmt: skip
