"""Reads a SageMaker training job: a saved CreateTrainingJob request or DescribeTrainingJob response."""

from __future__ import annotations

from typing import Any, Final

from windlass.importers.common import put_start
from windlass.importers.container_command import start_of
from windlass.importers.documents import Documents
from windlass.importers.draft import Draft
from windlass.importers.field_hints import hints
from windlass.importers.sagemaker_target import machines, read_target
from windlass.importers.sagemaker_toolkit import Script, script_of_toolkit
from windlass.importers.source import View
from windlass.spec.names import legal_name

MARKS: Final = ("TrainingJobName", "AlgorithmSpecification")
"""Fields that identify a document as a training job; one is sufficient."""
DRIVERS: Final = "sm_drivers"
"""Channel of the driver scripts that version 3 of the SDK starts."""
CODE: Final = "code"
OURS: Final = ("windlass", "windlass-code")
LOCAL: Final = "/opt/ml/checkpoints"


def is_training_job(value: Any) -> bool:
    """Whether a document is a request for, or a description of, a training job."""
    return isinstance(value, dict) and any(mark in value for mark in MARKS) and "kind" not in value


def sagemaker(found: Documents, draft: Draft) -> None:
    """Reads a training job."""
    draft.is_of_sagemaker = True
    view = found.job.view
    channels = {str(one.at("ChannelName").value): one for one in view.at("InputDataConfig").each()}
    if OURS[0] in channels:
        run = str(view.at("Environment").at("WINDLASS_RUN").value or "RUN")
        raise view.refused(
            "was created by Windlass, and its job is in the record of the run",
            f"windlass rerun {run} runs it again; windlass cp {run}:code FOLDER has its code",
        )
    for name in hints("sagemaker"):
        view.at(name).report(*hints("sagemaker")[name])
    draft.put_name(view.at("TrainingJobName"))
    for variable, value in view.at("Environment").items():
        if isinstance(value.value, str):
            draft.put_env(variable, value.value, value)
    read_target(view, draft)
    _limits(view, draft)
    algorithm = view.at("AlgorithmSpecification")
    _metrics(algorithm)
    mode = algorithm.at("TrainingInputMode")
    if not mode.take_if("File") and all(one.at("InputMode") for one in channels.values()):
        mode.report("the input mode of channels that name none", "each channel here names one", is_handled=True)
    _start(view, channels, draft)
    for name, one in channels.items():
        if name == DRIVERS:
            one.report("programs of the SDK that start the ranks", "Windlass starts them", is_handled=True)
        elif not (name == CODE and DRIVERS in channels):
            _channel(name, one, mode, draft)


def _limits(view: View, draft: Draft) -> None:
    """Reads spot settings, time limits, the warm pool, and checkpoints."""
    spot = view.at("EnableManagedSpotTraining")
    if spot.value is True:
        draft.put("sagemaker.spot", True, spot)
    spot.take_if(False)
    stopping, resources = view.at("StoppingCondition"), view.at("ResourceConfig")
    draft.put_text("sagemaker.training_plan", resources.at("TrainingPlanArn"))
    resources.at("InstancePlacementConfig").report("which instances are near each other", "SageMaker places them")
    stopping.at("MaxPendingTimeInSeconds").report("how long it waits for capacity", "windlass stop ends a wait")
    draft.put_seconds("timeout", stopping.at("MaxRuntimeInSeconds"))
    draft.put_seconds("sagemaker.max_wait", stopping.at("MaxWaitTimeInSeconds"))
    if not resources.at("KeepAlivePeriodInSeconds").take_if(0):
        draft.put_seconds("sagemaker.warm_pool", resources.at("KeepAlivePeriodInSeconds"))
    checkpoints = view.at("CheckpointConfig")
    _usual(checkpoints.at("LocalPath"), LOCAL, "the folder of checkpoints in the container", f"it is {LOCAL} here")
    checkpoints.at("S3Uri").report(
        "where checkpoints are kept", "they are below storage: of the target; copy those to continue from there"
    )
    instead = "restarts: N begins another training job after a failure"
    view.at("RetryStrategy").report("attempts after an internal error of SageMaker", instead)


