"""Creates the files below /opt/ml of a host, and the environment and command of its container."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from windlass.engines.sagemaker.layout import OPT
from windlass.engines.sagemaker.service import Request

FOLDERS: Final = ("input/config", "input/data", "model", "output/data", "code", "checkpoints")
GROUP: Final = "homogeneousCluster"
"""SageMaker's name for the only instance group of a job whose instances are of one type."""
ML: Final = Path("opt/ml")
"""Path of /opt/ml in the folder of a host."""


def make_host(folder: Path, request: Request, host: str, hosts: Sequence[str], interface: str) -> None:
    """Creates /opt/ml of one host in its folder, without data. Raises OSError."""
    ml = folder / ML
    for name in FOLDERS:
        (ml / name).mkdir(parents=True, exist_ok=True)
    if (checkpoints := checkpoint_path(request)) is not None:
        (ml / checkpoints).mkdir(parents=True, exist_ok=True)
    for name, value in {
        "hyperparameters": request.get("HyperParameters", {}),
        "inputdataconfig": {one["ChannelName"]: _channel(one, request) for one in request.get("InputDataConfig", ())},
        "resourceconfig": _resources(request, host, hosts, interface),
    }.items():
        (ml / "input/config" / f"{name}.json").write_text(json.dumps(value))


def checkpoint_path(request: Request) -> str | None:
    """Returns the folder of the container's checkpoints relative to /opt/ml; None for a job without checkpoints."""
    config = request.get("CheckpointConfig")
    return None if config is None else str(PurePosixPath(config["LocalPath"]).relative_to(OPT))


def environment(request: Request, arn: str, python: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the container: the request's variables, and this machine's `AWS_*` in place of the
    role.
    """
    return {
        "PATH": os.pathsep.join([os.path.dirname(python), environ.get("PATH", os.defpath)]),  # noqa: PTH120 - a string
        "HOME": environ.get("HOME", "/root"),
        "LANG": "C.UTF-8",
        **{name: value for name, value in environ.items() if name.startswith("AWS_")},
        "TRAINING_JOB_NAME": request["TrainingJobName"],
        "TRAINING_JOB_ARN": arn,
        **request.get("Environment", {}),
    }


def command(request: Request, base: str) -> list[str]:
    """Returns the container's entry point and arguments; `base` replaces /opt/ml at the beginning of a word."""
    algorithm = request["AlgorithmSpecification"]
    words = [*algorithm.get("ContainerEntrypoint", ["train"]), *algorithm.get("ContainerArguments", [])]
    return [base + word.removeprefix(OPT) if word.startswith(f"{OPT}/") else word for word in words]


def is_plain(root: Path, name: str) -> bool:
    """Whether every component of a path below the root is a folder. A container may have replaced one by a link."""
    parts = name.split("/")
    paths = [root.joinpath(*parts[: at + 1]) for at in range(len(parts))]
    return all(path.is_dir() and not path.is_symlink() for path in paths)


def _channel(channel: Mapping[str, Any], request: Request) -> dict[str, str]:
    algorithm = request["AlgorithmSpecification"]
    return {
        "TrainingInputMode": channel.get("InputMode", algorithm.get("TrainingInputMode", "File")),
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
    }


def _resources(request: Request, host: str, hosts: Sequence[str], interface: str) -> dict[str, Any]:
    kind = request["ResourceConfig"]["InstanceType"]
    return {
        "current_host": host,
        "current_instance_type": kind,
        "current_group_name": GROUP,
        "hosts": list(hosts),
        "instance_groups": [{"instance_group_name": GROUP, "instance_type": kind, "hosts": list(hosts)}],
        "network_interface_name": interface,
    }
