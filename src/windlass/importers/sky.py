"""Reads a task of SkyPilot: command, resources, variables and data."""

from __future__ import annotations

import re
from typing import Any, Final

from windlass.importers.common import put_start
from windlass.importers.container_command import start_of
from windlass.importers.documents import Documents
from windlass.importers.draft import Draft
from windlass.importers.field_hints import hints
from windlass.importers.source import View
from windlass.spec.names import legal_name

GIBI: Final = 1 << 30


def sky(found: Documents, draft: Draft) -> None:
    """Read a task."""
    view = found.job.view
    draft.put_name(view.at("name"))
    _variables(view.at("envs"), draft)
    for secret, value in view.at("secrets").items():
        value.take()
        value.remark(
            f"{secret} is a secret, and its value is not carried",
            f"kubectl create secret generic NAME --from-literal={secret}=…, and secrets: [NAME]",
        )
    _resources(view.at("resources"), draft)
    _workdir(view.at("workdir"), draft)
    _mounts(view.at("file_mounts"), draft)
    for path, claim in view.at("volumes").items():
        if isinstance(claim.value, str):
            draft.add("volumes", {"claim": claim.value, "path": path.rstrip("/")}, claim)
    for other, hint in hints("sky").items():
        view.at(other).leave(*hint)
    nodes = view.whole("num_nodes")
    script = view.text("run")
    if script is None:
        raise view.at("run").refused(
            "has no run:, so nothing is started on the nodes", "a task that only sets up is no job"
        )
    at = view.at("run")
    start = start_of(["bash", "-c", script.strip()], draft.fields.get("env", {}), code_travels=True)
    put_start(draft, (start, at), nodes or 1, at)


def _variables(view: View, draft: Draft) -> None:
    for name, value in view.items():
        if value.value is None:
            value.remark(f"{name} has no value here: it is given with --env", f"windlass run --env {name}=VALUE")
        elif isinstance(value.value, str | int | float):
            draft.put_env(name, str(value.value), value)


def _resources(view: View, draft: Draft) -> None:
    _accelerators(view.at("accelerators"), draft)
    for name, field, factor in (("cpus", "cpus", 1), ("memory", "memory", GIBI)):
        given = view.at(name)
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(\+|x)?(?:\s*GB)?", str(given.value)) if given else None
        if match is None:
            continue
        amount = float(match[1]) if name == "cpus" else round(float(match[1]) * factor)
        if draft.put(f"resources.{field}", amount, given) and match[2]:
            given.remark(f"{given.value}: at least as much", f"just as much is asked for: {match[1]}", is_ours=True)
    draft.put_text("resources.instance", view.at("instance_type"))
    image = view.at("image_id")
    if isinstance(image.value, str) and image.value.startswith("docker:"):
        draft.put("image", image.value.removeprefix("docker:"), image)
    elif image:
        image.leave("an image of a virtual machine", "image: names a container image")
    recovery = view.at("job_recovery")
    draft.put_restarts(recovery.at("max_restarts_on_errors"))
    if isinstance(recovery.value, str):
        recovery.leave("what follows when a machine is lost", "restarts: {max: 3, on: [preemption, node-loss]}")
    for name, hint in hints("sky resource").items():
        view.at(name).leave(f"{name}: {_shown(view.at(name).value)}", hint.instead)


def _accelerators(view: View, draft: Draft) -> None:
    """`H100:8`, `H100` or `{H100: 8}`."""
    value = view.value
    if isinstance(value, dict) and len(value) == 1:
        kind, count = next(iter(value.items()))
    elif isinstance(value, str) and value:
        kind, _, number = value.partition(":")
        count = int(number) if number.isdecimal() else 1 if not number else None
    else:
        return
    if isinstance(count, int) and draft.put("resources.gpus", count, view):
        draft.put("resources.gpu_type", kind, view)


def _workdir(view: View, draft: Draft) -> None:
    if isinstance(view.value, str):
        draft.put("code", view.value.rstrip("/") or ".", view)
    else:
        view.leave(
            "the code comes from a git repository",
            "clone it, and put job.yaml into it: the folder travels with the job",
        )


def _mounts(view: View, draft: Draft) -> None:
    """Read `file_mounts`: buckets are data; folders of this machine are reported."""
    for path, given in view.items():
        source = given.value if isinstance(given.value, str) else given.at("source").value
        name = legal_name(path.rstrip("/").rpartition("/")[2] or "data")
        if isinstance(source, str) and re.match(r"[a-z0-9]+://", source):
            via = "mount" if str(given.at("mode").value).upper().startswith("MOUNT") else "copy"
            if draft.add("data", {"name": name, "source": source, "via": via}, given):
                given.remark(f"{source} was at {path}", f"it is at $WINDLASS_DATA_{name.upper().replace('-', '_')}")
        else:
            given.leave(f"{_shown(source)} of this machine, at {path}", "put it below code:, it travels with the job")


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else "…"
