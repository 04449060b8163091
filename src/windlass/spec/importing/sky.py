"""Reads a task of SkyPilot: the part that says what is trained, on what, with which data."""

from __future__ import annotations

import re
from typing import Any, Final

from windlass.errors import JobFileError, Problem
from windlass.spec.importing.common import automatic, put_start
from windlass.spec.importing.draft import Draft
from windlass.spec.importing.source import Source, View
from windlass.spec.importing.words import start_of
from windlass.spec.names import legal_name

GIBI: Final = 1 << 30
RESOURCES: Final = {
    "cloud": "--on TARGET says where",
    "infra": "--on TARGET says where",
    "region": "--on TARGET says where",
    "zone": "--on TARGET says where",
    "use_spot": "the cluster's node pool says it; restarts: {max: 3, on: [preemption]} goes on after a notice",
    "spot_recovery": "restarts: {max: 3, on: [preemption, node-loss]}",
    "disk_size": "kubernetes: {results: {size: 256GiB}} keeps results",
    "disk_tier": "kubernetes: {results: {storage_class: NAME}}",
    "network_tier": "the cluster's machines have what network they have: resources: {instance: TYPE}",
    "ports": "all ports of a pod are its own; kubectl port-forward leads to one",
    "any_of": "plan --on each target, and choose",
    "ordered": "plan --on each target, and choose",
    "autostop": "pods end with the run; the cluster's autoscaler takes machines away",
    "labels": "runs have labels of their own: windlass.dev/run",
}
FIELDS: Final = {
    "setup": (
        "runs once on each machine before the job",
        "put it into the image, or into the environment that python: names",
    ),
    "event_callback": ("runs when the state changes", "windlass events -f follows a run"),
    "service": ("serves a model", "Windlass trains; serve it elsewhere"),
    "inputs": ("what a pipeline hands in", "data: [{name: …, source: …}]"),
    "outputs": ("what a pipeline hands on", "write it to $WINDLASS_OUTPUT_DIR"),
    "config": ("settings of SkyPilot", "targets.yaml says where jobs run"),
    "experimental": ("settings of SkyPilot", "targets.yaml says where jobs run"),
}


def sky(source: Source, draft: Draft, where: str) -> None:
    """A task."""
    view = source.view
    if (name := view.text("name")) is not None:
        draft.name(name, view.at("name"))
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
        if isinstance(claim.value, str) and draft.add(
            "volumes", {"claim": claim.value, "path": path.rstrip("/")}, claim
        ):
            claim.take()
    for other, (meaning, instead) in FIELDS.items():
        view.at(other).leave(meaning, instead)
    nodes = view.whole("num_nodes")
    script = view.text("run")
    if script is None:
        message = "has no run:, so nothing is started on the nodes"
        raise JobFileError(
            [Problem(f"{where}:{source.line(('run',))}", "run", message, "a task that only sets up is no job")]
        )
    at = view.at("run")
    start = start_of(["bash", "-c", script.strip()], draft.fields.get("env", {}), code_travels=True)
    for meaning, instead, is_ours in start.left:
        at.remark(meaning, instead, is_ours=is_ours)
    named: Any = automatic(at, draft) if start.by == "torchrun" and "procs_per_node" not in start.fields else 1
    put_start(draft, start, at, nodes or 1, named)


def _variables(view: View, draft: Draft) -> None:
    for name, value in view.items():
        if value.value is None:
            value.remark(f"{name} has no value here: it is given with --env", f"windlass run --env {name}=VALUE")
        elif isinstance(value.value, str | int | float) and draft.put_env(name, str(value.value), value):
            value.take()


def _resources(view: View, draft: Draft) -> None:
    _accelerators(view.at("accelerators"), draft)
    for name, field, factor in (("cpus", "cpus", 1), ("memory", "memory", GIBI)):
        given = view.at(name)
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(\+|x)?(?:\s*GB)?", str(given.value)) if given else None
        if match is None:
            continue
        amount = float(match[1]) if name == "cpus" else round(float(match[1]) * factor)
        if draft.put(f"resources.{field}", amount, given):
            given.take()
            if match[2]:
                given.remark(f"{given.value}: at least as much", f"just as much is asked for: {match[1]}", is_ours=True)
    if (instance := view.text("instance_type")) is not None:
        draft.put("resources.instance", instance, view.at("instance_type"))
    image = view.at("image_id")
    if isinstance(image.value, str) and image.value.startswith("docker:"):
        if draft.put("image", image.value.removeprefix("docker:"), image):
            image.take()
    elif image:
        image.leave("an image of a virtual machine", "image: names a container image")
    recovery = view.at("job_recovery")
    if (restarts := recovery.whole("max_restarts_on_errors")) is not None:
        draft.put("restarts", {"max": restarts}, recovery.at("max_restarts_on_errors"))
    if isinstance(recovery.value, str):
        recovery.leave("what follows when a machine is lost", "restarts: {max: 3, on: [preemption, node-loss]}")
    for name, instead in RESOURCES.items():
        view.at(name).leave(f"{name}: {_shown(view.at(name).value)}", instead)


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
    if (
        isinstance(count, int)
        and draft.put("resources.gpus", count, view)
        and draft.put("resources.gpu_type", kind, view)
    ):
        view.take()


def _workdir(view: View, draft: Draft) -> None:
    if isinstance(view.value, str):
        if draft.put("code", view.value.rstrip("/") or ".", view):
            view.take()
    else:
        view.leave(
            "the code comes from a git repository",
            "clone it, and put job.yaml into it: the folder travels with the job",
        )


def _mounts(view: View, draft: Draft) -> None:
    """What lies in a bucket is data; what lies on this machine belongs to the code."""
    for path, given in view.items():
        source = given.value if isinstance(given.value, str) else given.at("source").value
        name = legal_name(path.rstrip("/").rpartition("/")[2] or "data")
        if isinstance(source, str) and re.match(r"[a-z0-9]+://", source):
            via = "mount" if str(given.at("mode").value).upper().startswith("MOUNT") else "copy"
            if draft.add("data", {"name": name, "source": source, "via": via}, given):
                given.take()
                given.remark(f"{source} was at {path}", f"it is at $WINDLASS_DATA_{name.upper().replace('-', '_')}")
        else:
            given.leave(f"{_shown(source)} of this machine, at {path}", "put it below code:, it travels with the job")


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else "…"
