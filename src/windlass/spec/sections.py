"""Models for the sections of a job file: nodes, resources, data, restarts, and options of each engine."""

from __future__ import annotations

import re
import shlex
import sys
import types
from collections.abc import Iterator
from posixpath import normpath
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
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

from windlass.spec.names import DataName, Label, Line, Location, OnlyList, Word, location, unfit_for_pods
from windlass.spec.pod_patch import ROOT
from windlass.spec.positions import Positions, found, in_order
from windlass.spec.problems import number_hint, problems_of, refuse, refuse_all
from windlass.spec.units import Duration, Interval, Size
from windlass.stores.gs_az import KINDS
from windlass.stores.url import Url

Cause = Literal["failure", "preemption", "node-loss", "hang"]
Workload = Literal["auto", "job", "jobset", "trainjob", "pytorchjob", "mpijob"]

_NO_PLUGINS = types.ModuleType("no_plugins")
_NO_PLUGINS.get_plugins = tuple  # type: ignore[attr-defined]
Launcher = Literal["torchrun", "pytorch", "tensorflow", "jax", "mpi", "plain"]


class Section(BaseModel):
    """Base class of all models; instances are immutable, and unknown fields are refused."""

    # For a fast start-up, validators of nested models are not built on import, and only `schema.py` reads the
    # descriptions of fields from the source.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yields only the fields that were set, where pydantic would yield all fields."""
        return ((name, value) for name, value in super().__repr_args__() if name in self.model_fields_set)

    @classmethod
    def model_rebuild(cls, **options: Any) -> bool | None:
        """Builds the validator, without pydantic plugins that other packages install."""
        # The empty module keeps pydantic from searching all installed packages for plugins, a third of the import time.
        loader = "pydantic.plugin._loader"
        sys.modules.setdefault(loader, _NO_PLUGINS)
        try:
            return super().model_rebuild(**options)
        finally:
            if sys.modules.get(loader) is _NO_PLUGINS:
                sys.modules.pop(loader, None)  # another thread may have removed the module already


class Document(Section):
    """Base class of models for a whole document. Creating an instance raises a `JobFileError` that lists every
    problem.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _raise_all_problems(cls, given: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        try:
            return handler(given)
        except ValidationError as error:
            positions = info.context if isinstance(info.context, Positions) else Positions.of(given, cls.__name__)
            raise in_order([*positions.problems, *problems_of(error, cls, positions)]) from None


def in_s3(address: str | None, what: str) -> str | None:
    """Checks that an address, if given, is in S3; in the message, `what` names the content of the address."""
    if address is not None and not re.match(r"s3://[^/]", address):
        raise refuse(f"is {address}, and {what} in S3", "write s3://BUCKET/PREFIX, or leave it out")
    return address


STORES: Final = ("s3", *KINDS)
HTTP: Final = ("http://", "https://")
"""URL schemes of sources that a training script can read by itself."""


def not_below_min(most: int, info: ValidationInfo) -> int:
    """Checks that a maximum is not below the minimum of the same section."""
    if most < info.data.get("min", most):
        raise refuse(f"is below min, found {most} and min {info.data['min']}")
    return most


class NodeRange(Section):
    """Range of the number of nodes of a job; a plain number in the file sets both limits."""

    min: Annotated[StrictInt, Field(ge=1, le=100_000)]
    """Minimum number of nodes to train."""
    max: Annotated[StrictInt, Field(ge=1, le=100_000), AfterValidator(not_below_min)]
    """Maximum number of nodes."""

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes may change while the job runs."""
        return self.min != self.max


def _node_range(given: object) -> object:
    """Converts a plain number of nodes to a range."""
    if isinstance(given, dict | NodeRange):
        return given
    if isinstance(given, str) and (match := re.fullmatch(r"\s*(\d{1,9})\s*(?::|-|\.\.)\s*(\d{1,9})\s*", given)):
        raise refuse(
            f"expected a whole number or a range, found {found(given)}", f"write {{min: {match[1]}, max: {match[2]}}}"
        )
    count = _count(given, "a whole number or {min: 1, max: 4}", 1, 100_000)
    return {"min": count, "max": count}


def _procs(given: object) -> object:
    """Validates the ranks per node: a number or `auto`."""
    return given if given == "auto" else _count(given, "a whole number or auto", 1, 1024)


