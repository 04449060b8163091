"""Reads a SkyPilot task: resources, variables, data, and the commands of its scripts."""

from __future__ import annotations

import re
from typing import Any, Final

from windlass.importers.common import put_start
from windlass.importers.container_command import start_of
from windlass.importers.documents import Documents
from windlass.importers.draft import Draft
from windlass.importers.field_hints import hints
from windlass.importers.sky_script import start_of_script
from windlass.importers.sky_shell import (
    NUM_GPUS,
    NUM_NODES,
    findings,
    is_of_several_nodes,
    setup_of,
    with_variables,
)
from windlass.importers.source import View
from windlass.spec.names import legal_name
from windlass.spec.sections import STORES

_NO_GPU: Final = re.compile(r"tpu|inferentia|trainium|gaudi|mi\d|radeon", re.IGNORECASE)
"""Accelerators that are not requested as NVIDIA GPUs."""
_STORES: Final = {"s3": "s3", "gcs": "gs"}
_AMOUNT: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?:(?P<unit>[KMGTP])i?B?)?(?P<more>\+)?", re.IGNORECASE)
"""CPUs or memory: `4`, `4+`, `32GB+`; memory without a unit is in GB. `4x` means per CPU, and is not supported."""
_NO_JOBS: Final = (
    (
        "service",
        "is a service of SkyServe, which answers requests and never ends",
        "Windlass trains; serve it elsewhere",
    ),
    ("pool", "is a pool of workers, which jobs are sent to", "import the task that is sent to it"),
)


def sky(found: Documents, draft: Draft) -> None:
    """Reads a task."""
    view = found.job.view
    _refuse_others(view)
    draft.put_name(view.at("name"))
    _variables(view.at("envs"), str(view.at("run").value), draft)
    for secret, value in view.at("secrets").items():
        if value.value:
            draft.secret = draft.secret or value
        value.take()
        draft.put_secret(secret, value, f"{secret} is a secret, and its value is not carried")
    _resources(view.at("resources"), draft)
    _workdir(view.at("workdir"), draft)
    _mounts(view.at("file_mounts"), draft)
    for path, claim in view.at("volumes").items():
        if isinstance(claim.value, str):
            draft.add("volumes", {"claim": claim.value, "path": path.rstrip("/")}, claim)
    script, nodes = view.text("run"), view.count("num_nodes")
    if script is None and view.at("run").value not in (None, ""):
        raise view.at("run").mistyped("text")
    if script is None:
        raise view.at("run").refused(
            "has no run:, so nothing is started on the nodes", "a task that only sets up is no job"
        )
    for other, hint in hints("sky").items():
        view.at(other).report(*hint)
    _start(view, script, nodes, draft)


def _refuse_others(view: View) -> None:
    """Raises JobFileError for tasks that are not jobs: a service, a pool, a task whose nodes connect to each other by
    ssh.
    """
    for name, meaning, hint in _NO_JOBS:
        if view.at(name):
            raise view.at(name).refused(meaning, hint)
    script = str(view.at("run").value or "")
    if (template := re.search(r"~/sky_templates/\S+", script)) is not None:
        message = f"starts {template[0]}, which only the machines of SkyPilot have"
        raise view.at("run").refused(message, "write a job file whose script starts its own cluster of Ray")
    program = is_of_several_nodes(script) if view.count("num_nodes") != 1 else None
    if program is not None:
        message = f"calls {program}, which starts processes on the other nodes by ssh or by Slurm; nodes have neither"
        raise view.at("run").refused(message, "write run: PROGRAM, launcher: mpi, nodes: and procs_per_node:")


