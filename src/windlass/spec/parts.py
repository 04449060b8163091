"""The parts of a job as frozen values: nodes, resources, data, restarts, and what only one engine knows."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    StrictBool,
    StrictFloat,
    StrictInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from windlass.spec.names import DataName, Label, LabelKey, LabelValue, Line, Location, OnlyList
from windlass.spec.problems import Places, found, in_order, problems_of, refuse
from windlass.spec.units import Duration, Interval, Size

Cause = Literal["failure", "preemption", "node-loss", "hang"]


class Part(BaseModel):
    """What all parts of a job share: frozen, and closed to unknown fields."""

    # What no command of the day needs is not made at its start: a model's own validator where it is but a part of
    # another, and the descriptions of fields, which `schema.py` reads when it is asked for them.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)


class Document(Part):
    """What stands alone in a file or a call; whoever makes one gets a `JobFileError` with every problem in it."""

    @model_validator(mode="wrap")
    @classmethod
    def _in_our_words(cls, given: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        try:
            return handler(given)
        except ValidationError as error:
            places = info.context if isinstance(info.context, Places) else Places.of(given, cls.__name__)
            raise in_order([*places.problems, *problems_of(error, cls, places)]) from None


class NodeRange(Part):
    """How many nodes a job may have at once; a plain number in the file means that many, no more and no fewer."""

    min: Annotated[StrictInt, Field(ge=1, le=100_000)]
    """Nodes without which the job does not train."""
    max: Annotated[StrictInt, Field(ge=1, le=100_000)]
    """Nodes beyond which it does not grow."""

    @field_validator("max")
    @classmethod
    def _not_below_min(cls, most: int, info: ValidationInfo) -> int:
        if most < info.data.get("min", 1):
            raise refuse(f"is below min, found {most} and min {info.data['min']}")
        return most

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes may change while the job runs."""
        return self.min != self.max


def _node_range(given: object) -> object:
    """Both ways to write `nodes`, as the longer one."""
    if isinstance(given, dict | NodeRange):
        return given
    if isinstance(given, str) and (match := re.fullmatch(r"\s*(\d{1,9})\s*(?::|-|\.\.)\s*(\d{1,9})\s*", given)):
        raise refuse(
            f"expected a whole number or a range, found {found(given)}", f"write {{min: {match[1]}, max: {match[2]}}}"
        )
    count = _count(given, "a whole number or {min: 1, max: 4}", 1, 100_000)
    return {"min": count, "max": count}


def _procs(given: object) -> object:
    """Ranks of a node: a number or `auto`."""
    return given if given == "auto" else _count(given, "a whole number or auto", 1, 1024)


def _count(given: object, expected: str, least: int, most: int) -> int:
    """The short form of a part that is a number: checked here, so that the message names what was written."""
    if isinstance(given, bool) or not isinstance(given, int):
        hint = ""
        if isinstance(given, float) and given.is_integer():
            hint = f"write {int(given)}"
        if isinstance(given, str) and len(given) < 20 and given.strip().isdecimal():
            hint = f"write {given.strip()} without quotes"
        raise refuse(f"expected {expected}, found {found(given)}", hint)
    if given < least:
        raise refuse(f"must be at least {least}, found {found(given)}")
    if given > most:
        raise refuse(f"must be at most {most}, found {found(given)}")
    return given


class Resources(Part):
    """What each node has for the job."""

    gpus: Annotated[StrictInt, Field(ge=0, le=1024)] = 0
    """GPUs of each node. Default 0, so that a first job runs anywhere."""
    gpu_type: Label | None = None
    """Kind of GPU, such as `T4` or `H100`. Default: any."""
    cpus: Annotated[StrictFloat, Field(gt=0, le=100_000, allow_inf_nan=False)] | None = None
    """CPU cores of each node, parts of one allowed. Default: what the target gives."""
    memory: Annotated[Size, Field(gt=0)] | None = None
    """Main memory of each node in bytes, written as `16GiB`. Default: what the target gives."""
    shm: Annotated[Size, Field(gt=0)] | None = None
    """Shared memory (`/dev/shm`) of each node in bytes, which data loaders and NCCL need. Default: the target's."""
    instance: Label | None = None
    """Machine type of a cloud, such as `g4dn.xlarge`. Default: chosen by the target."""

    @field_validator("gpu_type")
    @classmethod
    def _type_of_some_gpu(cls, gpu_type: str | None, info: ValidationInfo) -> str | None:
        if gpu_type is not None and info.data.get("gpus") == 0:
            raise refuse(f"is {gpu_type}, but no GPU is asked for", "add gpus: 1")
        return gpu_type


