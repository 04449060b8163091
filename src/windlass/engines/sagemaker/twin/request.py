"""Checks the body of CreateTrainingJob as SageMaker does, and for what the twin cannot do. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from windlass.engines.sagemaker.service import LIMIT, VALIDATION, Refused, Request
from windlass.engines.sagemaker.twin.job import NAME

MAX_HOSTS: Final = 100
MAX_CHANNELS: Final = 20
MAX_ENTRIES: Final = 100
"""Of HyperParameters, Environment, ContainerEntrypoint and ContainerArguments."""
DEFAULT_RUNTIME_SECONDS: Final = 86400
CHECKPOINTS: Final = "/opt/ml/checkpoints"
CHANNEL: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9.\-_]{1,64}")
VARIABLE: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,511}")
URI: Final = re.compile(r"s3://[^/\s]+(/.*)?|file:///.*", re.DOTALL)
DRIVERS: Final = "sm_drivers"
"""Channel of the programs by which version 3 of the SDK starts a script."""
SHELL_SAFE: Final = re.compile(r"[A-Za-z0-9_.\-]*")
FIELDS: Final = frozenset((
    "TrainingJobName", "AlgorithmSpecification", "RoleArn", "InputDataConfig", "OutputDataConfig", "ResourceConfig",
    "VpcConfig", "StoppingCondition", "HyperParameters", "Environment", "Tags", "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining", "CheckpointConfig", "DebugHookConfig",
    "DebugRuleConfigurations", "TensorBoardOutputConfig", "ExperimentConfig", "ProfilerConfig",
    "ProfilerRuleConfigurations", "RetryStrategy", "RemoteDebugConfig", "InfraCheckConfig", "SessionChainingConfig",
))  # fmt: skip
"""Of the API. Those that the twin does not read have no effect on one machine."""


def check(request: Request) -> None:
    """Raises Refused with `VALIDATION` or `LIMIT`, which names all that is wrong."""
    problems = list(_problems(request))
    if problems:
        noun = "error" if len(problems) == 1 else "errors"
        raise Refused(VALIDATION, f"{len(problems)} validation {noun} detected: {'; '.join(problems)}")
    if (count := request["ResourceConfig"]["InstanceCount"]) > MAX_HOSTS:
        raise Refused(LIMIT, f"InstanceCount is {count}: the twin starts at most {MAX_HOSTS} hosts on this machine")


def runtime_seconds(request: Request) -> float:
    """How long a job may train, over all its starts."""
    return float(request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", DEFAULT_RUNTIME_SECONDS))


def wait_seconds(request: Request) -> float | None:
    """How long a job on spot capacity may take from its creation; None for others."""
    found = request.get("StoppingCondition", {}).get("MaxWaitTimeInSeconds")
    return None if found is None else float(found)


def checkpoint_path(request: Request) -> PurePosixPath | None:
    """Where a container keeps its checkpoints, relative to /opt/ml; None for a job without."""
    config = request.get("CheckpointConfig")
    return None if config is None else PurePosixPath(config.get("LocalPath", CHECKPOINTS)).relative_to("/opt/ml")


def _problems(request: Request) -> Iterator[str]:
    if unknown := sorted(set(request) - FIELDS):
        yield f"unknown parameters: {', '.join(unknown)}"
    name = request.get("TrainingJobName")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        yield f"Value '{name}' at 'trainingJobName' must satisfy {NAME.pattern}"
    if not isinstance(request.get("RoleArn"), str) or not request["RoleArn"]:
        yield "'RoleArn' is missing"
    for field in ("AlgorithmSpecification", "OutputDataConfig", "ResourceConfig"):
        if not isinstance(request.get(field), Mapping):
            yield f"'{field}' is missing"
    yield from _algorithm(_section(request, "AlgorithmSpecification"))
    yield from _output(_section(request, "OutputDataConfig"))
    yield from _resources(_section(request, "ResourceConfig"))
    yield from _times(request)
    yield from _strings("HyperParameters", request.get("HyperParameters", {}), re.compile(".{1,256}"), 2500)
    yield from _strings("Environment", request.get("Environment", {}), VARIABLE, 512)
    yield from _channels(request.get("InputDataConfig", ()))
    yield from _quotes(request)
    yield from _checkpoints(request.get("CheckpointConfig"))


def _section(request: Request, field: str) -> Mapping[str, Any]:
    found = request.get(field)
    return found if isinstance(found, Mapping) else {}


def _algorithm(section: Mapping[str, Any]) -> Iterator[str]:
    if section and not section.get("TrainingImage"):
        yield "'AlgorithmSpecification.TrainingImage' is missing"
    yield from _mode("AlgorithmSpecification.TrainingInputMode", section.get("TrainingInputMode", "File"))
    for field in ("ContainerEntrypoint", "ContainerArguments"):
        words = section.get(field)
        if words is None:
            continue
        if not isinstance(words, list) or not 1 <= len(words) <= MAX_ENTRIES:
            yield f"'AlgorithmSpecification.{field}' must be a list of 1 to {MAX_ENTRIES} strings"
        elif any(not isinstance(word, str) or len(word) > 256 or "\0" in word for word in words):
            yield f"'AlgorithmSpecification.{field}' must have strings of at most 256 characters"


def _mode(where: str, mode: object) -> Iterator[str]:
    if mode not in ("File", "FastFile"):
        yield f"'{where}' is {mode!r}: the twin has File and FastFile"


def _output(section: Mapping[str, Any]) -> Iterator[str]:
    yield from _uri("OutputDataConfig.S3OutputPath", section.get("S3OutputPath")) if section else ()
    if section.get("CompressionType", "GZIP") not in ("GZIP", "NONE"):
        yield f"'OutputDataConfig.CompressionType' is {section['CompressionType']!r}: it is GZIP or NONE"


def _uri(where: str, value: object) -> Iterator[str]:
    if not isinstance(value, str) or not URI.fullmatch(value) or "\0" in value:
        yield f"'{where}' is {value!r}: it must begin with s3://BUCKET or file:///"
    elif {".", ".."} & set(value.partition("://")[2].split("/")):
        yield f"'{where}' is {value!r}: a path has no . and no .."


def _resources(section: Mapping[str, Any]) -> Iterator[str]:
    if not section:
        return
    if "InstanceGroups" in section:
        yield "'ResourceConfig.InstanceGroups': the twin has hosts of one kind alone"
    if not isinstance(section.get("InstanceType"), str):
        yield "'ResourceConfig.InstanceType' is missing"
    for field, least, most in (
        ("InstanceCount", 1, None), ("VolumeSizeInGB", 1, None), ("KeepAlivePeriodInSeconds", 0, 21600)
    ):  # fmt: skip
        value = section.get(field, least if field != "InstanceCount" else None)
        if type(value) is not int or value < least or (most is not None and value > most):
            bound = f"at least {least}" if most is None else f"between {least} and {most}"
            yield f"'ResourceConfig.{field}' is {value!r}: it must be an integer, {bound}"


def _times(request: Request) -> Iterator[str]:
    section = _section(request, "StoppingCondition")
    runtime = section.get("MaxRuntimeInSeconds", DEFAULT_RUNTIME_SECONDS)
    wait = section.get("MaxWaitTimeInSeconds")
    for field, value in (("MaxRuntimeInSeconds", runtime), ("MaxWaitTimeInSeconds", wait)):
        if value is not None and (type(value) is not int or value < 1):
            yield f"'StoppingCondition.{field}' is {value!r}: it must be an integer, at least 1"
            return
    is_spot = request.get("EnableManagedSpotTraining", False)
    if is_spot and (wait is None or wait < runtime):
        yield (f"Invalid MaxWaitTimeInSeconds: {wait}. It must be present and be greater than or equal to "
               f"MaxRuntimeInSeconds ({runtime})")  # fmt: skip
    if wait is not None and not is_spot:
        yield "MaxWaitTimeInSeconds is only for EnableManagedSpotTraining"
    if is_spot and _section(request, "ResourceConfig").get("KeepAlivePeriodInSeconds"):
        yield "KeepAlivePeriodInSeconds: warm pools are not supported with EnableManagedSpotTraining"


def _strings(field: str, found: object, key: re.Pattern[str], longest: int) -> Iterator[str]:
    if not isinstance(found, Mapping):
        yield f"'{field}' must be a map of strings"
        return
    if len(found) > MAX_ENTRIES:
        yield f"'{field}' has {len(found)} entries: at most {MAX_ENTRIES}"
    for name, value in found.items():
        if not isinstance(name, str) or not key.fullmatch(name):
            yield f"'{field}' has a key that must satisfy {key.pattern}: {str(name)[:80]!r}"
        elif not isinstance(value, str) or len(value) > longest or "\0" in value:
            yield f"'{field}.{name}' must be a string of at most {longest} characters"


def _quotes(request: Request) -> Iterator[str]:
    """What would be run as a command: the drivers write `export SM_HP_NAME='VALUE'` into a file that a shell reads."""
    channels, given = request.get("InputDataConfig", ()), request.get("HyperParameters", {})
    if not isinstance(channels, list | tuple) or not isinstance(given, Mapping):
        return
    if not any(isinstance(one, Mapping) and one.get("ChannelName") == DRIVERS for one in channels):
        return
    for name, value in given.items():
        if "'" in str(value) or not SHELL_SAFE.fullmatch(str(name)):
            yield (f"'HyperParameters' has a quote in the value or the name of {str(name)[:80]!r}: the drivers in the "
                   f"channel {DRIVERS} write it unescaped into a shell script, which runs what follows it")  # fmt: skip


def _channels(channels: object) -> Iterator[str]:
    if not isinstance(channels, list | tuple):
        yield "'InputDataConfig' must be a list"
        return
    if len(channels) > MAX_CHANNELS:
        yield f"'InputDataConfig' has {len(channels)} channels: at most {MAX_CHANNELS}"
    names: set[str] = set()
    for channel in channels:
        name = channel.get("ChannelName") if isinstance(channel, Mapping) else None
        if not isinstance(name, str) or not CHANNEL.fullmatch(name):
            yield f"Value {name!r} at 'channelName' must satisfy [A-Za-z0-9.-_]+, at most 64 characters"
        elif name in names:
            yield f"two channels have the name {name}"
        else:
            names.add(name)
            yield from _channel(f"InputDataConfig.{name}", channel)


def _channel(where: str, channel: Mapping[str, Any]) -> Iterator[str]:
    source = _section(_section(channel, "DataSource"), "S3DataSource")
    if not source:
        yield f"'{where}.DataSource': the twin reads an S3DataSource"
        return
    yield from _uri(f"{where}.S3Uri", source.get("S3Uri"))
    yield from _mode(f"{where}.InputMode", channel.get("InputMode", "File"))
    for field, found, known in (
        ("S3DataType", source.get("S3DataType", "S3Prefix"), ("S3Prefix",)),
        ("S3DataDistributionType", source.get("S3DataDistributionType", "FullyReplicated"),
         ("FullyReplicated", "ShardedByS3Key")),
        ("CompressionType", channel.get("CompressionType", "None"), ("None",)),
        ("RecordWrapperType", channel.get("RecordWrapperType", "None"), ("None",)),
    ):  # fmt: skip
        if found not in known:
            yield f"'{where}.{field}' is {found!r}: the twin has {' and '.join(known)}"


def _checkpoints(config: object) -> Iterator[str]:
    if config is None:
        return
    section = config if isinstance(config, Mapping) else {}
    yield from _uri("CheckpointConfig.S3Uri", section.get("S3Uri"))
    path = PurePosixPath(str(section.get("LocalPath", CHECKPOINTS)))
    inside = path.parts[3:]
    if (
        path.parts[:3] != ("/", "opt", "ml")
        or not inside
        or ".." in inside
        or inside[0] in ("input", "model", "output")
    ):
        yield (f"'CheckpointConfig.LocalPath' is {str(path)!r}: the twin has checkpoints below /opt/ml, and not in its "
               "folders input, model and output")  # fmt: skip
