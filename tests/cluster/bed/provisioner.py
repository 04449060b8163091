"""Turns each claim of the class `bed` into a volume that is a folder of this machine, and removes it with the claim.

One of the programs of a bed: `python -m tests.cluster.bed.provisioner INDEX`.
"""

from __future__ import annotations

import http.client
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.cluster.bed.api import Api, ApiError, Object, suppressed
from tests.cluster.bed.layout import Layout
from tests.cluster.bed.users import ADMIN, api

CLASS = "bed"
PROVISIONER = "bed.windlass.test/folder"
CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
WATCH_SECONDS = 300
STORAGE_CLASS: Object = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": CLASS},
    "provisioner": PROVISIONER,
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "Immediate",
}


def volume_for(claim: Object, folder: Path) -> Object:
    """The volume that only this claim may bind. Nodes are one machine, so every access mode is true."""
    meta, spec = claim["metadata"], claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": f"pvc-{meta['uid']}",
            # Without it the controller-manager would try to delete the folder by itself, and refuse.
            "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
        },
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": "Delete",
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
            },
        },
    }


def waits(claim: Object) -> bool:
    """Whether it is a claim of our class without a volume."""
    return (claim["spec"].get("storageClassName"), claim["status"].get("phase")) == (CLASS, "Pending")


def provide(client: Api, volumes: Path, claim: Object) -> None:
    """Make the folder and the volume of a claim that waits for one."""
    if not waits(claim):
        return
    meta, now = claim["metadata"], None
    with suppressed(404):
        now = client.get(f"/api/v1/namespaces/{meta['namespace']}/persistentvolumeclaims/{meta['name']}")
    # What is told late may be of a claim that has been bound since, and deleted with its volume.
    if now is None or now["metadata"]["uid"] != meta["uid"] or not waits(now):
        return
    folder = volumes / f"pvc-{claim['metadata']['uid']}"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # the kubelet gives no group to a folder of the host, and pods are not root
    client.ensure(VOLUMES, volume_for(claim, folder))


def reclaim(client: Api, volumes: Path, volume: Object) -> None:
    """Remove what a claim has left."""
    if volume["spec"].get("storageClassName") != CLASS or volume["status"].get("phase") != "Released":
        return
    name = volume["metadata"]["name"]
    shutil.rmtree(volumes / name, ignore_errors=True)  # first: who sees that the volume is gone may look for its folder
    client.discard(f"{VOLUMES}/{name}")


def follow(client: Api, path: str, volumes: Path, act: Any) -> None:
    """Act on each change for ever; after a lost connection, on all there is once more."""
    while True:
        try:
            for event in client.watch(path, WATCH_SECONDS):
                if event["type"] in ("ADDED", "MODIFIED"):
                    act(client, volumes, event["object"])
        except (OSError, http.client.HTTPException, ApiError, ValueError) as problem:
            print(f"{path}: {problem!r}", flush=True)
            time.sleep(0.5)


def main(index: int) -> None:
    """Serve one bed until killed."""
    layout = Layout(index)
    client = api(layout, ADMIN)
    threading.Thread(target=follow, args=(client, VOLUMES, layout.volumes, reclaim), daemon=True).start()
    follow(client, CLAIMS, layout.volumes, provide)


if __name__ == "__main__":
    main(int(sys.argv[1]))