class Data(Part):
    """One set of data that is brought to where the workers read it; they find it by `env_name`."""

    name: DataName
    """What the script knows it by: `digits` is at `$WINDLASS_DATA_DIGITS`."""
    source: Location
    """Where it comes from: a path, or an address such as `s3://bucket/digits/`."""
    via: Literal["copy", "mount", "stream"] = "copy"
    """How it gets there. Default `copy`: verified and local, so the script reads it at the speed of the disk."""

    @property
    def env_name(self) -> str:
        """The variable that holds its place on the worker."""
        return f"WINDLASS_DATA_{self.name.upper().replace('-', '_')}"


class Checkpoint(Part):
    """How often a checkpoint is expected, how many are kept, and how a script that saves its own goes on from one."""

    every: Interval | None = None
    """Seconds between checkpoints, or steps (`100 steps`); the script is told. Default: the script decides."""
    keep: Annotated[StrictInt, Field(ge=1, le=100_000)] = 3
    """Checkpoints kept, the newest first. Default 3: the last one can be torn by the crash that made it needed."""
    find: Line | None = None
    """Files or folders that the script itself saves: `checkpoint-*`, in `$WINDLASS_CHECKPOINT_DIR`. Default: none."""
    resume: Line | None = Field(default=None, validate_default=True)
    """What is added to the script's arguments once there is one: `--resume_from_checkpoint {path}`. Needs `find`."""

    @field_validator("resume")
    @classmethod
    def _says_how_to_go_on(cls, resume: str | None, info: ValidationInfo) -> str | None:
        find = info.data.get("find")
        if resume is None:
            if find is not None:
                raise refuse("is needed beside find, and not there", "write for example --resume {path}")
            return None
        if "find" in info.data and find is None:
            raise refuse(f"is {resume}, but find does not say what to go on from", "add find: 'checkpoint-*'")
        try:
            words = shlex.split(resume)
        except ValueError as error:
            raise refuse(f"cannot be split into words: {str(error).lower()}", "close the quote") from None
        if not any("{path}" in word for word in words):
            raise refuse(f"has no {{path}}, found {found(resume)}", "write for example --resume {path}")
        return resume


class Restarts(Part):
    """When the workers are started again after some of them died."""

    max: Annotated[StrictInt, Field(ge=0, le=100_000)] = 0
    """Restarts at most. Default 0, as torchrun: a bug in the script should be seen the first time."""
    on: Annotated[tuple[Cause, ...], OnlyList] = ("failure", "preemption", "node-loss", "hang")
    """Causes that are worth a restart. Default: all four."""

    @field_validator("on")
    @classmethod
    def _each_once(cls, causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
        if not causes:
            raise refuse("is empty", "write max: 0 for no restarts")
        if len(set(causes)) < len(causes):
            raise refuse(f"names a cause twice, found {', '.join(causes)}")
        return causes


def _restart_policy(given: object) -> object:
    """Both ways to write `restarts`, as the longer one."""
    if isinstance(given, dict | Restarts):
        return given
    return {"max": _count(given, "a whole number or {max: 3, on: [failure]}", 0, 100_000)}


class Volume(Part):
    """Storage of a cluster that is mounted into every worker."""

    claim: Label
    """Name of the PersistentVolumeClaim."""
    path: Line
    """Folder at which the workers see it, from the root: `/results`."""

    @field_validator("path")
    @classmethod
    def _from_the_root(cls, path: str) -> str:
        if not path.startswith("/") or ".." in path.split("/") or not path.strip("/"):
            raise refuse(f"expected a folder from the root, found {found(path)}", "write for example /results")
        return path


class LocalOptions(Part):
    """What only the local engine knows."""

    agent: Literal["own", "torchrun"] = "own"
    """Who starts the ranks here. Default `own`: the same environment as torchrun's, many times sooner."""
    netns: StrictBool = False
    """Whether each node gets a network of its own (Linux, needs privileges). Default false: nothing to set up."""
    rate: str | None = Field(default=None, json_schema_extra={"pattern": r"^[0-9]{1,6}(\.[0-9]{1,3})?[kmgt]?bit$"})
    """Speed of the network between nodes, as `tc` writes it: `1gbit`. Needs `netns`. Default: not limited."""
    start: Literal["warm", "cold"] = "warm"
    """Whether ranks may be forked from a process that did their imports. Default `warm`; cold where that is unsafe."""
    back_after: Annotated[Duration, Field(ge=0)] = 10.0
    """Seconds that a lost node of an elastic job stays away, at least, before it is let in again. Default 10."""
    port: Annotated[StrictInt, Field(ge=1, le=65535)] | None = None
    """Fixed MASTER_PORT. Default: reserved from the kernel at each attempt, so that two runs never meet."""

    @field_validator("rate", mode="before")
    @classmethod
    def _rate_of_a_network(cls, rate: object, info: ValidationInfo) -> object:
        if rate is None:
            return None
        match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)[kmgt]?bit", rate) if isinstance(rate, str) else None
        if match is None or not float(match[1]):
            raise refuse(f"expected a rate, found {found(rate)}", "write for example 1gbit or 100mbit")
        if info.data.get("netns") is False:
            raise refuse(f"is {rate}, but the nodes share this machine's network", "add netns: true")
        return rate