def _usual(view: View, usual: str, meaning: str, instead: str) -> None:
    """Reports a value unless it equals the default of a job."""
    if not view.take_if(usual):
        view.report(meaning, instead)


def _metrics(view: View) -> None:
    view.at("EnableSageMakerMetricsTimeSeries").report("metrics in the console", "CloudWatch has them", is_handled=True)
    view.at("MetricDefinitions").report(
        "metrics that CloudWatch takes from the log", "progress: one pattern with groups as (?P<step>…) and (?P<loss>…)"
    )


def _start(view: View, channels: dict[str, View], draft: Draft) -> None:
    algorithm = view.at("AlgorithmSpecification")
    at = machines(view).at("InstanceCount")
    nodes = at.whole() or 1
    given, env = view.at("HyperParameters"), draft.fields.get("env", {})
    of_sdk = DRIVERS in channels
    words = [] if of_sdk else [*algorithm.texts("ContainerEntrypoint"), *algorithm.texts("ContainerArguments")]
    if of_sdk:
        for name in ("ContainerEntrypoint", "ContainerArguments"):
            algorithm.at(name).report("how the SDK starts its drivers", "Windlass starts the ranks", is_handled=True)
        script = _of_drivers(given, channels, draft)
    elif words:
        put_start(draft, (start_of(words, env), at), nodes, at)
        for name, value in given.items():
            value.report(
                "a value that the program reads from SM_HPS or hyperparameters.json", f"write --{name} as words"
            )
        return
    elif (found := script_of_toolkit(given, draft)) is not None:
        script = found
    else:
        message = "starts the image's own program, which the request does not name"
        raise algorithm.refused(message, "write what the image starts as ContainerEntrypoint, and import it again")
    start = start_of(script.words(nodes), env, code_travels=True)
    put_start(draft, (start, at), nodes, at, script.procs)


def _of_drivers(given: View, channels: dict[str, View], draft: Draft) -> Script:
    """Returns the script that version 3 of the SDK starts, whose name is in a file of its channel."""
    drivers = channels[DRIVERS].at("DataSource", "S3DataSource", "S3Uri").value
    given.remark(
        "the script and its launcher are named in files of the SDK, not in the request",
        "run: train.py with procs_per_node: auto is written; entry_script says what it is: "
        f"aws s3 cp {drivers}/sourcecode.json -",
    )
    if (code := channels.get(CODE)) is not None:
        source = code.at("DataSource", "S3DataSource", "S3Uri").value
        code.report("the folder of the script", f"aws s3 sync {source} . copies it next to the job file")
    script = Script("train.py", launcher="torchrun", procs="auto")
    script.read(given, draft)
    return script


def _channel(name: str, view: View, mode_of_job: View, draft: Draft) -> None:
    """Reads a channel as a data set; a channel without an input mode has the mode of the job."""
    view.text("ChannelName")
    source = view.at("DataSource", "S3DataSource")
    mode = view.at("InputMode") or mode_of_job
    if mode.value not in (None, "File", "FastFile"):
        mode.report(f"a channel in mode {mode.value}", "data: [{…, via: stream}], which the script reads")
        mode.take()
    for field in ("CompressionType", "RecordWrapperType"):
        view.at(field).take_if("None")
    _usual(
        source.at("S3DataDistributionType"),
        "FullyReplicated",
        "each host gets a part of the files",
        "each has all: the script divides them",
    )
    if view.at("DataSource", "FileSystemDataSource"):
        view.report("a file system of the account", "copy it to S3: data: [{name: …, source: s3://…}]")
    _usual(source.at("S3DataType"), "S3Prefix", "the address is a list of files", "copy them below one address")
    address = source.at("S3Uri")
    legal = legal_name(name)
    via = "mount" if mode.value == "FastFile" else "copy"
    if isinstance(address.value, str) and draft.add(
        "data", {"name": legal, "source": address.value, "via": via}, address
    ):
        mode.take()
        if legal != name:
            view.at("ChannelName").remark(f"the channel {name[:60]}", f"it is {legal} here, and so is its folder")
