"""Creates a volume for each claim of the class `bed`, a folder of this machine, and removes it with the claim.

One of the programs of a test cluster: `python -m tests.cluster.bed.provisioner INDEX`.
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
    """Returns a volume that only this claim may bind. The nodes are one machine, so every access mode works."""
    meta, spec = claim["metadata"], claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": f"pvc-{meta['uid']}",
            # Without it, the controller manager would try to delete the folder itself, and refuse.
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
    """Returns whether a claim has the class `bed` and no volume."""
    return (claim["spec"].get("storageClassName"), claim["status"].get("phase")) == (CLASS, "Pending")


def provide(client: Api, volumes: Path, claim: Object) -> None:
    """Creates the folder and the volume of a pending claim."""
    if not waits(claim):
        return
    meta, now = claim["metadata"], None
    with suppressed(404):
        now = client.get(f"/api/v1/namespaces/{meta['namespace']}/persistentvolumeclaims/{meta['name']}")
    # A late event may be of a claim that was bound since, and deleted with its volume.
    if now is None or now["metadata"]["uid"] != meta["uid"] or not waits(now):
        return
    folder = volumes / f"pvc-{claim['metadata']['uid']}"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # the kubelet sets no group on host folders, and pods do not run as root
    client.ensure(VOLUMES, volume_for(claim, folder))


def reclaim(client: Api, volumes: Path, volume: Object) -> None:
    """Removes the folder and the volume of a deleted claim."""
    if volume["spec"].get("storageClassName") != CLASS or volume["status"].get("phase") != "Released":
        return
    name = volume["metadata"]["name"]
    # the folder is removed first: tests check it once the volume is deleted
    shutil.rmtree(volumes / name, ignore_errors=True)
    client.discard(f"{VOLUMES}/{name}")


def follow(client: Api, path: str, volumes: Path, act: Any) -> None:
    """Calls `act` for each change forever; after a lost connection, again for all existing objects."""
    while True:
        try:
            for event in client.watch(path, WATCH_SECONDS):
                if event["type"] in ("ADDED", "MODIFIED"):
                    act(client, volumes, event["object"])
        except (OSError, http.client.HTTPException, ApiError, ValueError) as problem:
            print(f"{path}: {problem!r}", flush=True)
            time.sleep(0.5)


def main(index: int) -> None:
    """Serves one test cluster until killed."""
    layout = Layout(index)
    client = api(layout, ADMIN)
    threading.Thread(target=follow, args=(client, VOLUMES, layout.volumes, reclaim), daemon=True).start()
    follow(client, CLAIMS, layout.volumes, provide)


if __name__ == "__main__":
    main(int(sys.argv[1]))
