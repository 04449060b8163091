"""Reads what a container mounts: a claim is storage of the job, memory at /dev/shm shared memory, the rest is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from windlass.spec.importing.draft import Draft
from windlass.spec.importing.quantities import size
from windlass.spec.importing.source import View

SHM: Final = "/dev/shm"


def mounted(draft: Draft, volumes: Mapping[str, View], mount: View) -> None:
    """Read what a container mounts of the volumes of its pod."""
    name, path = mount.text("name"), mount.at("mountPath").value
    volume = volumes.get(name) if name is not None else None
    if volume is None or not isinstance(path, str):
        mount.leave(f"volume {name}, which is not in the template", "volumes: [{claim: NAME, path: /data}]")
        return
    volume.text("name")
    claim = volume.at("persistentVolumeClaim")
    if claim:
        _claim(draft, claim, mount, path)
    elif volume.at("emptyDir").value is not None:
        _scratch(draft, volume.at("emptyDir"), mount, path)
    elif volume.at("hostPath"):
        _host(draft, volume.at("hostPath"), mount, path)
    else:
        kind = next((key for key in volume.value if key != "name"), "nothing")
        _other(draft, kind, volume.at(kind), mount, path)


def _claim(draft: Draft, claim: View, mount: View, path: str) -> None:
    name = claim.text("claimName")
    if name is not None and draft.add("volumes", {"claim": name, "path": path.rstrip("/") or path}, mount):
        mount.text("mountPath")
    for view in (claim.at("readOnly"), mount.at("readOnly")):
        if view.value is True:
            view.leave("mounted only to read", "it may be written to here; the storage's own rights hold", is_ours=True)
        elif view:
            view.take()
    if mount.at("subPath"):
        mount.at("subPath").leave(
            f"only the folder {mount.at('subPath').value} of claim {name}",
            "the whole claim is mounted: put the folder into the paths of the script",
        )


def _scratch(draft: Draft, empty: View, mount: View, path: str) -> None:
    mount.leave("where that was mounted", "see its volume", is_ours=True)
    if path.rstrip("/") == SHM:
        if empty.at("medium").value == "Memory":
            empty.at("medium").take()
        limit = size(empty.at("sizeLimit").value)
        if limit is not None and draft.put("resources.shm", limit, empty.at("sizeLimit")):
            empty.at("sizeLimit").take()
        return
    empty.source.leave(
        empty.path,
        f"an empty folder of the pod at {path}",
        "pods have a folder of their own to write in: $HOME, and /tmp where the image lets them",
    )


def _host(draft: Draft, host: View, mount: View, path: str) -> None:
    if path.rstrip("/") == SHM:
        host.leave(
            "shared memory of the machine itself",
            "each node has its own: resources: {shm: 8GiB} says how much",
            is_ours=True,
        )
    else:
        host.leave(
            f"the folder {host.at('path').value} of the machine, at {path}",
            "put the data into a claim: volumes: [{claim: NAME, path: /data}]",
        )
    mount.leave("where that was mounted", "see its volume", is_ours=True)


def _other(draft: Draft, kind: str, view: View, mount: View, path: str) -> None:
    words = {
        "configMap": ("files of a ConfigMap", "put them into the folder of the job file: it travels with the job"),
        "secret": ("files of a secret", "secrets: [NAME] makes each key a variable"),
        "nfs": ("a folder of an NFS server", "make a claim for it: volumes: [{claim: NAME, path: /data}]"),
        "csi": ("storage of a driver", "make a claim for it: volumes: [{claim: NAME, path: /data}]"),
        "ephemeral": (
            "storage that is made for each pod",
            "kubernetes: {results: {size: 20GiB}} makes one claim for the run",
        ),
        "projected": ("files from several sources", "put them into the folder of the job file, or secrets:"),
        "downwardAPI": ("what the cluster knows of the pod", "ranks have RANK, NODE_RANK and MASTER_ADDR"),
    }.get(kind, (f"a volume of kind {kind}", "volumes: [{claim: NAME, path: /data}] mounts a claim"))
    view.leave(f"{words[0]}, at {path}", words[1])
    mount.leave("where that was mounted", "see its volume", is_ours=True)
