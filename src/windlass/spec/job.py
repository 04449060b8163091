"""Defines `Job`: the fields of `job.yaml` and of `windlass.Job(...)`, validated, with all defaults.

Each attribute has the name of its YAML key. Creating a `Job`, from a file or in Python, raises a `JobFileError` that
lists every problem.
"""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from windlass.errors import JobFileError, Problem
from windlass.spec.kubernetes import KubernetesOptions
from windlass.spec.labels import is_reserved
from windlass.spec.names import (
    Env,
    Label,
    LabelKey,
    LabelValue,
    Line,
    Module,
    Name,
    OnlyList,
    SecretName,
    Text,
    Word,
)
from windlass.spec.positions import Path, found
from windlass.spec.problems import MISSING, refuse, refuse_all
from windlass.spec.pythonline import script_of_python
from windlass.spec.runline import kind_of, needs_a_shell, split_run
from windlass.spec.sections import (
    Checkpoint,
    Data,
    Document,
    Launcher,
    LocalOptions,
    NodeRange,
    Nodes,
    Outputs,
    OutputsPlace,
    Procs,
    Resources,
    RestartPolicy,
    Restarts,
    SageMakerOptions,
    Volume,
)
from windlass.spec.units import Duration
from windlass.stores.gs_az import KINDS

if TYPE_CHECKING:
    from typing import Unpack

    from windlass.spec.job_fields import JobFields

MOST_LABELS = 20
PROGRESS_GROUPS = ("step", "total", "epoch", "loss", "samples", "rate")
"""Group names that a `progress` pattern may use."""


def _default_launcher(data: Mapping[str, Any]) -> Launcher:
    """Chooses the default launcher: `plain` for a program or a single rank, which must not get torchrun variables."""
    run = data["run"]
    if run is None or kind_of(split_run(run, data["env"])) == "program":
        return "plain"
    return "plain" if data["nodes"].max == 1 and data["procs_per_node"] == 1 else "torchrun"


