"""Reads the fields of pods that few jobs set, which become the patch of the ranks' pods, and security contexts."""

from __future__ import annotations

from typing import Any, Final

from windlass.importers.draft import Draft
from windlass.importers.field_hints import hints
from windlass.importers.source import View
from windlass.spec.secret_text import has_secret

_POD: Final = (
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "hostUsers",
    "hostAliases",
    "dnsPolicy",
    "dnsConfig",
    "schedulerName",
    "schedulingGates",
    "readinessGates",
    "runtimeClassName",
    "resourceClaims",
    "resources",
    "nodeName",
    "automountServiceAccountToken",
    "enableServiceLinks",
)
PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_CONTAINER: Final = ("lifecycle", "resizePolicy")
_USUAL: Final[dict[str, Any]] = {
    **dict.fromkeys(("hostNetwork", "hostPID", "hostIPC", "automountServiceAccountToken", "enableServiceLinks"), False),
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "runAsNonRoot": True,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
    "allowPrivilegeEscalation": False,
    "privileged": False,
    "procMount": "Default",
}
"""Values that pods of a run have anyway."""
_OPERATORS_PORTS: Final = ("pytorchjob-port", "tfjob-port", "jaxjob-port", "xgboostjob-port")


def pod_annotations(draft: Draft, view: View) -> None:
    """Reads annotations of an object or its pods, which become those of all pods of a run."""
    for key, value in view.items():
        had = (draft.get("kubernetes.annotations") or {}).get(key, value.value)
        if "/" in key and key in hints("field"):
            value.report(*hints("field")[key])
        elif isinstance(value.value, str) and has_secret(value.value):
            value.report("looks like a secret, which a job file does not hold", "take it out of the annotation")
        elif had != value.value:
            value.report(f"another value of this annotation than {had}", "change it under kubernetes.annotations:")
        else:
            draft.put_entry("kubernetes.annotations", key, value.value, value)


def pod_fields(draft: Draft, spec: View) -> None:
    """Reads the fields of a pod for which a job has no field of its own."""
    for name in _POD:
        view = spec.at(name)
        is_usual = view.take_if(_USUAL.get(name)) or (
            name == "dnsPolicy" and spec.at("hostNetwork").value is True and view.take_if("ClusterFirstWithHostNet")
        )
        if view and not is_usual:
            draft.put_pod({name: view.value}, view)
    context = spec.at("securityContext")
    for name, value in _with_root(_unusual(context)).items():
        draft.put_pod({"securityContext": {name: value}}, context.at(name))


def container_fields(draft: Draft, view: View, spec: View, *, has_probes: bool) -> None:
    """Reads the fields of the training container for which a job has no field of its own; without `has_probes`, its
    probes check a program that a run does not start.
    """
    image = str(view.at("image").value or "")
    is_newest = image.endswith(":latest") or ":" not in image.rpartition("/")[2]
    is_usual = view.at("imagePullPolicy").take_if("Always" if is_newest else "IfNotPresent")
    for name in (*_CONTAINER, *(PROBES if has_probes else ()), *(() if is_usual else ("imagePullPolicy",))):
        if view.at(name):
            draft.put_container({name: view.at(name).value}, view.at(name))
    for port in view.at("ports").each():
        if port.at("hostPort") or port.at("name").value not in (None, *_OPERATORS_PORTS):
            draft.put_container({"ports": [port.value]}, port)
    _privileges(draft, view.at("securityContext"), spec.at("securityContext", "runAsUser").value)


def _unusual(view: View) -> dict[str, Any]:
    """Returns the fields of a mapping that differ from those of a run, and marks the others as read."""
    for name, value in view.items() if view else ():
        if value:
            value.take_if(_USUAL.get(name))
    given = view.value if isinstance(view.value, dict) else {}
    return {name: value for name, value in given.items() if value is not None and _USUAL.get(name) != value}


def _with_root(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns a security context that runs as root, if it does: pods of a run have another group, and refuse root."""
    return {"runAsNonRoot": False, "runAsGroup": 0, **fields} if fields.get("runAsUser") == 0 else fields


def _privileges(draft: Draft, view: View, user_of_pod: object) -> None:
    """Reads the security context of the training container."""
    fields = _with_root(_unusual(view))
    fields.pop("capabilities", None)
    if fields.pop("readOnlyRootFilesystem", None) is True:
        draft.put("kubernetes.read_only_root", True, view.at("readOnlyRootFilesystem"))
    else:
        view.at("readOnlyRootFilesystem").take_if(False)
    added, dropped = view.at("capabilities", "add"), view.at("capabilities", "drop")
    names = [one.value for one in added.each()]
    if names:
        draft.put("kubernetes.capabilities", names, added)
    drop = [one.value for one in dropped.each()]
    if fields.get("runAsUser", user_of_pod) == 0 and "ALL" not in drop:
        draft.put_container({"securityContext": {"capabilities": {"drop": drop}}}, dropped)
    elif dropped.each():  # pods of a run drop all, and a user other than root has none
        dropped.take()
    if fields.get("privileged") is True or "SYS_ADMIN" in names:  # the API server refuses these without it
        fields = {"allowPrivilegeEscalation": True, **fields}
    for name, value in fields.items():
        draft.put_container({"securityContext": {name: value}}, view.at(name))
