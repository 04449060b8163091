"""Reads volume mounts: claims become volumes, memory at /dev/shm becomes shared memory, others are reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from windlass.importers.draft import Draft
from windlass.importers.field_hints import Hint, hints
from windlass.importers.source import View
from windlass.spec.quantities import size

SHM: Final = "/dev/shm"


def mounted(draft: Draft, volumes: Mapping[str, View], mount: View) -> None:
    """Reads a volume mount, with the volumes of its pod."""
    name, path = mount.text("name"), mount.at("mountPath").value
    volume = volumes.get(name) if name is not None else None
    if volume is None or not isinstance(path, str):
        mount.report(f"volume {name}, which is not in the template", "volumes: [{claim: NAME, path: /data}]")
        return
    volume.text("name")
    claim = volume.at("persistentVolumeClaim")
    if claim:
        _claim(draft, claim, mount, path)
        return
    mount.report("where that was mounted", "see its volume", is_handled=True)
    kind = next((key for key in volume.value if key != "name"), "nothing")
    found = volume.at(kind)
    if kind == "emptyDir" and path.rstrip("/") == SHM:
        found.at("medium").take_if("Memory")
        limit = size(found.at("sizeLimit").value)
        if limit is not None:
            draft.put("resources.shm", limit, found.at("sizeLimit"))
    elif kind == "hostPath" and path.rstrip("/") == SHM:
        found.report(
            "shared memory of the machine itself",
            "each node has its own: resources: {shm: 8GiB} sets its size",
            is_handled=True,
        )
    else:
        unknown = Hint(f"a volume of kind {kind}", "volumes: [{claim: NAME, path: /data}] mounts a claim")
        hint = hints("volume").get(kind, unknown)
        of_host = f" {found.at('path').value}" if kind == "hostPath" else ""
        size_asked = str(found.at("volumeClaimTemplate", "spec", "resources", "requests", "storage").value or "SIZE")
        found.report(f"{hint.meaning}{of_host}, at {path}", hint.instead.replace("SIZE", size_asked))


def _claim(draft: Draft, claim: View, mount: View, path: str) -> None:
    name = claim.text("claimName")
    if name is not None:
        draft.add("volumes", {"claim": name, "path": path.rstrip("/") or path}, mount.at("mountPath"))
    for view in (claim.at("readOnly"), mount.at("readOnly")):
        if view.value is True:
            view.report(
                "mounted only to read", "ranks may write to it here, as far as the rights of the storage let them"
            )
        elif view:
            view.take()
    if mount.at("subPath"):
        mount.at("subPath").report(
            f"only the folder {mount.at('subPath').value} of claim {name}",
            "the whole claim is mounted: put the folder into the paths of the script",
        )
