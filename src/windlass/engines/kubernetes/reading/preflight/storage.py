"""Checks the storage classes of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from windlass.engines.checks import Check
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.access.optional import items
from windlass.engines.kubernetes.objects.quantity import Json
from windlass.plan.notes import Note

DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
SHARED: Final = ("efs", "fsx", "nfs", "cephfs", "file.csi.azure", "azurefile", "filestore", "lustre", "weka", "gpfs")
"""Parts of the names of provisioners with volumes that several nodes can mount at once."""
ALONE: Final = ("ebs", "pd.csi", "gce-pd", "disk.csi", "local-path", "rbd", "cinder", "hostpath", "no-provisioner")
"""Parts of the names of provisioners with volumes that only one node can mount at a time."""


def storage_checks(classes: Json) -> Iterator[Check]:
    """Yields checks of the storage classes: which provide volumes that several nodes can share, and which is the
    default.
    """
    shown, shared, has_default = [], False, False
    for one in classes["items"]:
        provisioner = str(one.get("provisioner", ""))
        has_default |= is_default(one)
        kind = _kind_of(provisioner)
        shared |= kind != "one node at a time"
        shown.append(f"{one['metadata']['name']}{' (default)' if is_default(one) else ''}: {provisioner}, {kind}")
    text = "; ".join(shown) or "no storage class"
    if not shown:
        fix = "results need an existing claim: kubernetes: {results: {claim: NAME}}"
        yield Check("storage", "warn", text, fix)
    elif not shared:
        fix = "results of several nodes need one that may be shared (ReadWriteMany): EFS, FSx, NFS, CephFS"
        yield Check("storage", "warn", text, fix)
    else:
        yield Check("storage", "ok", text)
    if shown and not has_default:
        fix = "name one in kubernetes.results.storage_class of the jobs, or have an administrator mark one as default"
        yield Check(
            "default storage",
            "warn",
            "no storage class is the default: results: with a size and no storage_class is refused",
            fix,
        )


def _kind_of(provisioner: str) -> str:
    """Returns, as text, whether several nodes can share a provisioner's volumes, judged by the provisioner's name."""
    if any(word in provisioner for word in SHARED):
        return "shared"
    return "one node at a time" if any(word in provisioner for word in ALONE) else "shared or not: unknown"


def class_missing(client: Client, name: str | None) -> Note | None:
    """Returns a note if the cluster lacks this storage class, or a default one if `name` is None. The API server
    accepts claims of any class.

    An empty name requests a claim without a class. Raises Unreachable.
    """
    try:
        if name is None and not any(map(is_default, client.find("storage.k8s.io/v1", "StorageClass")["items"])):
            # a claim without a class can be bound to an existing volume
            volumes = items(lambda: client.find("v1", "PersistentVolume"))
            fix = f"set storage_class: of results:, or of the claim; {client.kubectl} get storageclass lists them"
            text = (
                "the claim names no storage class, and the cluster has no default one: no volume is created for "
                "it, and its pods stay pending"
            )
            is_free = volumes is None or any(map(_is_free, volumes))
            return Note("storage-class-missing", text, fix, blocks=not is_free)
        if not name or client.get_if_exists("storage.k8s.io/v1", "StorageClass", name) is not None:
            return None
    except Refused:  # the user may not read storage classes
        return None
    text = f"the cluster has no storage class {name}: only an existing volume of that class can be bound"
    return Note("storage-class-missing", text, f"{client.kubectl} get storageclass lists them")


def is_default(storage_class: Json) -> bool:
    """Whether a class is the default for claims without a storage class."""
    return (storage_class["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"


def _is_free(volume: Json) -> bool:
    """Whether a claim without a storage class can be bound to this volume."""
    return volume.get("status", {}).get("phase") == "Available" and not volume["spec"].get("storageClassName")
