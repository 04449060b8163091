"""Reads the training role of a TorchX AppDef, as printed by a dry run of TorchX."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from windlass.importers.common import put_start
from windlass.importers.container_command import start_of
from windlass.importers.documents import Documents
from windlass.importers.draft import Draft
from windlass.importers.field_hints import Hint, hints
from windlass.importers.scheduling import INSTANCE_LABELS
from windlass.importers.shell import script_of
from windlass.importers.source import View

MEBI: Final = 1 << 20
_MACROS: Final = {
    "app_id": "$WINDLASS_RUN_ID",
    "replica_id": "$WINDLASS_NODE_RANK",
    "img_root": ".",
    "base_img_root": ".",
    "rank0_env": "$WINDLASS_MASTER_ADDR",
}
"""Replacements for TorchX's macros. The address of rank 0 has a default: `$${${rank0_env}:=localhost}`."""
_MACRO: Final = re.compile(
    r"\$?\$\{(?:\$\{rank0_env\}|TORCHX_RANK0_HOST|rank0_env)(?::?[=-][^}]*)?\}|\$\{(app_id|replica_id|img_root|base_img_root)\}"
)

_IN_SINGLE_QUOTES: Final = re.compile(r"""\\.|"(?:\\.|[^"\\\n])*"|'([^'\n]*)'""")
"""A shell word in quotes of either kind; the group matches the content of single quotes."""


def torchx(found: Documents, draft: Draft) -> None:
    """Reads an AppDef."""
    view = found.job.view
    roles = view.at("roles").each()
    if not roles:
        message = "holds no AppDef: there are no roles"
        raise view.refused(message, "json.dumps(dataclasses.asdict(app)) writes one")
    draft.put_name(view.at("name"))
    _leave(view, {"metadata": hints("torchx")["metadata"]})
    # TorchX writes -1 for a resource that is not requested.
    role = max(roles, key=lambda one: (max(0, one.whole("resource", "gpu") or 0), one.count("num_replicas")))
    for other in roles:
        if other.path != role.path:
            other.report(
                f"role {other.at('name').value}, in addition to the training role", "import it as a separate job"
            )
    _role(role, draft)


def _role(view: View, draft: Draft) -> None:
    draft.put_name(view.at("name"))
    if view.at("image").take_if("<NONE>"):
        view.at("image").remark("no image: the program is that of the machine", "image: names a container image")
    elif (image := view.text("image")) is not None and not image.startswith(("/", ".", "file:")):
        draft.put("image", image, view.at("image"))
    elif image is not None:
        view.at("image").report(f"a folder of this machine, {image}", "code: names the folder that travels")
    for variable, value in view.at("env").items():
        if isinstance(value.value, str | int | float):
            draft.put_env(variable, str(value.value), value)
    _resource(view.at("resource"), draft)
    for mount in view.at("mounts").each():
        _mount(mount, draft)
    if (retries := view.whole("max_retries")) is not None and retries > 0:
        draft.put("restarts", {"max": retries}, view.at("max_retries"))
    words = [word for word in [view.text("entrypoint") or "", *view.texts("args")] if word]
    if not words:
        raise view.refused("starts nothing: no entrypoint and no args")
    start = start_of(_without_macros(words), draft.fields.get("env", {}), code_travels=True)
    at = view.at("entrypoint")
    most = view.count("num_replicas")
    least = view.whole("min_replicas")
    nodes: Any = {"min": least, "max": most} if least is not None and least < most else most
    put_start(draft, (start, at), nodes, at, has_group=False)
    _leave(view, hints("torchx"))


def _without_macros(words: list[str]) -> list[str]:
    """Replaces TorchX's macros by the equivalents of Windlass, adding a shell if the command has none."""
    if script_of(words) is not None:
        return [*words[:-1], _filled(words[-1])]
    if not any(_MACRO.search(word) for word in words):
        return [word.replace("$$", "$") for word in words]
    return ["bash", "-c", "exec " + " ".join(_filled(shlex.quote(word)) for word in words)]


def _filled(script: str) -> str:
    """Replaces macros in a script by shell variables; single quotes around them become double quotes."""

    def value(match: re.Match[str]) -> str:
        return _MACROS[match[1] or "rank0_env"]

    def requoted(match: re.Match[str]) -> str:
        if _MACRO.search(match[1] or "") is None:
            return match[0]
        return '"' + re.sub(r'(["`\\]|\$(?![{$]))', r"\\\1", match[1]) + '"'

    return _MACRO.sub(value, _IN_SINGLE_QUOTES.sub(requoted, script)).replace("$${", "${")


def _resource(view: View, draft: Draft) -> None:
    for name, field, factor in (("gpu", "gpus", 1), ("cpu", "cpus", 1), ("memMB", "memory", MEBI)):
        value = view.at(name).value
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if value <= 0:
            view.at(name).take()  # TorchX's value for a resource that is not requested
        else:
            draft.put(f"resources.{field}", float(value) if name == "cpu" else int(value) * factor, view.at(name))
    for device, count in view.at("devices").items() if view.at("devices") else ():
        draft.put_entry("kubernetes.limits", device, count.value, count)
    for label, value in view.at("capabilities").items():
        if label in INSTANCE_LABELS:
            draft.put_text("resources.instance", value)
        else:
            value.report(*hints("torchx resource")["capabilities"])
    _leave(view, {name: hint for name, hint in hints("torchx resource").items() if name != "capabilities"})


def _mount(view: View, draft: Draft) -> None:
    """Reads a mount: a volume becomes a claim; host paths and devices are reported."""
    source, path = view.at("src").value or view.at("src_path").value, view.at("dst_path").value
    is_volume = (
        view.at("type").value in (None, "volume") and isinstance(source, str) and not source.startswith(("/", "."))
    )
    if is_volume and isinstance(path, str):
        is_read_only = {"read_only": True} if view.at("read_only").value is True else {}
        draft.add("volumes", {"claim": source, "path": path, **is_read_only}, view.at("dst_path"))
        for name in ("type", "src", "read_only"):
            view.at(name).take()
    else:
        view.report(f"{source} of the machine", "volumes: [{claim: NAME, path: /data}] mounts a claim")


def _leave(view: View, words: Mapping[str, Hint]) -> None:
    for name, hint in words.items():
        value = view.at(name).value
        if value not in (None, {}, [], ""):
            view.at(name).report(*hint)
        elif value is not None:
            view.at(name).take()
