"""Reads a job from a job file, a script or a command line, with the folder that its paths are relative to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from windlass.errors import JobFileError, Problem, UsageError
from windlass.runs.context import Context

if TYPE_CHECKING:
    from windlass.spec.job import Job

JOB_FILES: Final = ("job.yaml", "job.yml")
MAX_JOB_BYTES: Final = 1 << 20


class Parts(dict[str, Any]):
    """Some fields of a mapping that change, while its others stay; any other mapping takes the place of the old one."""


@dataclass(frozen=True, slots=True)
class ReadyJob:
    """A job with the folder that its paths are relative to, and what it was made from."""

    job: Job
    base: Path
    origin: str
    """`job.yaml`, `train.py` or `command line`."""


def read_job(
    what: str | None, rest: Sequence[str], overrides: Mapping[str, Any], context: Context, *, rest_given: bool = False
) -> ReadyJob:
    """The job that `what` and the arguments after `--` stand for.

    | `what` | `rest` | job |
    |---|---|---|
    | none | none | `job.yaml` here |
    | a .yaml file | arguments | the file's, with the arguments added to its script's |
    | a script | arguments | that script with these arguments |
    | none | a command line | `torchrun …`, `mpirun …` or anything else |

    `overrides` are job fields by name, which replace those of the job, of `Parts` one by one. Raises JobFileError or
    UsageError.
    """
    if what is None and rest_given:
        if not rest:
            raise UsageError("no command follows --", "give a command line: windlass run -- torchrun train.py")
        from windlass.spec.commandline import job_from_command

        return _changed(ReadyJob(job_from_command(rest), context.cwd, "command line"), overrides)
    if what == "":
        raise UsageError("the name of the job is empty", "leave it out for the job.yaml of this folder")
    # Path's own raises for an unknown user's home.
    path = context.cwd / os.path.expanduser(what or "")  # noqa: PTH111
    if os.path.isdir(path):  # noqa: PTH112 - Path's own raises for a name that is too long
        path = _job_file_in(path)
    if path.suffix in (".yaml", ".yml"):
        from windlass.spec.parse import parse_job

        shown = what or path.name
        return _changed(ReadyJob(parse_job(read_text(path, shown), shown), path.parent, shown), overrides, rest)
    if not os.path.isfile(path):  # noqa: PTH113 - as above
        raise UsageError(f"{what} is neither a job file nor a script", "windlass init writes a job file for a script")
    from windlass.spec.commandline import job_from_script

    is_below = path.resolve().is_relative_to(context.cwd.resolve())
    base, script = (context.cwd, str(what)) if is_below else (path.parent, path.name)
    return _changed(ReadyJob(job_from_script(script, rest), base, str(what)), overrides)


def planned_job(plan: Mapping[str, Any], overrides: Mapping[str, Any]) -> ReadyJob:
    """The job that a recorded plan was made from, with fields replaced. Raises JobFileError.

    The folder that its paths are relative to is found from the plan, and so is the interpreter, which may have been
    that of an environment which is not active now.
    """
    from windlass.spec.parse import job_from_mapping

    job = job_from_mapping(plan["job"], plan["name"])
    requests = {step["kind"]: step["request"] for step in reversed(plan["steps"])}
    node, sent = requests["node"], requests.get("code")
    base, code = PurePath(sent["folder"] if sent is not None else node["cwd"]), PurePath(job.code)
    if not code.is_absolute():
        base = base.parents[len(code.parts) - 1] if code.parts else base
    is_given = job.python is not None or job.script_kind == "program" or sent is not None
    python = {} if is_given else {"python": node["worker_python"]}
    return _changed(ReadyJob(job, Path(base), plan["name"]), {**python, **overrides})


def _job_file_in(folder: Path) -> Path:
    for name in JOB_FILES:
        if (folder / name).is_file():
            return folder / name
    hint = "name a job file or a script: windlass run train.py; or write one: windlass init"
    raise UsageError(f"there is no {JOB_FILES[0]} in {folder}", hint)


def read_text(path: Path, shown: str) -> str:
    """The text of a file that the user wrote. Raises JobFileError: not there, no rights, too large, not UTF-8."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_JOB_BYTES + 1)
    except OSError as error:
        raise JobFileError([Problem(shown, "", f"cannot be read: {error.strerror}", "check the path")]) from error
    return decoded(data, shown)


def decoded(data: bytes, shown: str) -> str:
    """Bytes of a file as its text. Raises JobFileError: too large, not UTF-8."""
    if len(data) > MAX_JOB_BYTES:
        raise JobFileError([Problem(shown, "", "is larger than 1 MiB", "a job file has some lines, not data")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = Problem(shown, "", f"is not UTF-8 text: byte {error.start}", "save it as UTF-8")
        raise JobFileError([problem]) from error


def _changed(ready: ReadyJob, overrides: Mapping[str, Any], more: Sequence[str] = ()) -> ReadyJob:
    """The job with fields replaced and arguments added, checked again as a whole."""
    if not overrides and not more:
        return ready
    import shlex

    from windlass.spec.parse import job_from_mapping

    fields = _merged(ready.job.model_dump(mode="json", exclude_defaults=True), overrides)
    if more and ready.job.run is not None:
        fields["run"] = f"{ready.job.run} {shlex.join(more)}"
    elif more:
        fields["command"] = [*(ready.job.command or ()), *more]
    if "launcher" not in overrides:
        fields["launcher"] = ready.job.launcher
    return ReadyJob(job_from_mapping(fields, ready.origin), ready.base, ready.origin)


def _merged(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(fields)
    for name, value in overrides.items():
        old = merged.get(name)
        merged[name] = _merged(old if isinstance(old, dict) else {}, value) if isinstance(value, Parts) else value
    return merged
