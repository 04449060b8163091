"""Reads volumes: those that only the training container mounts become volumes of the job, others patch its pods."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from windlass.importers.draft import Draft
from windlass.importers.source import View
from windlass.spec.pod_patch import OWN_VOLUMES, ROOT
from windlass.spec.quantities import size

SHM: Final = "/dev/shm"
_USUAL: Final = {"defaultMode": 0o644, "optional": False}
"""Defaults of volumes of ConfigMaps and Secrets."""


def mounted(draft: Draft, volumes: Mapping[str, View], mount: View, shared: Collection[str]) -> None:
    """Reads a mount of the training container, with the volumes of its pod; `shared` are the names of volumes that have
    further mounts.
    """
    name, path = mount.text("name"), mount.at("mountPath").value
    volume = volumes.get(name) if name is not None else None
    if volume is None or not isinstance(path, str):
        mount.report(f"volume {name}, which is not in the template", "volumes: [{claim: NAME, path: /data}]")
        return
    volume.text("name")
    kind = next((key for key in volume.value if key != "name"), "emptyDir")
    source = volume.at(kind)
    if source.path in source.source.reported:
        mount.report("where that was mounted", "see its volume", is_handled=True)
    elif f"{path}/".startswith(f"{ROOT}/"):
        for view in (mount, source):
            view.report("a volume of Windlass", "nothing to do", is_handled=True)
    elif path.rstrip("/") == SHM:
        _shared_memory(draft, kind, source, mount)
    elif name in shared or not mount.value.keys() <= {"name", "mountPath", "subPath", "readOnly"}:
        if _put_volume(draft, volume, mount):
            draft.put_container({"volumeMounts": [{**mount.value, "name": volume_name(volume)}]}, mount)
    else:
        is_read_only = mount.at("readOnly").value or (kind == "persistentVolumeClaim" and source.at("readOnly").value)
        fields = {"path": path.rstrip("/") or path, "sub_path": mount.at("subPath").value, "read_only": is_read_only}
        given = {name: value for name, value in fields.items() if value not in (None, False)}
        if not draft.add("volumes", {**_source(kind, source), **given}, mount):
            return
        if kind == "persistentVolumeClaim":
            source.text("claimName")
            both = source.at("readOnly"), mount.at("readOnly")
            source.at("readOnly").take()
            for view in both if all(one.value is True for one in both) else ():
                view.remark("mounted only to read", "read_only: true says it", is_handled=True)
        else:
            volume.take()


def _shared_memory(draft: Draft, kind: str, source: View, mount: View) -> None:
    """Reads a volume at /dev/shm, where each pod of a run has its shared memory."""
    mount.report("where that was mounted", "see its volume", is_handled=True)
    if kind == "emptyDir":
        source.at("medium").take_if("Memory")
        limit = size(source.at("sizeLimit").value)
        if limit is not None:
            draft.put("resources.shm", limit, source.at("sizeLimit"))
    else:
        source.report(
            f"a volume of kind {kind} as shared memory",
            "each node has its own: resources: {shm: 8GiB} sets its size",
            is_handled=kind == "hostPath",
        )


def _source(kind: str, view: View) -> dict[str, Any]:
    """Returns the fields of a job's volume for the source of a volume."""
    given = view.value if isinstance(view.value, dict) else {}
    plain = {name: value for name, value in given.items() if _USUAL.get(name) != value}
    if kind == "persistentVolumeClaim":
        return {"claim": given.get("claimName")}
    if kind == "configMap" and plain.keys() == {"name"}:
        return {"config_map": plain["name"]}
    if kind == "secret" and plain.keys() == {"secretName"}:
        return {"secret": plain["secretName"]}
    return {"source": {kind: given}}


def volume_name(volume: View) -> str:
    """Returns the name of a volume in a patch: its own, unless Windlass uses it."""
    name = str(volume.at("name").value)
    return f"pod-{name}" if OWN_VOLUMES.fullmatch(name) else name


def _put_volume(draft: Draft, volume: View, mount: View) -> bool:
    """Adds a volume to the patch of the ranks' pods; returns whether it is there."""
    if draft.put_pod({"volumes": [{**volume.value, "name": volume_name(volume)}]}, mount):
        return bool(volume.take())
    return False


def block_device(draft: Draft, volumes: Mapping[str, View], device: View) -> None:
    """Reads a disk without a file system of the training container."""
    volume = volumes.get(str(device.at("name").value))
    if volume is not None and _put_volume(draft, volume, device):
        draft.put_container({"volumeDevices": [{**device.value, "name": volume_name(volume)}]}, device)


def init_container(draft: Draft, volumes: Mapping[str, View], view: View, at_shm: Collection[str]) -> None:
    """Reads a container that runs before the ranks, or next to them.

    `at_shm` are the names of volumes that the training container mounts as shared memory.
    """
    if not isinstance(view.value, dict):
        return
    fields = dict(view.value)
    if mounts := view.at("volumeMounts").each():
        for mount in mounts:
            volume = volumes.get(str(mount.at("name").value))
            if volume is not None and mount.at("name").value not in at_shm:
                _put_volume(draft, volume, view)
        fields["volumeMounts"] = list(_renamed(mounts, volumes, at_shm))
    draft.put_pod({"initContainers": [fields]}, view)


def _renamed(mounts: list[View], volumes: Mapping[str, View], at_shm: Collection[str]) -> Iterator[Any]:
    for mount in mounts:
        name = mount.at("name").value
        volume = volumes.get(str(name))
        ours = "shm" if name in at_shm else volume_name(volume) if volume is not None else name
        yield {**mount.value, "name": ours} if isinstance(mount.value, dict) else mount.value
