"""Applies strategic merge patches to pod templates, and refuses those that would break a run. Pure.

The engine applies the patches of jobs and targets; importers write patches that it accepts.

A patch merges as in `kubectl patch`: mappings merge by field, lists of `MERGE_KEYS` by the key of their items, other
lists are replaced, null removes a field, `$patch: delete` an item. New items come last, and not first as there, so that
a variable can refer to those of the run. A value that Windlass sets may be changed only at the paths in `CHANGEABLE`:
the ranks depend on all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from windlass.errors import EngineError

Manifest = dict[str, Any]
NODE: Final = "node"
"""Name of the ranks' container in patches, whatever the workload kind calls it."""
SUPERVISOR: Final = "supervisor"
"""Name of the container of Windlass's own pods in patches."""
ROOT: Final = "/windlass"
"""Folder in pods into which only Windlass mounts volumes."""
OWN_VARIABLES: Final = ("HOME",)
"""Variables of the ranks' container that Windlass sets, in addition to those of the ranks."""
OWN_VOLUMES: Final = re.compile(r"boot|program|code|attempt|work|shm|results|data|end|tmp|key|(?:mount|volume)-\d+")
"""Names of the volumes that the pods of a run have before they are patched."""
MERGE_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "env": "name",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
    "resourceClaims": "name",
}
"""Field that identifies the items of a list, by name of the list; of the Kubernetes API, `patchMergeKey`."""
CHANGEABLE: Final = (
    "spec.securityContext",
    "spec.nodeSelector",
    "spec.tolerations",
    "spec.affinity",
    "spec.topologySpreadConstraints",
    "spec.imagePullSecrets",
    "spec.enableServiceLinks",
    "spec.automountServiceAccountToken",
    "spec.containers.securityContext",
    "spec.containers.resources",
)
"""Paths of values that a patch may change or remove, with everything below them."""
FIELDS: Final = {
    "spec.restartPolicy": "restarts:",
    "spec.activeDeadlineSeconds": "timeout:",
    "spec.terminationGracePeriodSeconds": "grace:",
    "spec.serviceAccountName": "kubernetes.service_account:",
    "spec.serviceAccount": "kubernetes.service_account:",
    "spec.priorityClassName": "priority:",
    "spec.subdomain": "",
    "spec.hostname": "",
    "spec.setHostnameAsFQDN": "",
    "spec.shareProcessNamespace": "",
    "spec.ephemeralContainers": "",
    "spec.containers.image": "image:",
    "spec.containers.command": "run: or command:",
    "spec.containers.args": "run: or command:",
    "spec.containers.workingDir": "",
    "spec.containers.envFrom": "secrets: or kubernetes.env_from:",
    "spec.containers.stdin": "",
    "spec.containers.tty": "",
    "spec.containers.restartPolicy": "restarts:",
    "spec.containers.terminationMessagePath": "",
    "spec.containers.terminationMessagePolicy": "",
}
"""Paths that no patch may set, each with the field of a job that sets it, if there is one."""


class PatchRefused(EngineError):
    """A patch would break a run. `path` is the path in the patch, such as `spec.containers[0].command`."""

    def __init__(self, path: str, why: str, fix: str) -> None:
        super().__init__(f"{path}: {why}", fix)
        self.path = path
        self.why = why


def patched(template: Manifest, patches: Iterable[Mapping[str, Any]], container: str) -> Manifest:
    """Returns the pod template with the patches, applied one after the other; `container` is the name that patches use
    for the template's only container. Raises PatchRefused.

    A patch may change what an earlier one has set.
    """
    [only] = template["spec"]["containers"]
    merged = ours = {**template, "spec": {**template["spec"], "containers": [{**only, "name": container}]}}
    for patch in patches:
        merged = _Merge(container).mapping(merged, ours, patch, "", "")
    [changed] = merged["spec"]["containers"]
    spec = {**merged["spec"], "containers": [{**changed, "name": only["name"]}]}
    if spec.get("hostNetwork"):  # Otherwise a pod in the host's network does not find the names of the other pods.
        spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    return {**merged, "spec": spec}


def combined(first: Mapping[str, Any], second: Mapping[str, Any], container: str) -> Manifest:
    """Returns one patch for two that set fields, applied one after the other. Raises PatchRefused."""
    return _Merge(container).mapping(first, {}, second, "", "")