class Job(Document):
    """A training job as specified by its author."""

    name: Name
    """Name of the job, used in run ids and on every target: lower-case letters, digits and `-`, at most 40
    characters."""
    run: Text | None = None
    """A script and its arguments: `train.py --epochs 5` or `python train.py --epochs 5`; also `-m package.train`, or a
    program. Alternative: `command`.

    Variables of `env` are expanded (`train.py --lr $LR`), each to one argument. So are `$WINDLASS_CHECKPOINT_DIR`,
    `$WINDLASS_OUTPUT_DIR`, `$WINDLASS_DATA_…`, and per rank `$WINDLASS_RANK`, `$WINDLASS_LOCAL_RANK`,
    `$WINDLASS_NODE_RANK`, `$WINDLASS_WORLD_SIZE`, `$WINDLASS_LOCAL_WORLD_SIZE` and `$WINDLASS_NUM_NODES`. The line is
    not run by a shell: any other `$NAME`, `~`, shell operators and several lines are refused. `'$NAME'` in single
    quotes is passed unchanged.
    """
    command: Annotated[tuple[Text, ...], Field(min_length=1), OnlyList] | None = Field(
        default=None, validate_default=True
    )
    """A program and its arguments as a list, started unchanged for each rank. Alternative: `run`."""
    env: Env = Field(default_factory=dict, validate_default=True)
    """Environment variables of each rank, as text; `run` may refer to them: `$LR`. Default: none."""
    nodes: Nodes = NodeRange(min=1, max=1)
    """Number of nodes, or a range `{min: 1, max: 4}` for an elastic job. Default 1."""
    procs_per_node: Procs = 1
    """Ranks on each node; `auto`: the GPUs of a node, or 1 without GPUs. Default 1, as in torchrun."""
    launcher: Launcher = Field(default_factory=_default_launcher)
    """How ranks find each other: `torchrun`; `pytorch`, `tensorflow` or `jax`, which set the variables of that library
    for any program; `mpi`; or `plain`, which sets only `WINDLASS_…`. Default: `torchrun` if `run` is Python and the job
    may have several ranks, or if the script of a single rank needs its variables; else `plain`."""
    resources: Resources = Resources()
    """Resources of each node. Default: set by the target."""
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels for finding the run, such as `{team: vision}`; also set on the objects of a cluster and on training jobs.
    Default: none."""
    code: Line = "."
    """Folder whose files are shipped with the job, relative to the job file. Default: the folder of the job file."""
    image: Word | None = None
    """Container image, for targets that use containers. Default: chosen by the target for the job."""
    setup: Text | None = None
    """Bash script that runs once on each node, in the code folder, before the first ranks start there: `pip install -r
    requirements.txt`. If it fails, the attempt fails. With `setup`, ranks start cold. Default: none."""
    secrets: Annotated[tuple[SecretName, ...], OnlyList] = ()
    """Names of secrets; the target provides their values, which are masked in the output of ranks. Default: none."""
    data: Annotated[tuple[Data, ...], OnlyList] = ()
    """Data sets that the ranks read. Default: none."""
    outputs: OutputsPlace = Outputs()
    """Location of the results: a folder, relative to the job file, or an address such as `s3://bucket/runs/`; or `{to:
    s3://…, at: checkpoint, collect: ["out/**"]}`. Default: kept with the run."""
    checkpoint: Checkpoint = Checkpoint()
    """How often a checkpoint is expected, how many are kept, and how a script with checkpoints of its own resumes."""
    restarts: RestartPolicy = Restarts()
    """Maximum number of restarts, and the failures after which ranks are restarted: a number, or `{max: 3, on:
    [preemption]}`. Default: never."""
    notify: SecretName | None = None
    """Name of the secret with the address of a webhook that is called when the run ends, such as `slack-url`. On this
    machine, the address is then the value of the variable `SLACK_URL`. Default: none."""
    timeout: Annotated[Duration, Field(gt=0)] | None = None
    """Seconds after which the run is stopped, counted over all attempts, but without the time in the queue for slots of
    this machine. Default: no limit."""
    grace: Duration = 30.0
    """Seconds between SIGTERM and SIGKILL, for a last checkpoint. Default 30, as in Kubernetes."""
    hang: Annotated[Duration, Field(gt=0)] | None = 1800.0
    """Seconds without output, once all nodes have started, after which the stacks of all ranks are recorded. The run
    then continues, or is restarted if `restarts` allows it. Default 30min."""
    queue: Label | None = None
    """Queue of the cluster that admits the job. Not used on this machine, which has one queue for its `slots`. Default:
    none."""
    priority: Label | None = None
    """Priority class of the cluster. On this machine, `low`, `normal`, `high` or a whole number, as text; the queued
    run with the highest priority starts first. Default: the target's."""
    python: Line | None = None
    """Interpreter of the script. Default: the interpreter of the active environment, else the one that runs
    Windlass."""
    warm: Annotated[tuple[Module, ...], OnlyList] = ()
    """Modules that a warm process imports before it becomes a rank. Default: none."""
    start: Literal["warm", "cold"] = "warm"
    """Whether ranks may be forked from a warm process, which has already imported their modules. Default `warm`; ranks
    start `cold` if a fork is unsafe."""
    volumes: Annotated[tuple[Volume, ...], OnlyList] = ()
    """Storage of the cluster that is mounted in the pods. Default: none."""
    progress: Text | None = None
    """Regular expression (Python) that finds progress in the log; groups `step total epoch loss samples rate`. Default:
    none."""
    local: LocalOptions = LocalOptions()
    """Options of the local engine."""
    kubernetes: KubernetesOptions = KubernetesOptions()
    """Options of the Kubernetes engine."""
    sagemaker: SageMakerOptions = SageMakerOptions()
    """Options of the SageMaker engine."""

    if TYPE_CHECKING:
        # Without this signature, type checkers would expect the attribute types, and reject `nodes=2` and
        # `timeout="2h"`.
        def __init__(self, **fields: Unpack[JobFields]) -> None: ...

    @classmethod
    def model_rebuild(cls, **options: Any) -> bool | None:
        """Builds the validator, and restores the signature with the types that the keywords accept."""
        built = super().model_rebuild(**options)
        if cls is Job:
            cls.__signature__ = _Lazy("job_signature")  # type: ignore[assignment]
        return built

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Returns a copy of the job with the fields in `update`, validated as in a new job. Raises JobFileError."""
        if not isinstance(update, Mapping | None):
            message = f"expected a mapping, found {found(update)}"
            raise JobFileError([Problem("Job", "", message, 'write for example update={"restarts": 3}')])
        # Unset fields are left out, because their defaults may depend on `update`.
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **{str(name): value for name, value in (update or {}).items()}})

    def obstore_addresses(self) -> Iterator[str]:
        """Yields the job's addresses in Google's or Azure's object stores, which ranks access through obstore."""
        streamed = [data.source for data in self.data if data.is_streamed]
        found = [*streamed, *([self.checkpoint.folder] if self.checkpoint.folder else [])]
        return (one for one in found if one.partition("://")[0] in KINDS)

    @property
    def code_path(self) -> str:
        """`code` with `~` expanded to the home folder of this user."""
        return os.path.expanduser(self.code)

    @model_validator(mode="before")
    @classmethod
    def _starts_the_script_of_python(cls, given: Any) -> Any:
        """Reads `run: python train.py` as `run: train.py`, as on the command line."""
        if not isinstance(given, Mapping):
            return given
        run, env = given.get("run"), given.get("env", {})
        if not isinstance(run, str) or not isinstance(env, Mapping):
            return given
        fields = script_of_python(run, {str(name): str(value) for name, value in env.items()})
        if "env" in fields:
            fields["env"] |= env
        return {**given, **fields, **({"python": given["python"]} if "python" in given else {})}

    @field_validator("run")
    @classmethod
    def _splits_into_words(cls, run: str | None) -> str | None:
        if run is None:
            return None
        try:
            words = split_run(run)
        except ValueError as error:
            raise refuse(
                f"cannot be split into words: {str(error).lower()}", "close the quote, or use command:"
            ) from None
        if not words or not words[0]:
            raise refuse("is empty", "write for example train.py --epochs 5")
        return run

    @field_validator("env")
    @classmethod
    def _fills_in_run(cls, env: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        run = info.data.get("run")
        if run is None:
            return env
        if problems := [refuse(*problem, at="run") for problem in needs_a_shell(run, env)]:
            raise refuse_all([((), problem) for problem in problems])
        words = split_run(run, env)
        if words[0] == "-m":
            if len(words) < 2 or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", words[1]):
                raise refuse("has no module after -m", "write for example -m package.train", at="run")
        elif words[0].startswith("-"):
            message = f"begins with the option {found(words[0])}"
            raise refuse(message, "begin with a script, or -m and a module", at="run")
        elif not words[0]:
            raise refuse("begins with a variable that is empty", "give it a value in env:", at="run")
        return env

    @field_validator("command")
    @classmethod
    def _one_of_run_and_command(cls, command: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if "run" in info.data and info.data["run"] is None and command is None:
            raise refuse(MISSING, "write for example run: train.py --epochs 5", at="run")
        if info.data.get("run") is not None and command is not None:
            raise refuse("cannot be used with run", "leave one out")
        if command and not command[0].strip():
            raise refuse("begins with an empty word")
        return command

    @field_validator("launcher")
    @classmethod
    def _starts_commands(cls, launcher: Launcher, info: ValidationInfo) -> Launcher:
        if launcher == "torchrun" and info.data.get("command") is not None:
            raise refuse(
                "is torchrun, which does not start a command", "use run:, or launcher: pytorch for its variables"
            )
        return launcher

    @field_validator("launcher")
    @classmethod
    def _fixed_under_mpi(cls, launcher: Launcher, info: ValidationInfo) -> Launcher:
        nodes = info.data.get("nodes")
        if launcher == "mpi" and nodes is not None and nodes.is_elastic:
            raise refuse("is a range, but the ranks of MPI cannot come and go", f"write nodes: {nodes.max}", at="nodes")
        return launcher

    @field_validator("labels")
    @classmethod
    def _labels_of_users(cls, labels: dict[str, str]) -> dict[str, str]:
        if len(labels) > MOST_LABELS:
            raise refuse(f"has {len(labels)} labels; {MOST_LABELS} are the most")
        for key in labels:
            if is_reserved(key):
                raise refuse(f"has {key}, whose prefix is not for users", "choose another prefix, or none")
        return labels

    @field_validator("secrets", "warm", "data", "volumes")
    @classmethod
    def _each_once(cls, entries: tuple[str | Data | Volume, ...]) -> tuple[str | Data | Volume, ...]:
        errors: list[tuple[Path, PydanticCustomError]] = []
        first: dict[str, str | Data | Volume] = {}
        for at, one in enumerate(entries):
            key = one if isinstance(one, str) else one.env_name if isinstance(one, Data) else one.path.rstrip("/")
            other = first.get(key)
            if other is None:
                first[key] = one
            elif isinstance(one, Data) and isinstance(other, Data):
                message = f"{one.name} and {other.name} would both be {key}"
                errors.append(((at, "name"), refuse(message, "rename one")))
            else:
                path: Path = (at,) if isinstance(one, str) else (at, "path")
                errors.append((path, refuse(f"{key} is given twice")))
        if errors:
            raise refuse_all(errors)
        return entries

    @field_validator("progress")
    @classmethod
    def _is_progress_pattern(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        if len(pattern) > 500:
            raise refuse(f"is {len(pattern)} characters long; 500 are enough")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                groups = re.compile(pattern).groupindex
        except (re.error, OverflowError, RecursionError, ValueError) as error:
            raise refuse(f"is not a Python pattern: {error}") from None
        if strange := [name for name in groups if name not in PROGRESS_GROUPS]:
            raise refuse(f"has a group {strange[0]}", f"groups are {', '.join(PROGRESS_GROUPS)}")
        if not groups:
            raise refuse("has no named group, so it finds nothing", r"write for example step (?P<step>\d+)")
        return pattern

    @model_serializer(mode="wrap")
    def _without_usual_launcher(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        """Omits the launcher if the author has not set it, because the default depends on the number of ranks."""
        fields: dict[str, Any] = handler(self)
        if info.exclude_defaults and "launcher" not in self.model_fields_set:
            fields.pop("launcher", None)
        return fields

    @property
    def script_argv(self) -> tuple[str, ...]:
        """Words of `run` with the variables of `env` expanded, or of `command`."""
        return self.command if self.command is not None else split_run(self.run or "", self.env)

    @property
    def resume_argv(self) -> tuple[str, ...]:
        """The words of `checkpoint.resume`."""
        return tuple(shlex.split(self.checkpoint.resume or ""))

    @property
    def script_kind(self) -> Literal["script", "module", "program"]:
        """Kind of `script_argv`: `script` and `module` are run by Python, a `program` runs directly."""
        return "program" if self.run is None else kind_of(self.script_argv)


class _Lazy:
    """A class attribute of `Job` that `job_fields.py` computes on access, because no command needs the attribute."""

    def __init__(self, function: str) -> None:
        self._function = function

    def __get__(self, _instance: object, owner: type[Job]) -> Any:
        from windlass.spec import job_fields

        return getattr(job_fields, self._function)(owner)


Job.__signature__ = _Lazy("job_signature")  # type: ignore[assignment]
Job.__doc__ = _Lazy("job_docs")  # type: ignore[assignment]
