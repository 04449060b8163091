"""Reads a job from a job file, a script or a command line, with the folder that its paths are relative to."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from windlass.errors import JobFileError, Problem, UsageError, near
from windlass.runs.context import Context
from windlass.spec.text_file import read_text

if TYPE_CHECKING:
    from windlass.plan.plan import Plan
    from windlass.spec.job import Job
    from windlass.spec.launchers import Remark

JOB_FILES: Final = ("job.yaml", "job.yml")


class Parts(dict[str, Any]):
    """Override of a mapping that is merged with the old value key by key; any other mapping replaces the old value."""


@dataclass(frozen=True, slots=True)
class ReadyJob:
    """A job with the folder that its paths are relative to, and its origin."""

    job: Job
    base: Path
    origin: str
    """Source of the job: `job.yaml`, `train.py` or `command line`."""
    remarks: tuple[Remark, ...] = ()
    """Remarks for the author of a command line, shown before the run."""
    path_python: str | None = None
    """Interpreter on this machine: the one in the PATH for a command line such as `python train.py` or `torchrun
    train.py`, the recorded one for a recorded plan."""

    def __post_init__(self) -> None:
        """Raises JobFileError, without the value, for a command or a `setup` that contains a secret."""
        from windlass.spec.secret_text import has_secret

        job, hint = self.job, "let the script read a variable, such as HF_TOKEN, and name it in secrets:"
        problems = [
            Problem(self.origin, field, "holds what looks like a secret, which a run records", hint)
            for field, text in (("run", job.run), ("command", "\n".join(job.command or ())), ("setup", job.setup))
            if has_secret(text or "")
        ]
        if problems:
            raise JobFileError(problems)

    @property
    def local_job(self) -> Job:
        """The job with the interpreter of this machine."""
        if self.path_python is None or self.job.python is not None:
            return self.job
        return self.job.model_copy(update={"python": self.path_python})


def read_job(
    what: str | None, rest: Sequence[str], overrides: Mapping[str, Any], context: Context, *, rest_given: bool = False
) -> ReadyJob:
    """Resolves the job given by `what` and the arguments after `--`.

    | `what` | `rest` | job |
    |---|---|---|
    | none | none | `job.yaml` in the working folder |
    | a .yaml file | arguments | the job of the file, with the arguments appended to those of its script |
    | a script | arguments | that script with these arguments |
    | none | a command line | `torchrun …`, `mpirun …` or anything else |

    `overrides` maps names of job fields to new values; `Parts` are merged key by key. Raises JobFileError or
    UsageError.
    """
    if what is None and rest_given:
        if not rest:
            raise UsageError("no command follows --", "give a command line: windlass run -- torchrun train.py")
        if rest[0].startswith("-"):
            hint = f"name the job file whose script gets it: windlass run job.yaml -- {rest[0]}"
            raise UsageError(f"{rest[0]} is an option, and no command", hint)
        from windlass.actions.command_line import caller_of, python_of
        from windlass.spec.commandline import read_command

        line = read_command(rest, caller=caller_of(context, read_text))
        python = python_of(line.python, context)
        return _changed(ReadyJob(line.job, context.cwd, "command line", line.remarks, python), overrides)
    if what == "":
        raise UsageError("the name of the job is empty", "leave it out for the job.yaml of this folder")
    # os.path is used because pathlib raises for the home folder of an unknown user.
    path = context.cwd / os.path.expanduser(what or "")
    if os.path.isdir(path):  # noqa: PTH112 - Path's own raises for a name that is too long
        path = _job_file_in(path)
    if path.suffix in (".yaml", ".yml"):
        shown = what or path.name
        return _changed(ReadyJob(_of_file(read_text(path, shown), shown), path.parent, shown), overrides, rest)
    if what is None:
        raise UsageError(f"the working folder {path} no longer exists", "go to the folder of the job first")
    if not os.path.lexists(path):
        hint = near(path.name, _names(path.parent)) or "name a job file or a script: windlass run train.py"
        raise UsageError(f"{what} does not exist", hint)
    if path.is_symlink() and not os.path.exists(path):  # noqa: PTH110 - as above
        raise UsageError(f"{what} is a link to {path.readlink()}, which does not exist", "mend the link")
    if path.suffix.lower() == ".ipynb":
        notebook, script = (shlex.quote(str(one)) for one in (what, PurePath(str(what)).with_suffix(".py")))
        hint = f"jupyter nbconvert --to script {notebook}, then windlass run {script}"
        raise UsageError(f"{what} is a notebook, and no script", hint)
    if not os.path.isfile(path):  # noqa: PTH113 - as above
        raise UsageError(f"{what} is neither a job file nor a script", "windlass init writes a job file for a script")
    from windlass.actions.other_files import refuse_what_is_no_script
    from windlass.spec.commandline import job_from_script

    refuse_what_is_no_script(path, str(what))
    is_below = path.resolve().is_relative_to(context.cwd.resolve())
    base, script = (context.cwd, str(what)) if is_below else (path.parent, path.name)
    return _changed(ReadyJob(job_from_script(script, rest), base, str(what)), overrides)


def _of_file(text: str, shown: str) -> Job:
    """Parses the text of a job file. Raises JobFileError, or UsageError for a file of another tool."""
    from windlass.spec.parse import parse_job

    try:
        return parse_job(text, shown)
    except JobFileError as error:
        from windlass.actions.other_files import of_another_tool
        from windlass.spec.yamltext import read_yaml

        document = None
        with contextlib.suppress(JobFileError):
            document, _ = read_yaml(text, shown, "")
        raise of_another_tool(document, shown, error) from None


def planned_job(plan: Plan, overrides: Mapping[str, Any], more: Sequence[str] = ()) -> ReadyJob:
    """Returns the job of a recorded plan, with fields replaced and arguments appended. Raises JobFileError.

    The interpreter and the folder of relative paths are taken from the plan, because another environment may be active
    now.
    """
    from windlass.plan.steps import CodeStep, FolderStep, ServiceStep
    from windlass.spec.parse import job_from_mapping

    job = job_from_mapping(plan.job, plan.name)
    base, code = PurePath(code_folder(plan)), PurePath(job.code_path)
    recorded = plan.first(FolderStep) or plan.first(ServiceStep)
    if recorded is not None and recorded.base:
        base = PurePath(recorded.base)
    elif not code.is_absolute():
        base = base.parents[len(code.parts) - 1] if code.parts else base
    is_given = job.python is not None or job.script_kind == "program" or plan.first(CodeStep) is not None
    # the interpreter of a plan whose code is sent is on another machine
    python = None if is_given else plan.nodes.worker_python
    return _changed(ReadyJob(job, Path(base), plan.name, path_python=python), overrides, more)


def code_folder(plan: Plan) -> Path:
    """Returns the code folder of a plan, on the machine that created the plan."""
    from windlass.plan.steps import CodeStep

    sent = plan.first(CodeStep)
    return Path(sent.folder if sent is not None else plan.nodes.cwd)


def _names(folder: Path) -> list[str]:
    """Returns the file names in a folder; empty if it cannot be read."""
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def _job_file_in(folder: Path) -> Path:
    for name in JOB_FILES:
        if (folder / name).is_file():
            return folder / name
    hint = "name a job file or a script: windlass run train.py; or write one: windlass init"
    raise UsageError(f"there is no {JOB_FILES[0]} in {folder}", hint)


def _changed(ready: ReadyJob, overrides: Mapping[str, Any], more: Sequence[str] = ()) -> ReadyJob:
    """Returns the job with fields replaced and arguments appended, validated again as a whole."""
    if not overrides and not more:
        return ready
    from windlass.spec.parse import job_from_mapping
    from windlass.spec.runline import with_arguments

    fields = _merged(ready.job.model_dump(mode="json", exclude_defaults=True), overrides)
    if more and ready.job.run is not None:
        fields["run"] = with_arguments(ready.job.run, more)
    elif more:
        fields["command"] = [*(ready.job.command or ()), *more]
    return replace(ready, job=job_from_mapping(fields, ready.origin))


def _merged(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(fields)
    for name, value in overrides.items():
        old = merged.get(name)
        merged[name] = _merged(old if isinstance(old, dict) else {}, value) if isinstance(value, Parts) else value
    return merged
