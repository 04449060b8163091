"""Reads an AppDef of TorchX, as its dry run prints it: the one role that trains."""

from __future__ import annotations

from typing import Any, Final

from windlass.errors import JobFileError, Problem
from windlass.spec.importing.common import automatic, put_start
from windlass.spec.importing.draft import Draft
from windlass.spec.importing.source import Source, View
from windlass.spec.importing.words import start_of

MEBI: Final = 1 << 20
WORDS: Final = {
    "port_map": ("ports that are named", "all ports of a node are its own", True),
    "retry_policy": ("what is started again when one replica fails", "all ranks are started again together", True),
    "metadata": ("notes to the scheduler", "write what it means as fields of the job", False),
    "overrides": ("notes of TorchX to itself", "nothing to do", True),
    "base_image": (
        "the image before TorchX patched it",
        "the code travels with the job: image: may name this one",
        True,
    ),
    "workspace": ("the folder that is sent along", "code: names the folder", False),
}
RESOURCE: Final = {
    "capabilities": ("what a machine has to have", "resources: {instance: TYPE} names a kind of machine", False),
    "devices": ("devices such as network cards", "a job file asks for GPUs only", False),
    "tags": ("notes to the scheduler", "nothing to do", True),
}


def torchx(source: Source, draft: Draft, where: str) -> None:
    """An AppDef."""
    view = source.view
    roles = view.at("roles").each()
    if not roles:
        message = "holds no AppDef: there are no roles"
        raise JobFileError([Problem(where, "", message, "json.dumps(dataclasses.asdict(app)) writes one")])
    if (name := view.text("name")) is not None:
        draft.name(name, view.at("name"))
    _words(view, {"metadata": WORDS["metadata"]})
    role = max(roles, key=lambda one: (one.at("resource", "gpu").value or 0, one.at("num_replicas").value or 0))
    for other in roles:
        if other.path != role.path:
            other.leave(f"role {other.at('name').value}, beside the one that trains", "make a job of its own of it")
    _role(role, draft, where)


def _role(view: View, draft: Draft, where: str) -> None:
    name = view.text("name")
    if name is not None and "name" not in draft.fields:
        draft.name(name, view.at("name"))
    if (image := view.text("image")) is not None and not image.startswith(("/", ".", "file:")):
        draft.put("image", image, view.at("image"))
    elif image is not None:
        view.at("image").leave(f"a folder of this machine, {image}", "code: names the folder that travels")
    for variable, value in view.at("env").items():
        if isinstance(value.value, str | int | float) and draft.put_env(variable, str(value.value), value):
            value.take()
    _resource(view.at("resource"), draft)
    for mount in view.at("mounts").each():
        _mount(mount, draft)
    if (retries := view.whole("max_retries")) is not None and retries > 0:
        draft.put("restarts", {"max": retries}, view.at("max_retries"))
    words = [word for word in [view.text("entrypoint") or "", *view.texts("args")] if word]
    if not words:
        raise JobFileError(
            [Problem(f"{where}:{view.source.line(view.path)}", "roles", "starts nothing: no entrypoint and no args")]
        )
    start = start_of([word.replace("$${", "${") for word in words], draft.fields.get("env", {}), code_travels=True)
    at = view.at("entrypoint")
    for meaning, instead, is_ours in start.left:
        at.remark(meaning, instead, is_ours=is_ours)
    most = view.whole("num_replicas") or 1
    least = view.whole("min_replicas")
    nodes: Any = {"min": least, "max": most} if least is not None and least < most else most
    procs = automatic(at, draft) if start.by == "torchrun" and "procs_per_node" not in start.fields else 1
    put_start(draft, start, at, nodes, procs)
    _words(view, WORDS)


def _resource(view: View, draft: Draft) -> None:
    for name, field, factor in (("gpu", "gpus", 1), ("cpu", "cpus", 1), ("memMB", "memory", MEBI)):
        value = view.at(name).value
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if value <= 0:
            view.at(name).take()  # how TorchX writes that nothing is asked for
        elif draft.put(f"resources.{field}", float(value) if name == "cpu" else int(value) * factor, view.at(name)):
            view.at(name).take()
    _words(view, RESOURCE)


def _mount(view: View, draft: Draft) -> None:
    """A volume is a claim to Kubernetes; folders and devices of a machine stay where they are."""
    source, path = view.at("src").value, view.at("dst_path").value
    is_volume = (
        view.at("type").value in (None, "volume") and isinstance(source, str) and not source.startswith(("/", "."))
    )
    if is_volume and isinstance(path, str) and draft.add("volumes", {"claim": source, "path": path}, view):
        for name in ("type", "src", "dst_path"):
            view.at(name).take()
        if view.at("read_only").value:
            view.at("read_only").leave("mounted only to read", "it may be written to here", is_ours=True)
        view.flag("read_only")
    else:
        view.leave(f"{source} of the machine", "volumes: [{claim: NAME, path: /data}] mounts a claim")


def _words(view: View, words: dict[str, tuple[str, str, bool]]) -> None:
    for name, (meaning, instead, is_ours) in words.items():
        value = view.at(name).value
        if value not in (None, {}, [], ""):
            view.at(name).leave(meaning, instead, is_ours=is_ours)
        elif value is not None:
            view.at(name).take()
