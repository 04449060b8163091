"""The job as a frozen model: the fields of `job.yaml` and of `windlass.Job(...)`, checked, with all defaults.

An attribute has the name of its YAML key. Making a `Job`, from a file or in Python, raises a `JobFileError` with every
problem in it.
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
)
from pydantic_core import PydanticCustomError

from windlass.errors import JobFileError, Problem
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
from windlass.spec.parts import (
    Checkpoint,
    Data,
    Document,
    KubernetesOptions,
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
from windlass.spec.places import Path, found
from windlass.spec.problems import MISSING, refuse, refuse_all
from windlass.spec.runline import kind_of, needs_a_shell, split_run
from windlass.spec.units import Duration
from windlass.stores.gs_az import KINDS

if TYPE_CHECKING:
    from typing import Unpack

    from windlass.spec.job_fields import JobFields

MOST_LABELS = 20
PROGRESS_GROUPS = ("step", "total", "epoch", "loss", "samples", "rate")
"""Names that the groups of a `progress` pattern may have."""


def _default_launcher(data: Mapping[str, Any]) -> Launcher:
    """By what is started, and how often: a script that runs once must not find variables of several ranks."""
    run = data["run"]
    if run is None or kind_of(split_run(run, data["env"])) == "program":
        return "plain"
    return "plain" if data["nodes"].max == 1 and data["procs_per_node"] == 1 else "torchrun"


class Job(Document):
    """A training job, as its author wrote it."""

    name: Name
    """What the job is called, in run ids and on every target: lower-case letters, digits and `-`, 40 at most."""
    run: Text | None = None
    """A script and its arguments: `train.py --epochs 5`; also `-m package.train`, or a program. Or use `command`.

    Variables of `env` are filled in, `train.py --lr $LR`, each as one argument, and so are `$WINDLASS_CHECKPOINT_DIR`,
    `$WINDLASS_OUTPUT_DIR`, `$WINDLASS_DATA_…`, and for each rank `$WINDLASS_RANK`, `$WINDLASS_LOCAL_RANK`,
    `$WINDLASS_NODE_RANK`, `$WINDLASS_WORLD_SIZE`, `$WINDLASS_LOCAL_WORLD_SIZE` and `$WINDLASS_NUM_NODES`. No shell
    reads it: another `$NAME`, `~`, operators and several lines are refused. `'$NAME'` in single quotes is kept.
    """
    command: Annotated[tuple[Text, ...], Field(min_length=1), OnlyList] | None = Field(
        default=None, validate_default=True
    )
    """A program and its arguments as a list, started once for each rank as it stands. Or use `run`."""
    env: Env = Field(default_factory=dict, validate_default=True)
    """Environment variables for each rank, as text; `run` may name them: `$LR`. Default: none."""
    nodes: Nodes = NodeRange(min=1, max=1)
    """Machines: a number, or `{min: 1, max: 4}` for an elastic job. Default 1."""
    procs_per_node: Procs = 1
    """Ranks on each machine; `auto`: the GPUs of a node, else 1. Default 1, as torchrun."""
    launcher: Launcher = Field(default_factory=_default_launcher)
    """How ranks find each other: `torchrun`; `pytorch`, `tensorflow` or `jax`, which set the variables of that library
    for any program; `mpi`; or `plain`, which sets only `WINDLASS_…`. Default: `torchrun` where `run` is Python
    and there may be several ranks, or the script of one rank cannot run without its variables; else `plain`."""
    resources: Resources = Resources()
    """What each node has. Default: what the target gives."""
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Words to find the run by: `{team: vision}`; the objects of a cluster and training jobs have them too. Default:
    none."""
    code: Line = "."
    """Folder that travels with the job, as seen from the job file. Default: the file's own."""
    image: Word | None = None
    """Container image, where containers are used. Default: one that the target picks for the job."""
    setup: Text | None = None
    """Shell script that bash runs once on each machine, in the folder of the code, before the first ranks start there:
    `pip install -r requirements.txt`. Where it fails, the attempt fails. Ranks then start cold. Default: none."""
    secrets: Annotated[tuple[SecretName, ...], OnlyList] = ()
    """Names of secrets; their values come from the target, and are masked in what ranks print. Default: none."""
    data: Annotated[tuple[Data, ...], OnlyList] = ()
    """Data that is brought to the workers before they start. Default: none."""
    outputs: OutputsPlace = Outputs()
    """Where results go: a folder, as seen from the job file, or an address such as `s3://bucket/runs/`; or
    `{to: s3://…, at: checkpoint, collect: ["out/**"]}`. Default: kept with the run."""
    checkpoint: Checkpoint = Checkpoint()
    """How often a checkpoint is expected, how many are kept, and how a script that saves its own goes on from one."""
    restarts: RestartPolicy = Restarts()
    """How often and why the workers start again: a number, or `{max: 3, on: [preemption]}`. Default: never."""
    notify: SecretName | None = None
    """Name of the secret that holds the address of a webhook, which is told when the run ends: `slack-url`, on this
    machine the variable `SLACK_URL`. Default: none."""
    timeout: Annotated[Duration, Field(gt=0)] | None = None
    """Seconds after which the run is stopped, all attempts together; the wait for slots of this machine does not count.
    Default: no limit."""
    grace: Duration = 30.0
    """Seconds from SIGTERM to SIGKILL, for a last checkpoint. Default 30, as Kubernetes."""
    hang: Annotated[Duration, Field(gt=0)] | None = 1800.0
    """Seconds without output, counted once all nodes have started, after which the stacks of all ranks are recorded;
    the run then goes on, or starts again if `restarts` say so. Default 30min."""
    queue: Label | None = None
    """Queue of the cluster that admits the job. On this machine a target has one queue, of its `slots`. Default:
    none."""
    priority: Label | None = None
    """Priority class of the cluster. On this machine `low`, `normal`, `high` or a whole number, as text: of the runs
    that wait for slots, the one with the highest starts first. Default: the target's."""
    python: Line | None = None
    """The script's interpreter. Default: the active environment's, else the one Windlass runs under."""
    warm: Annotated[tuple[Module, ...], OnlyList] = ()
    """Modules that a warm process has imported before it becomes a rank. Default: none."""
    start: Literal["warm", "cold"] = "warm"
    """Whether ranks may be forked from a process that did their imports. Default `warm`; cold where that is unsafe."""
    volumes: Annotated[tuple[Volume, ...], OnlyList] = ()
    """Storage of the cluster to mount. Default: none."""
    progress: Text | None = None
    """Python pattern that finds progress in the log; groups `step total epoch loss samples rate`. Default: none."""
    local: LocalOptions = LocalOptions()
    """Options of the local engine."""
    kubernetes: KubernetesOptions = KubernetesOptions()
    """Options of the Kubernetes engine."""
    sagemaker: SageMakerOptions = SageMakerOptions()
    """Options of the SageMaker engine."""

    if TYPE_CHECKING:
        # Type checkers would take the types of the attributes for those of the keywords: no number of nodes, no "2h".
        def __init__(self, **fields: Unpack[JobFields]) -> None: ...

    @classmethod
    def model_rebuild(cls, **options: Any) -> bool | None:
        """Builds the validator, and keeps the signature with the types that it accepts."""
        built = super().model_rebuild(**options)
        if cls is Job:
            cls.__signature__ = _Lazy("job_signature")  # type: ignore[assignment]
        return built

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The job with other fields, which are checked as those of a new one. Raises JobFileError."""
        if not isinstance(update, Mapping | None):
            message = f"expected a mapping, found {found(update)}"
            raise JobFileError([Problem("Job", "", message, 'write for example update={"restarts": 3}')])
        given = {name: getattr(self, name) for name in self.model_fields_set}  # the others may have other defaults now
        return type(self)(**{**given, **{str(name): value for name, value in (update or {}).items()}})

    def obstore_addresses(self) -> Iterator[str]:
        """The addresses that its ranks reach by obstore: in Google's or Azure's stores."""
        streamed = [data.source for data in self.data if data.is_streamed]
        found = [*streamed, *([self.checkpoint.folder] if self.checkpoint.folder else [])]
        return (one for one in found if one.partition("://")[0] in KINDS)

    @property
    def code_path(self) -> str:
        """`code`, with the home folder of this user in place of `~`."""
        return os.path.expanduser(self.code)

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
        """A launcher that the author has not set is a default: with more ranks it is another one."""
        fields: dict[str, Any] = handler(self)
        if info.exclude_defaults and "launcher" not in self.model_fields_set:
            fields.pop("launcher", None)
        return fields

    @property
    def script_argv(self) -> tuple[str, ...]:
        """The words of `run` with the variables of `env` filled in, or `command`."""
        return self.command if self.command is not None else split_run(self.run or "", self.env)

    @property
    def resume_argv(self) -> tuple[str, ...]:
        """The words of `checkpoint.resume`."""
        return tuple(shlex.split(self.checkpoint.resume or ""))

    @property
    def script_kind(self) -> Literal["script", "module", "program"]:
        """Whether `script_argv` wants Python in front of it (`script`, `module`) or stands alone (`program`)."""
        return "program" if self.run is None else kind_of(self.script_argv)


class _Lazy:
    """An attribute of `Job` that a function of `job_fields.py` makes when it is read: no command needs it."""

    def __init__(self, function: str) -> None:
        self._function = function

    def __get__(self, _instance: object, owner: type[Job]) -> Any:
        from windlass.spec import job_fields

        return getattr(job_fields, self._function)(owner)


Job.__signature__ = _Lazy("job_signature")  # type: ignore[assignment]
Job.__doc__ = _Lazy("job_docs")  # type: ignore[assignment]