def _count(given: object, expected: str, least: int, most: int) -> int:
    """Validates a number in place of a section; checked here, so that the message shows the value in the file."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise refuse(f"expected {expected}, found {found(given)}", number_hint(given))
    if given < least:
        raise refuse(f"must be at least {least}, found {found(given)}")
    if given > most:
        raise refuse(f"must be at most {most}, found {found(given)}")
    return given


def _not_tiny(size: int) -> int:
    """Refuses memory of less than 1 MiB: the author of `memory: 16` means 16 GiB."""
    if size < 1 << 20:
        raise refuse(f"is {size} bytes", f"write {size}GiB" if size <= 1 << 16 else "write at least 1MiB")
    return size


class Resources(Section):
    """Resources of each node of the job."""

    gpus: Annotated[StrictInt, Field(ge=0, le=1024)] = 0
    """Number of GPUs of each node. Default 0, so that a first job runs on any machine."""
    gpu_type: Label | None = None
    """GPU model, such as `T4` or `H100`. Default: any."""
    cpus: Annotated[StrictFloat, Field(gt=0, le=100_000, allow_inf_nan=False)] | None = None
    """Number of CPU cores of each node; fractions are allowed. Default: set by the target."""
    memory: Annotated[Size, Field(gt=0), AfterValidator(_not_tiny)] | None = None
    """Main memory of each node in bytes, written as `16GiB`. Default: set by the target."""
    shm: Annotated[Size, Field(gt=0), AfterValidator(_not_tiny)] | None = None
    """Shared memory (`/dev/shm`) of each node in bytes, used by data loaders and NCCL. Default: the target's; on a
    cluster the value of `memory`, or 8 GiB without it. Used shared memory counts as memory."""
    instance: Label | None = None
    """Instance type of a cloud, such as `g4dn.xlarge`. Default: chosen by the target."""

    @field_validator("gpu_type")
    @classmethod
    def _needs_gpus(cls, gpu_type: str | None, info: ValidationInfo) -> str | None:
        if gpu_type is not None and info.data.get("gpus") == 0:
            raise refuse(f"is {gpu_type}, but no GPU is requested", "add gpus: 1")
        return gpu_type


class Data(Section):
    """A data set that is provided on every node; the variable `env_name` gives ranks its path."""

    name: DataName
    """Name of the data set: the script finds `digits` at `$WINDLASS_DATA_DIGITS`."""
    source: Location
    """Location of the data set: a path relative to the job file, or an address such as `s3://bucket/digits/` or
    `https://example.com/digits.tar`. An HTTPS address is that of one file, or of a list of files with SHA-256
    digests."""
    via: Literal["copy", "mount", "stream"] = "copy"
    """How nodes access the data. Default `copy`: copied to the node and verified, so the script reads at disk speed.
    `mount`: the cluster mounts the source and copies nothing. `stream`: the script reads samples directly from the
    source with `windlass.train.stream`."""
    write: StrictBool = False
    """With `via: mount`: whether ranks may write. Default false: mounted read-only."""
    size: Annotated[Size, Field(gt=0)] | None = None
    """With `via: mount`: approximate bytes of the data set, written as `2TiB`, used to choose how to mount it. Default:
    unknown."""
    files: Annotated[StrictInt, Field(gt=0)] | None = None
    """With `via: mount`: approximate number of files in the data set, used to choose how to mount it. Default:
    unknown."""

    @field_validator("source")
    @classmethod
    def _has_no_secret(cls, source: str) -> str:
        """Refuses secrets in URLs, because the record of a run stores the job. The message does not repeat the URL."""
        if not source.startswith(HTTP):
            return source
        try:
            url = Url.parse(source)
        except ValueError as error:
            raise refuse(f"is a URL that cannot be used: {error}", "write https://HOST/PATH") from None
        if url.has_secret:
            what = "a query, such as that of a presigned URL," if url.query else "a user or a password"
            raise refuse(
                f"has {what} and the record of a run would keep it",
                "windlass data copy 'URL' s3://BUCKET/PREFIX, or to a folder, and give that as source:",
            )
        if not url.name or "*" in source:
            what = "has a pattern" if url.name else "names no file"
            raise refuse(f"{what}: an HTTP server does not list its files", "name a file, or a SHA256SUMS")
        return source

    @field_validator("via")
    @classmethod
    def _can_be_streamed(cls, via: str, info: ValidationInfo) -> str:
        scheme, is_url, _ = info.data.get("source", "").partition("://")
        if via == "stream" and is_url and scheme not in (*STORES, "file"):
            known = "streams are read from s3://, gs:// and az://, and from folders"
            raise refuse(f"is stream, but the source is in {scheme}://", known)
        return via

    @model_validator(mode="after")
    def _has_only_fields_of_its_way(self) -> Self:
        if self.via != "mount" and (self.write or self.size is not None or self.files is not None):
            raise refuse("has write:, size: or files:, which only via: mount uses", "leave them out, or via: mount")
        return self

    @property
    def is_mounted(self) -> bool:
        """Whether the cluster mounts the source."""
        return self.is_remote and self.via == "mount"

    @property
    def is_streamed(self) -> bool:
        """Whether ranks read samples directly from the source."""
        return self.via == "stream"

    @property
    def is_staged(self) -> bool:
        """Whether the data set is fetched before the first attempt."""
        return self.is_remote and self.via == "copy"

    @property
    def is_remote(self) -> bool:
        """Whether the source is in a store, not in a folder."""
        return "://" in self.source

    @property
    def scheme(self) -> str:
        """Scheme of the source, such as `s3` of `s3://bucket/digits/`; empty for a folder."""
        return self.source.partition("://")[0] if self.is_remote else ""

    @property
    def env_name(self) -> str:
        """Variable that holds the path of the data set on the node, or the address of the source if it is streamed."""
        return f"WINDLASS_DATA_{self.name.upper().replace('-', '_')}"


def _below_the_code(pattern: str) -> str:
    if pattern.startswith(("/", "~")) or "://" in pattern or ".." in pattern.split("/"):
        raise refuse(
            f"is {pattern}, but files are collected only from the code folder",
            "write a pattern of paths in it, such as out/** or *.pt",
        )
    return pattern


class Checkpoint(Section):
    """How often a checkpoint is expected, how many are kept, and how a script with checkpoints of its own resumes."""

    every: Interval | None = None
    """Seconds between checkpoints, or steps (`100 steps`), passed to the script. Default: the script decides."""
    keep: Annotated[StrictInt, Field(ge=1, le=100_000)] = 3
    """Number of newest checkpoints to keep. Default 3, because a crash can damage the last checkpoint."""
    folder: Location | None = None
    """Location in which `windlass.train` stores checkpoints: `s3://bucket/checkpoints/`, `gs://…` or `az://…`, with a
    folder for each run. Default: with the run; on a cluster, with its results."""
    find: Line | None = None
    """Pattern of the checkpoints (files or folders) that the script itself saves in `$WINDLASS_CHECKPOINT_DIR`:
    `checkpoint-*`. Default: none."""
    resume: Line | None = Field(default=None, validate_default=True)
    """Arguments that are added to the script once a checkpoint exists: `--resume_from_checkpoint {path}`; or, for a
    script that finds the checkpoint itself, an option without a path: `--init_from=resume`. Needs `find`."""

    @field_validator("folder")
    @classmethod
    def _is_in_a_store(cls, folder: str | None) -> str | None:
        if folder is not None and not re.match(rf"({'|'.join(STORES)})://[^/]", folder):
            raise refuse(
                f"is {folder}, and checkpoints are kept in the run's own folder or in a store",
                "write s3://, gs:// or az://BUCKET/PREFIX, or leave it out",
            )
        return folder

    @field_validator("find")
    @classmethod
    def _looks_in_a_folder(cls, find: str | None, info: ValidationInfo) -> str | None:
        if find is not None and info.data.get("folder") is not None:
            raise refuse("cannot be used with folder: a script that saves its own writes to a disk", "leave folder out")
        return find

    def location(self, run_id: str, default: str) -> str:
        """Returns where the checkpoints of a run are stored: an address, or the folder `default`."""
        return default if self.folder is None else f"{self.folder.rstrip('/')}/{run_id}"

    @field_validator("resume")
    @classmethod
    def _has_path_and_find(cls, resume: str | None, info: ValidationInfo) -> str | None:
        find = info.data.get("find")
        if resume is None:
            if find is not None:
                raise refuse("required with find, but missing", "write for example --resume {path}")
            return None
        if "find" in info.data and find is None:
            raise refuse(f"is {resume}, but find names no checkpoints to resume from", "add find: 'checkpoint-*'")
        try:
            shlex.split(resume)
        except ValueError as error:
            raise refuse(f"cannot be split into words: {str(error).lower()}", "close the quote") from None
        if "{path}" not in resume and (other := re.search(r"\{\w*\}", resume)):
            raise refuse(f"has {other[0]}, and only {{path}} is replaced", "write for example --resume {path}")
        return resume


CodePattern = Annotated[Line, AfterValidator(_below_the_code)]
"""A pattern of paths in the code folder."""


class Outputs(Section):
    """Where and when results are stored, and which files of the code folder are results; a plain text in the file sets
    `to`.
    """

    to: Location | None = None
    """A folder, relative to the job file, or an address such as `s3://bucket/runs/`. Default: kept with the run."""
    at: Literal["end", "checkpoint"] = "end"
    """When results are uploaded to a store: `end` is after the last attempt; `checkpoint` also after each checkpoint,
    while training continues. Default `end`."""
    collect: Annotated[tuple[CodePattern, ...], OnlyList] = ()
    """Patterns of files in the code folder that are results: `["out/**", "*.pt"]`. Files that were created or changed
    since the start of the run are copied to its outputs when the ranks of a node have ended. Default: none; a script
    writes its results to `$WINDLASS_OUTPUT_DIR`."""

    @field_validator("at")
    @classmethod
    def _needs_a_store(cls, at: str, info: ValidationInfo) -> str:
        if at == "checkpoint" and "://" not in (info.data.get("to") or ""):
            raise refuse("is checkpoint, and to: names no store", "write to: s3://BUCKET/PREFIX")
        return at

    @property
    def scheme(self) -> str:
        """Scheme of the upload address, such as `s3` of `s3://bucket/runs/`; empty for a folder."""
        return (self.to or "").rpartition("://")[0]


def _outputs(given: object) -> object:
    """Converts a plain address or folder to the section."""
    if given is None:
        return {}
    return {"to": location(given)} if isinstance(given, str) else given


class Restarts(Section):
    """How often, and after which failures, the ranks are restarted."""

    max: Annotated[StrictInt, Field(ge=0, le=100_000)] = 0
    """Maximum number of restarts. Default 0, as in torchrun, so that a bug in the script ends the run at once."""
    on: Annotated[tuple[Cause, ...], OnlyList] = ("failure", "preemption", "node-loss", "hang")
    """Kinds of failures after which ranks are restarted. Default: all four."""

    @field_validator("on")
    @classmethod
    def _each_once(cls, causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
        if not causes:
            raise refuse("is empty", "write max: 0 for no restarts")
        if len(set(causes)) < len(causes):
            raise refuse(f"names a cause twice, found {', '.join(causes)}")
        return causes


def _restart_policy(given: object) -> object:
    """Converts a plain number of restarts to a policy."""
    if isinstance(given, dict | Restarts):
        return given
    return {"max": _count(given, "a whole number or {max: 3, on: [failure]}", 0, 100_000)}


class Volume(Section):
    """Storage of a cluster that is mounted into every worker."""

    claim: Label | None = None
    """Name of the PersistentVolumeClaim. Default: the volume is of another kind."""
    config_map: Label | None = None
    """Name of a ConfigMap whose entries are the files of the volume. Default: the volume is of another kind."""
    secret: Label | None = None
    """Name of a Secret whose entries are the files of the volume. Default: the volume is of another kind."""
    source: dict[str, Any] = Field(default_factory=dict, validate_default=True)
    """Volume source of any other kind, as in a pod: `{hostPath: {path: /dev/infiniband}}`. Default: the
    volume is of another kind."""
    path: Line
    """Absolute path at which workers see the volume: `/results`."""
    sub_path: Line | None = None
    """Folder or file of the volume that is mounted, such as `team/data`. Default: the whole volume."""
    read_only: StrictBool = False
    """Whether workers can only read the volume. Default false."""

    @field_validator("source")
    @classmethod
    def _one_kind(cls, source: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        # The name of an invalid one is not in `data`; its own error is enough.
        kinds = [name for name in ("claim", "config_map", "secret") if info.data.get(name, "") is not None]
        kinds += ["source"] if source else []
        if len(kinds) != 1:
            raise refuse(
                f"expected one of claim, config_map, secret and source, found {' and '.join(kinds) or 'none'}",
                "write for example claim: NAME",
                at="" if kinds else "claim",
            )
        if source and (len(source) != 1 or not isinstance(next(iter(source.values())), dict)):
            [*names] = map(str, source)
            what = " and ".join(names) if names[1:] else f"{names[0]}: {found(source[names[0]])}"
            raise refuse(f"expected one volume source, found {what}", "write for example {hostPath: {path: /dev}}")
        errors = [(path, refuse(message, hint)) for path, message, hint in unfit_for_pods(source)]
        if errors:
            raise refuse_all(errors)
        return source

    @field_validator("path")
    @classmethod
    def _from_the_root(cls, path: str) -> str:
        if not path.startswith("/") or ".." in path.split("/") or not path.strip("/"):
            raise refuse(f"expected a folder from the root, found {found(path)}", "write for example /results")
        if (place := normpath(path).replace("//", "/")) == "/dev/shm":
            raise refuse("is the shared memory of the ranks", "use resources.shm")
        if f"{place}/".startswith(f"{ROOT}/"):
            raise refuse(f"is below {ROOT}, which Windlass uses", "choose another path")
        return path

    @field_validator("sub_path")
    @classmethod
    def _inside(cls, path: str | None) -> str | None:
        if path is not None and (path.startswith("/") or ".." in path.split("/")):
            raise refuse(f"expected a path inside the volume, found {found(path)}", "write for example team/data")
        return path


class LocalOptions(Section):
    """Options of the local engine."""

    netns: StrictBool = False
    """Whether each node gets its own network namespace (Linux, needs privileges). Default false: no setup needed."""
    rate: str | None = Field(default=None, json_schema_extra={"pattern": r"^[0-9]{1,6}(\.[0-9]{1,3})?[kmgt]?bit$"})
    """Bandwidth between nodes in the syntax of `tc`: `1gbit`. Needs `netns`. Default: not limited."""
    back_after: Annotated[Duration, Field(ge=0)] = 10.0
    """Minimum seconds before a lost node of an elastic job may rejoin. Default 10."""
    port: Annotated[StrictInt, Field(ge=1, le=65535)] | None = None
    """Fixed MASTER_PORT. Default: a free port for each attempt, so that concurrent runs do not collide."""

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


class Results(Section):
    """Storage of the cluster that keeps a run's outputs and checkpoints after its pods are deleted."""

    claim: Label | None = None
    """Name of an existing claim, in which the run gets its own folder. Default: a claim is created."""
    size: Annotated[Size, Field(gt=0)] | None = Field(default=None, validate_default=True)
    """Bytes of the created claim, written as `20GiB`. Required without `claim`."""
    storage_class: Label | None = None
    """Storage class of the created claim. Default: the cluster's."""
    keep: StrictBool = False
    """Whether the created claim is kept when the run is removed. Default false: `rm` removes all objects of the run."""

    @field_validator("size")
    @classmethod
    def _claim_or_size(cls, size: int | None, info: ValidationInfo) -> int | None:
        claim = info.data.get("claim")
        if claim is None and size is None:
            raise refuse("required without claim, but missing", "write for example size: 20GiB")
        if claim is not None and size is not None:
            raise refuse(f"is given together with claim {claim}", "leave out one of claim and size")
        return size