class Results(Part):
    """Storage of the cluster that keeps a run's outputs and checkpoints when its pods are gone."""

    claim: Label | None = None
    """Name of a claim that is there; the run gets a folder of its own in it. Default: one is made."""
    size: Annotated[Size, Field(gt=0)] | None = Field(default=None, validate_default=True)
    """Bytes of the claim that is made, written as `20GiB`. Needed where `claim` is not given."""
    storage_class: Label | None = None
    """Storage class of the claim that is made. Default: the cluster's."""
    keep: StrictBool = False
    """Whether the claim that is made stays when the run is removed. Default false: `rm` removes all that a run made."""

    @field_validator("size")
    @classmethod
    def _claim_or_size(cls, size: int | None, info: ValidationInfo) -> int | None:
        claim = info.data.get("claim")
        if claim is None and size is None:
            raise refuse("is needed where no claim is named, and not there", "write for example size: 20GiB")
        if claim is not None and size is not None:
            raise refuse(f"is given, but {claim} is there already", "leave out one of claim and size")
        return size


class KubernetesOptions(Part):
    """What only the Kubernetes engine knows."""

    via: Literal["auto", "job", "jobset", "trainjob", "pytorchjob", "mpijob"] = "auto"
    """Kind of object that is made. Default `auto`: the best that the cluster has."""
    runtime: Label | None = None
    """Name of a training runtime of the cluster, on which a TrainJob is to stand. Default: one is made for the run."""
    runtime_kind: Literal["TrainingRuntime", "ClusterTrainingRuntime"] | None = None
    """Where that runtime is. Default: in the namespace, and if it is not there, in the cluster."""
    namespace: Label | None = None
    """Namespace. Default: the target's."""
    results: Results | None = None
    """Keeps outputs and checkpoints when pods are gone: `{claim: NAME}` or `{size: 20GiB}`. Default: nothing does."""
    service_account: Label | None = None
    """Service account of the pods. Default: the namespace's own; its token is not mounted either way."""
    image_pull_secrets: Annotated[tuple[Label, ...], OnlyList] = ()
    """Secrets of the namespace with logins of image registries, beside the target's. Default: none."""
    node_labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels that machines have to have for the pods to go there. Default: none."""
    ttl: Annotated[Duration, Field(ge=0)] | None = None
    """Seconds after their end for which the pods of an attempt are kept. Default: until the run is removed. The run's
    other objects, with a claim made for it, stay until `windlass rm RUN` in either case."""
    lost_after: Annotated[Duration, Field(ge=0)] | None = None
    """Seconds that a machine may be silent, once its cluster has noticed, until its pods are given up. Default: 30
    where `restarts` or a range of nodes lets the job go on without them, else the cluster's own, mostly 300."""


class SageMakerOptions(Part):
    """What only the SageMaker engine knows."""

    warm_pool: Duration | None = None
    """Seconds that machines are kept, and paid for, after the job, for the next one. Default: none are kept."""


_Nodes = Annotated[int, Field(ge=1, le=100_000)]
_Count = Annotated[int, Field(ge=0, le=100_000)]
_Ranks = Annotated[int, Field(ge=1, le=1024)]
Nodes = Annotated[NodeRange, BeforeValidator(_node_range, json_schema_input_type=_Nodes | NodeRange)]
RestartPolicy = Annotated[Restarts, BeforeValidator(_restart_policy, json_schema_input_type=_Count | Restarts)]
Procs = Annotated[int | Literal["auto"], BeforeValidator(_procs, json_schema_input_type=_Ranks | Literal["auto"])]
