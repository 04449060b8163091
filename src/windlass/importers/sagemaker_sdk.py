"""Reads the arguments of an Estimator or a ModelTrainer of SageMaker's SDK, as `sagemaker_code` finds them."""

from __future__ import annotations

import shlex
from typing import Any, Final

from windlass.importers.common import put_start
from windlass.importers.container_command import start_of
from windlass.importers.documents import Documents
from windlass.importers.draft import Draft
from windlass.importers.field_hints import hints
from windlass.importers.sagemaker_code import Expression
from windlass.importers.sagemaker_script import Script
from windlass.importers.sagemaker_target import GIBI, put, put_vpc
from windlass.importers.source import View
from windlass.spec.names import legal_name

Paths = tuple[tuple[str, ...], ...]
TARGET: Final[dict[str, Paths]] = {
    "role": (("role",),),
    "image": (("image_uri",), ("training_image",)),
    "instance": (("instance_type",), ("compute", "instance_type")),
    "storage": (("output_path",), ("output_data_config", "s3_output_path")),
    "kms_key": (("volume_kms_key",), ("output_kms_key",), ("compute", "volume_kms_key_id")),
    "network_isolation": (("enable_network_isolation",), ("networking", "enable_network_isolation")),
    "encrypt_traffic": (
        ("encrypt_inter_container_traffic",),
        ("networking", "enable_inter_container_traffic_encryption"),
    ),
}
"""Fields of the target: where version 2 has each, and where version 3."""
SECONDS: Final[dict[str, Paths]] = {
    "timeout": (("max_run",), ("stopping_condition", "max_runtime_in_seconds")),
    "sagemaker.max_wait": (("max_wait",), ("stopping_condition", "max_wait_time_in_seconds")),
    "sagemaker.warm_pool": (("keep_alive_period_in_seconds",), ("compute", "keep_alive_period_in_seconds")),
}
SPOT: Final[Paths] = (("use_spot_instances",), ("compute", "enable_managed_spot_training"))
VOLUME: Final[Paths] = (("volume_size",), ("compute", "volume_size_in_gb"))
NODES: Final[Paths] = (("instance_count",), ("compute", "instance_count"))
PROGRAM: Final[Paths] = (("entry_point",), ("source_code", "entry_script"))
FOLDER: Final[Paths] = (("source_dir",), ("source_code", "source_dir"))


def estimator(found: Documents, draft: Draft) -> None:
    """Read the calls of a script."""
    draft.is_of_sagemaker = True
    whole = found.job.view
    _leave_expressions(whole)
    name = next(iter(whole.value))
    view = whole.at(name)
    draft.put_name(view.at("base_job_name"))
    for field, paths in TARGET.items():
        put(draft, field, _first(view, paths))
    size = _first(view, VOLUME)
    if isinstance(size.value, int):
        put(draft, "volume", size, size.value * GIBI)
    networking = view.at("networking")
    of_vpc = networking if networking else view
    put_vpc(draft, of_vpc.at("subnets"), of_vpc.at("subnets"), of_vpc.at("security_group_ids"))
    _tags(view.at("tags"), draft)
    spot = _first(view, SPOT)
    if spot.value is True:
        draft.put("sagemaker.spot", True, spot)
    spot.take_if(False)
    for field, paths in SECONDS.items():
        draft.put_seconds(field, _first(view, paths))
    for variable, value in view.at("environment").items():
        if isinstance(value.value, str):
            draft.put_env(variable, value.value, value)
    _folder(_first(view, FOLDER), draft)
    _start(view, draft)
    _channels(whole.at("fit", "inputs"), draft)
    for place in (whole.at("train", "input_data_config"), view.at("input_data_config")):
        for one in place.each():
            if isinstance(one.at("channel_name").value, str):
                _channel(one.at("channel_name").take(), one, one.at("data_source"), draft)
    if (packages := view.text("source_code", "requirements")) is not None:
        install, others = f"pip install -r {shlex.quote(packages)}", draft.get("setup")
        text = install if others is None else f"{install} || exit\n{others}"
        draft.put("setup", text, view.at("source_code", "requirements"))
    for at in (view, whole.at("fit"), whole.at("train")):
        for field, hint in hints("sagemaker sdk").items():
            at.at(field).leave(*hint)