class _Merge:
    """One merge. Paths are passed twice: as the user sees them, and without the indices of lists. `ours` is the value
    that Windlass sets at a path.
    """

    def __init__(self, container: str) -> None:
        self._container = container

    def mapping(
        self, base: Mapping[str, Any], ours: Mapping[str, Any], patch: Mapping[str, Any], shown: str, path: str
    ) -> Manifest:
        """Returns a mapping with the fields of its patch."""
        merged = dict(base)
        for name, value in patch.items():
            at, below = f"{shown}.{name}".lstrip("."), f"{path}.{name}".lstrip(".")
            self._check(ours, name, value, at, below)
            if value is None:
                merged.pop(name, None)
            elif isinstance(value, Mapping):
                merged[name] = self.mapping(_mapping(base.get(name)), _mapping(ours.get(name)), value, at, below)
            elif name in MERGE_KEYS:
                old = base.get(name, ()), ours.get(name, ())
                merged[name] = self._items(*old, value, at, below, MERGE_KEYS[name])
            else:
                merged[name] = value
        return merged

    def _check(self, ours: Mapping[str, Any], name: object, value: Any, at: str, path: str) -> None:
        """Refuses a field that the ranks depend on."""
        if not isinstance(name, str):
            raise PatchRefused(at, "is a number, and names of fields are text", "quote it")
        if name.startswith("$"):
            raise PatchRefused(
                at, "is a directive that is not supported", "null removes a field, $patch: delete an item of a list"
            )
        # Pods of Windlass itself exist also without a job, whose `priority` they have otherwise.
        is_own_priority = path == "spec.priorityClassName" and self._container == SUPERVISOR
        if path in FIELDS and not is_own_priority:
            fix = f"use {FIELDS[path]}" if FIELDS[path] else "leave it out"
            raise PatchRefused(at, "is set by Windlass", fix)
        if path.startswith("metadata.") and not path.startswith(("metadata.labels", "metadata.annotations")):
            raise PatchRefused(at, "is set by Kubernetes", "of metadata, a patch sets labels and annotations")
        if "windlass.dev/" in name and path.startswith("metadata."):
            raise PatchRefused(at, "has a prefix that is not for users", "choose another prefix")
        is_list = name in MERGE_KEYS
        if is_list and value is not None and not isinstance(value, list | tuple):
            raise PatchRefused(at, "is a list in a pod", f"write [{{{MERGE_KEYS[name]}: …}}]")
        merges = is_list or (isinstance(value, Mapping) and isinstance(ours.get(name), Mapping))
        is_ours = name in ours and ours[name] != value and not path.startswith(CHANGEABLE) and not is_own_priority
        if is_ours and (not merges or value is None):
            what = "has items or fields" if isinstance(ours[name], Mapping | list | tuple) else f"is {ours[name]!r}"
            raise PatchRefused(at, f"{what} in every pod of a run", "leave it out")

    def _items(self, base: Any, ours: Any, patch: Any, shown: str, path: str, key: str) -> list[Manifest]:
        """Returns a list whose items have a key, with the items of its patch; those of the patch that are new come
        last.
        """
        merged, known = ({one[key]: one for one in items} for items in (base, ours))
        for index, one in enumerate(patch):
            self._check_item(known, one, f"{shown}[{index}]", path, key)
        deleted = {one[key] for one in patch if one.get("$patch") == "delete"}
        merged = {name: one for name, one in merged.items() if name not in deleted}
        for index, one in enumerate(patch):
            if "$patch" not in one:
                name, at = one[key], f"{shown}[{index}]"
                merged[name] = self.mapping(merged.get(name, {}), known.get(name, {}), one, at, path)
        return list(merged.values())

    def _check_item(self, known: Mapping[Any, Manifest], one: Any, at: str, path: str, key: str) -> None:
        """Refuses an item of a list without a key, or one that the ranks depend on."""
        from windlass.spec.names import CONTRACT_ENV  # a supervisor in the cluster has no pydantic

        if not isinstance(one, Mapping) or not isinstance(one.get(key), int if key == "containerPort" else str):
            raise PatchRefused(at, f"needs the field {key}, which tells the items of this list apart", f"add {key}:")
        ours, is_delete = known.get(one[key]), one.get("$patch") == "delete"
        if "$patch" in one and not is_delete:
            raise PatchRefused(f"{at}.$patch", f"is {one['$patch']!r}", "supported is $patch: delete of an item")
        if path == "spec.containers":
            if one["name"] != self._container:
                raise PatchRefused(
                    f"{at}.name",
                    f"is {one['name']}, and a pod of a run has one container, {self._container}",
                    "write a sidecar into initContainers, with restartPolicy: Always",
                )
            if is_delete:
                raise PatchRefused(at, "removes the container of the ranks", "leave it out")
        elif ours is not None and ours != one and not path.startswith(CHANGEABLE):
            raise PatchRefused(at, "changes or removes an item that Windlass sets", f"choose another {key}")
        if path == "spec.containers.env" and (one["name"] in CONTRACT_ENV or one["name"].startswith("WINDLASS_")):
            raise PatchRefused(f"{at}.name", f"is {one['name']}, which Windlass sets", "leave it out")
        if path == "spec.containers.volumeMounts" and f"{one['mountPath']}/".startswith(f"{ROOT}/"):
            raise PatchRefused(f"{at}.mountPath", f"is below {ROOT}, which Windlass uses", "choose another path")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
