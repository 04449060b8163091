"""Applies strategic merge patches to pod templates, and refuses those that would break a run. Pure.

A patch merges as in `kubectl patch`: mappings merge by field, lists of `MERGE_KEYS` by the key of their items, other
lists are replaced, null removes a field, `$patch: delete` an item. A value that Windlass sets may be changed only at
the paths in `CHANGEABLE`: the ranks depend on all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.labels import SUPERVISOR
from windlass.engines.kubernetes.objects.workloads.base import Manifest
from windlass.errors import EngineError

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


def patched(template: Manifest, patch: Mapping[str, Any], container: str) -> Manifest:
    """Returns the pod template with the patch; `container` is the name that the patch uses for the template's only
    container. Raises PatchRefused.
    """
    [ours] = template["spec"]["containers"]
    renamed = {**template["spec"], "containers": [{**ours, "name": container}]}
    merged = _Merge(container).mapping({**template, "spec": renamed}, patch, "", "")
    [ours] = merged["spec"]["containers"]
    spec = {**merged["spec"], "containers": [{**ours, "name": template["spec"]["containers"][0]["name"]}]}
    if spec.get("hostNetwork"):  # Otherwise a pod in the host's network does not find the names of the other pods.
        spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    return {**merged, "spec": spec}


class _Merge:
    """One merge. Paths are passed twice: as the user sees them, and without the indices of lists."""

    def __init__(self, container: str) -> None:
        self._container = container

    def mapping(self, base: Mapping[str, Any], patch: Mapping[str, Any], shown: str, path: str) -> Manifest:
        """Returns a mapping with the fields of its patch."""
        if "$patch" in patch:
            if base:
                raise PatchRefused(f"{shown}.$patch".lstrip("."), "replaces fields that a run needs", "name each field")
            patch = {name: value for name, value in patch.items() if name != "$patch"}
        merged = dict(base)
        for name, value in patch.items():
            at, below = f"{shown}.{name}".lstrip("."), f"{path}.{name}".lstrip(".")
            self._check(base, name, value, at, below)
            if value is None:
                merged.pop(name, None)
            elif isinstance(value, Mapping):
                old = base.get(name)
                merged[name] = self.mapping(old if isinstance(old, Mapping) else {}, value, at, below)
            elif name in MERGE_KEYS and isinstance(value, list | tuple):
                merged[name] = self._items(base.get(name, []), value, at, below, MERGE_KEYS[name])
            else:
                merged[name] = value
        return merged

    def _check(self, base: Mapping[str, Any], name: str, value: Any, at: str, path: str) -> None:
        """Refuses a field that the ranks depend on."""
        if name.startswith("$"):
            raise PatchRefused(at, "is a directive that is not supported", "supported is $patch: delete of an item")
        # Pods of Windlass itself exist also without a job, whose `priority` they have otherwise.
        is_own_priority = path == "spec.priorityClassName" and self._container == SUPERVISOR
        if path in FIELDS and not is_own_priority:
            fix = f"use {FIELDS[path]}" if FIELDS[path] else "leave it out"
            raise PatchRefused(at, "is set by Windlass", fix)
        if "windlass.dev/" in name and path.startswith("metadata."):
            raise PatchRefused(at, "has a prefix that is not for users", "choose another prefix")
        merges = isinstance(value, Mapping) or name in MERGE_KEYS
        is_ours = name in base and base[name] != value and not path.startswith(CHANGEABLE) and not is_own_priority
        if is_ours and (not merges or value is None):
            raise PatchRefused(at, f"is {base[name]!r} in every pod of a run", "leave it out")

    def _items(self, base: Any, patch: Any, shown: str, path: str, key: str) -> list[Manifest]:
        """Returns a list whose items have a key, with the items of its patch; those of the patch that are new come
        last.
        """
        merged = {one[key]: one for one in base}
        for index, one in enumerate(patch):
            at = f"{shown}[{index}]"
            if not isinstance(one, Mapping) or key not in one:
                raise PatchRefused(
                    at, f"needs the field {key}, which tells the items of this list apart", f"add {key}:"
                )
            old = merged.get(one[key])
            self._check_item(old, one, at, path)
            if one.get("$patch") == "delete":
                merged.pop(one[key], None)
            else:
                merged[one[key]] = self.mapping(old or {}, one, at, path)
        return list(merged.values())

    def _check_item(self, old: Mapping[str, Any] | None, one: Mapping[str, Any], at: str, path: str) -> None:
        """Refuses an item of a list that the ranks depend on."""
        from windlass.spec.names import CONTRACT_ENV  # a supervisor in the cluster has no pydantic

        is_delete = one.get("$patch") == "delete"
        if path == "spec.containers":
            if one["name"] != self._container:
                raise PatchRefused(
                    f"{at}.name",
                    f"is {one['name']}, and a pod of a run has one container, {self._container}",
                    "write a sidecar into initContainers, with restartPolicy: Always",
                )
            if is_delete:
                raise PatchRefused(at, "removes the container of the ranks", "leave it out")
        elif old is not None and old != one and not path.startswith(CHANGEABLE):
            raise PatchRefused(at, "changes or removes an item that Windlass sets", "choose another name")
        if path == "spec.containers.env" and (one["name"] in CONTRACT_ENV or one["name"].startswith("WINDLASS_")):
            raise PatchRefused(f"{at}.name", f"is {one['name']}, which Windlass sets", "leave it out")
        if path == "spec.containers.volumeMounts" and f"{one['mountPath']}/".startswith(f"{layout.ROOT}/"):
            raise PatchRefused(f"{at}.mountPath", f"is below {layout.ROOT}, which Windlass uses", "choose another path")