def _leave_expressions(view: View) -> None:
    """Report each value that only a run of the script would know, and drop it."""
    children: list[tuple[Any, View]] = [*view.items(), *enumerate(view.each())]
    for key, one in children:
        if isinstance(one.value, Expression):
            one.remark(f"{one.value} is not run, so its value is not known", "write the value by hand")
            view.value[key] = None
        else:
            _leave_expressions(one)


def _first(view: View, paths: Paths) -> View:
    """The first of several places that has a value; the first of all where none has."""
    return next((view.at(*path) for path in paths if view.at(*path)), view.at(*paths[0]))


def _tags(view: View, draft: Draft) -> None:
    """`{"team": "vision"}`, or a list of `Key` and `Value`."""
    found = {}
    for one in view.each():
        key, value = one.at("Key").value or one.at("key").value, one.at("Value").value or one.at("value").value
        if isinstance(key, str) and isinstance(value, str):
            found[key] = value
    if view and (tags := found or view.value):
        put(draft, "tags", view, tags)


def _folder(view: View, draft: Draft) -> None:
    """The folder of the script, seen from that of the file."""
    if isinstance(view.value, str) and view.value.startswith("s3://"):
        view.leave("the code is in a store", f"aws s3 cp {view.value} - | tar xz puts it beside the job file")
    elif isinstance(view.value, str):
        draft.put("code", view.value.rstrip("/") or "/", view)


def _start(view: View, draft: Draft) -> None:
    at = _first(view, PROGRAM)
    command = view.at("source_code", "command")
    nodes = _first(view, NODES)
    number = nodes.whole() or 1
    env = draft.fields.get("env", {})
    given = view.at("hyperparameters")
    if isinstance(command.value, str) and command.value:
        start = start_of(["bash", "-c", str(command.take())], env, code_travels=True)
        put_start(draft, (start, nodes), number, nodes)
        for _, value in given.items():
            value.leave("a value that the command reads from SM_HPS", "write it into the command")
        return
    if (program := at.text()) is None:
        raise at.refused(
            "is not said: no literal names the script that trains", "write its name there, and import again"
        )
    script = Script(program)
    _launcher(view, script)
    for name, value in given.items():
        script.add(name, value.value, value, draft)
    put_start(draft, (start_of(script.words(number), env, code_travels=True), nodes), number, nodes, script.procs)


def _launcher(view: View, script: Script) -> None:
    """`distribution` of version 2, `distributed` of version 3."""
    old, new = view.at("distribution"), view.at("distributed")
    for kind in ("torch_distributed", "pytorchddp"):
        if old.at(kind, "enabled").take_if(True):
            script.launcher, script.procs = "torchrun", "auto"
    if old.at("smdistributed", "dataparallel", "enabled").take_if(True):
        script.launcher, script.procs = "torchrun", "auto"
        old.remark("SageMaker's own library of collectives", "torchrun with the script's backend starts here")
    if old.at("mpi", "enabled").take_if(True):
        script.launcher, script.procs = "mpirun", old.whole("mpi", "processes_per_host")
    if isinstance(new.at("Torchrun").value, dict):
        script.launcher, script.procs = "torchrun", new.whole("Torchrun", "process_count_per_node") or "auto"
    if isinstance(new.at("MPI").value, dict):
        script.launcher, script.procs = "mpirun", new.whole("MPI", "process_count_per_node")


def _channels(view: View, draft: Draft) -> None:
    """What `fit` is given: an address, or several by the names of their channels."""
    if isinstance(view.value, str) or (isinstance(view.value, dict) and "s3_data" in view.value):
        _channel("training", view, view, draft)
        return
    for name, one in view.items():
        _channel(name, one, one, draft)


def _channel(name: str, view: View, source: View, draft: Draft) -> None:
    at = source if isinstance(source.value, str) else source.at("s3_data")
    at = at if at else source.at("s3_data_source", "s3_uri")
    if not isinstance(at.value, str):
        return
    if at.value.startswith("file://"):
        at.leave("a folder of this machine", "windlass data copy FOLDER s3://BUCKET/PREFIX, and give that as source:")
        return
    mode, legal = view.at("input_mode"), legal_name(name)
    via = "mount" if mode.take_if("FastFile") else "copy"
    mode.take_if("File")
    view.at("distribution").take_if("FullyReplicated")
    if draft.add("data", {"name": legal, "source": at.value, "via": via}, at) and legal != name:
        at.remark(f"the channel {name[:60]}", f"it is {legal} here, and so is its folder")