def _start(view: View, script: str, nodes: int, draft: Draft) -> None:
    """Reads `setup` and `run`: as `run:` if no shell is needed, else as the script of each rank, or of each node."""
    at, setup = view.at("run"), view.text("setup") or ""
    gpus = draft.get("resources.gpus")
    known = {NUM_NODES: str(nodes), **({} if gpus is None else {NUM_GPUS: str(gpus)})}
    env = {**known, **draft.fields.get("env", {})}
    unset = [name for name, value in env.items() if not value]
    start = start_of(["bash", "-c", script.strip()], env, fixed=known, unset=unset, code_travels=True)
    before = ""
    if "run" not in start.fields or "setup" in start.fields or any(not hint.is_handled for hint in start.hints):
        start, before = start_of_script(script, nodes, gpus)
    elif "SKYPILOT_" in script:
        at.remark("variables of SkyPilot", "nodes:, procs_per_node: and the rendezvous replace them", is_handled=True)
    if setup.strip() or before:
        text = with_variables(setup_of(setup, before), gpus)
        draft.put("setup", text, view.at("setup") if setup else at)
    if "image" not in draft.fields and re.search(r"\bconda\s+(?:activate|create|env)\b", f"{setup}\n{script}"):
        at.remark("conda, which the images of SkyPilot have", "image: names one that has it, or use pip in setup:")
    for hint in findings(setup, gpus):
        view.at("setup").remark(*hint)
    if before:
        at.remark("what run: does before torchrun", "setup: does it, once on each machine", is_handled=True)
    put_start(draft, (start, at), nodes, at, has_group=False)


def _variables(view: View, script: str, draft: Draft) -> None:
    for name, value in view.items():
        if value.value in (None, "") and draft.is_secret(name, "value"):
            draft.put_secret(name, value, f"{name} has no value here: it is given with --env")
        elif value.value in (None, ""):
            if value or re.search(rf"\$\{{?{re.escape(name)}\b", script):
                draft.put_env(name, "", value)
            value.remark(f"{name} has no value here: it is given with --env", f"windlass run --env {name}=VALUE")
        elif isinstance(value.value, str | int | float):
            draft.put_env(name, str(value.value), value)


def _resources(view: View, draft: Draft) -> None:
    others = view.at("any_of") or view.at("ordered")
    _accelerators(view.at("accelerators") or view.at("gpus"), others, draft)
    for name in ("cpus", "memory"):
        given = view.at(name)
        match = _AMOUNT.fullmatch(str(given.value)) if given else None
        if match is None or (name == "cpus" and match["unit"]):
            given.expected("a number such as 4 or 4+" if name == "cpus" else "a size such as 32, 32+ or 32GB")
            continue
        amount = float(match["number"])
        if name == "memory":
            amount = round(amount * 1024 ** " KMGTP".index((match["unit"] or "G").upper()))
        if draft.put(f"resources.{name}", amount, given) and match["more"]:
            unset = str(given.value).rstrip("+")
            given.remark(f"{given.value}: at least as much", f"just as much is unset for: {unset}", is_handled=True)
    draft.put_text("resources.instance", view.at("instance_type"))
    image = view.at("image_id")
    if isinstance(image.value, str) and image.value.startswith("docker:"):
        draft.put("image", image.value.removeprefix("docker:"), image)
    elif image:
        image.report("an image of a virtual machine", "image: names a container image")
    recovery = view.at("job_recovery")
    draft.put_restarts(recovery.at("max_restarts_on_errors"))
    if isinstance(recovery.value, str):
        recovery.report("what follows when a machine is lost", "restarts: {max: N, on: [preemption, node-loss]}")
    for label, value in view.at("labels").items():
        draft.put("labels", {**(draft.get("labels") or {}), label: value.value}, value)
    for name, hint in hints("sky resource").items():
        size = _AMOUNT.fullmatch(str(view.at("disk_size").value or "SIZE"))
        instead = hint.instead.replace("SIZE", f"{size['number']}{(size['unit'] or 'G').upper()}iB" if size else "SIZE")
        view.at(name).report(f"{name}: {_shown(view.at(name).value)}", instead)