class DataClaim(Section):
    """Storage of the cluster in which data sets are staged, once for all runs that read them."""

    claim: Label = "windlass-data"
    """Name of the claim. Default `windlass-data`."""
    size: Annotated[Size, Field(gt=0)] | None = None
    """Bytes of the claim, written as `200GiB`. The first run creates the claim, which stays when runs are removed.
    Default: the claim must exist already."""
    storage_class: Label | None = None
    """Storage class of the created claim; its volumes must support mounts on many nodes. Default: the cluster's."""


class FileSystem(Section):
    """A file system in the cluster's account that exposes part of a bucket, for `via: mount`."""

    kind: Literal["s3-files", "lustre"]
    """Kind of the file system. `s3-files`: an S3 file system, mounted by the EFS CSI driver 3.0 or newer. `lustre`: FSx
    for Lustre with a data repository association."""
    id: Annotated[Word, Field(pattern=r"^fs-[0-9a-f]{8,40}$")]
    """Id of the file system, such as `fs-0123456789abcdef0`."""
    source: Location
    """Part of the bucket that the file system exposes, such as `s3://bucket/train/`; data sets below this address are
    mounted from the file system."""
    path: Line = "/"
    """Folder of the file system that corresponds to `source`: for Lustre, the path of the association. Default: its
    root."""
    dns_name: Word | None = None
    """Lustre only: DNS name, such as `fs-0123456789abcdef0.fsx.eu-central-1.amazonaws.com`."""
    mount_name: Word | None = None
    """Lustre only: mount name, as assigned by FSx."""

    @field_validator("source")
    @classmethod
    def _is_in_s3(cls, source: str) -> str | None:
        return in_s3(source, "it shows a bucket")

    @field_validator("path")
    @classmethod
    def _leads_down(cls, path: str) -> str:
        if not path.startswith("/") or ".." in path.split("/"):
            raise refuse(f"is {path}, which is no folder of a file system", "write it from its root: /train")
        return path

    @model_validator(mode="after")
    def _can_be_mounted(self) -> Self:
        if self.kind == "lustre" and (self.dns_name is None or self.mount_name is None):
            raise refuse("is of Lustre, and lacks dns_name: or mount_name:", "see: aws fsx describe-file-systems")
        if self.kind != "lustre" and (self.dns_name is not None or self.mount_name is not None):
            raise refuse("has dns_name: or mount_name:, which only Lustre has", "leave them out")
        return self