def _accelerators(view: View, others: View, draft: Draft) -> None:
    """Reads `H100:8`, `{H100: 8}`, or a choice of several: `{H100:8, H200:8}`, a list, or `any_of`.

    Raises JobFileError for an invalid number of GPUs, so that no request is lost.
    """
    found = [*_choices(view)]
    for other in others.each():
        found += _choices(other.at("accelerators"))
    if not found:
        return
    for at, kind, count in found:
        if count is None:
            raise at.refused(f"{kind} is no number of GPUs", "write for example H100:8")
        if _NO_GPU.match(kind):
            raise at.refused(f"is {kind}, and a job file asks for GPUs of NVIDIA", "keep it where it is")
    at, kind, count = found[0]
    if draft.put("resources.gpus", count, at):
        draft.put("resources.gpu_type", kind, at)
    names = list(dict.fromkeys(f"{kind}:{count}" for _, kind, count in found))
    if len(names) > 1:
        at.remark(
            f"one of {', '.join(names)}, whichever is found first",
            f"{names[0]} is taken: write another, or leave gpu_type: out for GPUs of any type",
        )
    for choice, _, _ in found[1:]:
        choice.take()


def _choices(view: View) -> list[tuple[View, str, int | None]]:
    """Returns the alternatives of `accelerators`: view, type and number, which is None if it is invalid."""
    value = view.value
    if isinstance(value, list):
        return [choice for one in view.each() for choice in _choices(one)]
    if isinstance(value, dict):
        each = [f"{kind}:{count}" if count is not None else str(kind) for kind, count in value.items()]
        return [(view, *_kind_and_number(text)) for text in each]
    return [] if value in (None, "") else [(view, *_kind_and_number(str(value)))]


def _kind_and_number(text: str) -> tuple[str, int | None]:
    kind, _, number = text.partition(":")
    whole = re.fullmatch(r"([1-9][0-9]*)(?:\.0)?", number or "1")
    return (text if whole is None else kind), int(whole[1]) if whole is not None else None


def _workdir(view: View, draft: Draft) -> None:
    if isinstance(view.value, str):
        draft.put("code", view.value.rstrip("/") or ".", view)
    else:
        view.report(
            "the code comes from a git repository",
            "clone it, and put job.yaml into it: the folder travels with the job",
        )


def _mounts(view: View, draft: Draft) -> None:
    """Reads `file_mounts`: buckets become data sets; folders of this machine are reported."""
    for path, given in view.items():
        is_mapping = isinstance(given.value, dict)
        source, bucket = (given.at("source"), given.at("name")) if is_mapping else (given, given.at("name"))
        address = source.value
        store = _STORES.get(str(given.at("store").value))
        if is_mapping and not source and store is not None and isinstance(bucket.value, str):
            source, address = bucket, f"{store}://{bucket.value}"
            source.remark(f"the bucket {bucket.value}, which SkyPilot makes if it is missing", "make it before the run")
        if isinstance(address, str) and (scheme := re.match(r"([a-z0-9]+)://", address)) is not None:
            _data(path, address, scheme[1], given, source, draft)
        elif is_mapping and not isinstance(address, str):
            given.report(
                f"the bucket {_shown(bucket.value)}, at {path}",
                "data: [{name: NAME, source: s3://BUCKET, via: mount, write: true}], and its path is "
                "$WINDLASS_DATA_NAME",
            )
        else:
            given.report(f"{_shown(address)} of this machine, at {path}", "put it below code:, it travels with the job")


def _data(path: str, address: str, scheme: str, given: View, source: View, draft: Draft) -> None:
    """Reads a bucket: copied with mode COPY or if only its address is given, else mounted with write access."""
    if scheme not in STORES:
        given.report(f"{address} at {path}: {scheme}:// is no store that is read", "copy it to s3://, gs:// or az://")
        return
    name = legal_name(path.rstrip("/").rpartition("/")[2] or "data")
    mode = str(given.at("mode").value or "MOUNT").upper() if source is not given else "COPY"
    way = {"via": "mount", "write": True} if mode.startswith("MOUNT") else {"via": "copy"}
    if draft.add("data", {"name": name, "source": address, **way}, source) and source is not given:
        for field in ("mode", "store", "name"):
            given.at(field).take()
        given.at("persistent").take_if(True)
    given.remark(f"{address} was at {path}", f"it is at $WINDLASS_DATA_{name.upper().replace('-', '_')}")


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else "…"