TRAINING_PLAN: Final = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:\d{12}:training-plan/\S+")


class SageMakerOptions(Section):
    """Options of the SageMaker engine."""

    warm_pool: Duration | None = None
    """Seconds for which instances are kept, and billed, after the job, for the next job. Default: instances are not
    kept."""
    spot: StrictBool = False
    """Whether to use spot instances, which are cheaper but can be interrupted at any time. Default false."""
    max_wait: Annotated[Duration, Field(gt=0)] | None = None
    """Maximum seconds that a job on spot instances may take, including the wait for capacity. Default: the job's time
    limit plus a day."""
    volume: Annotated[Size, Field(ge=1 << 30)] | None = None
    """Disk size of each instance, written as `100GiB`. Default: the target's."""
    training_plan: Line | None = None
    """ARN of the training plan whose reserved capacity the job uses. Default: none, on-demand or spot capacity."""

    @field_validator("training_plan")
    @classmethod
    def _is_not_on_spot(cls, plan: str | None, info: ValidationInfo) -> str | None:
        if plan is not None and not TRAINING_PLAN.fullmatch(plan):
            raise refuse("is no ARN of a training plan", "aws sagemaker list-training-plans shows it")
        if plan is not None and info.data.get("spot"):
            raise refuse("is reserved capacity, and spot is not", "leave one out")
        return plan

    @field_validator("spot")
    @classmethod
    def _is_not_kept(cls, spot: bool, info: ValidationInfo) -> bool:
        if spot and info.data.get("warm_pool") is not None:
            raise refuse("cannot be used with warm_pool: SageMaker keeps no spot instances", "leave one out")
        return spot

    @field_validator("max_wait")
    @classmethod
    def _of_spot(cls, max_wait: float | None, info: ValidationInfo) -> float | None:
        if max_wait is not None and not info.data.get("spot"):
            raise refuse("is given, but the job does not wait for spot instances", "add spot: true")
        return max_wait


_Nodes = Annotated[int, Field(ge=1, le=100_000)]
_Count = Annotated[int, Field(ge=0, le=100_000)]
_Ranks = Annotated[int, Field(ge=1, le=1024)]
Nodes = Annotated[NodeRange, BeforeValidator(_node_range, json_schema_input_type=_Nodes | NodeRange)]
RestartPolicy = Annotated[Restarts, BeforeValidator(_restart_policy, json_schema_input_type=_Count | Restarts)]
OutputsPlace = Annotated[Outputs, BeforeValidator(_outputs, json_schema_input_type=Line | Outputs | None)]
Procs = Annotated[int | Literal["auto"], BeforeValidator(_procs, json_schema_input_type=_Ranks | Literal["auto"])]
