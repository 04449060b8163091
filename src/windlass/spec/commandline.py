"""Translates the command line of a launcher (`torchrun … train.py`, `mpirun -np 4 …`) into a `Job`.

- `torchrun --nnodes 2 --nproc-per-node 2 train.py` becomes `run: train.py` with `nodes` and `procs_per_node`.
  Rendezvous options (`--rdzv-*`, `--node-rank`, `--master-addr`, `--standalone`) are dropped: Windlass sets up the
  rendezvous. All options that a job cannot express are refused by name in one error.
- `-m package.train` becomes `run: -m package.train`: torchrun passes the same arguments to the interpreter.
- `--no-python ./prog` becomes `run: ./prog` with `launcher: torchrun`.
- `mpirun -np 4 python train.py` becomes `run: train.py` with `launcher: mpi` and `procs_per_node: 4`.
- `accelerate launch`, `deepspeed` and `fabric run` are translated like torchrun, with the variables that they set for
  their ranks; `deepspeed train.py` and `python -m torch.distributed.launch train.py` become
  `run: train.py --local_rank=$WINDLASS_LOCAL_RANK`, which each rank expands.
- `A=1 …`, `env A=1 …`, `uv run …` and `conda run …` become the wrapped command, with its variables and interpreter.
- `python train.py` becomes `run: train.py`. Any other line becomes `command: [...]` with `launcher: plain`; if the line
  contains a launcher, a remark says that Windlass does not see its ranks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from windlass.errors import JobFileError
from windlass.spec.accelerate import ACCELERATE, take_settings
from windlass.spec.job import Job
from windlass.spec.launchers import (
    DEEPSPEED,
    FABRIC,
    HOROVOD,
    LAUNCH,
    MPIRUN,
    TORCHRUN,
    WHERE,
    Options,
    Parsed,
    Remark,
    problem,
    read_past_unknown,
)
from windlass.spec.names import legal_name
from windlass.spec.parse import job_from_mapping
from windlass.spec.pythonline import LAUNCHER_MODULES, PLAIN_PYTHON, python_command
from windlass.spec.wrappers import ASSIGNMENT, PythonEnvironment, unwrap

_COMMON_STEMS = ("train", "main", "run", "__main__", "script", "job")
_PROGRAMS = {
    "torchrun": TORCHRUN,
    **dict.fromkeys(("mpirun", "mpiexec", "orterun"), MPIRUN),
    "horovodrun": HOROVOD,
    **dict.fromkeys(("deepspeed", "ds"), DEEPSPEED),
    "accelerate-launch": ACCELERATE,
}
_TWO_WORDS = {("accelerate", "launch"): ACCELERATE, ("fabric", "run"): FABRIC}
_OPTIONS_OF_MODULES = dict(zip(LAUNCHER_MODULES, (TORCHRUN, LAUNCH, ACCELERATE, DEEPSPEED), strict=True))
_OF_CLUSTERS = ("srun", "jsrun", "aprun", "prun")
"""Launchers of several processes that Windlass cannot translate."""


@dataclass(frozen=True)
class Caller:
    """The environment of the shell in which a command line was typed: variables, files and interpreters."""

    environ: Mapping[str, str] | None = None
    """Environment variables, whose values `mpirun -x VAR` passes to the ranks."""
    read_file: Callable[[str], str] | None = None
    """Function that returns the text of a file or raises `JobFileError`; None if files cannot be read."""
    accelerate_defaults: str | None = None
    """Path of the file that `accelerate config` has written; None if there is no such file."""
    find_python: Callable[[PythonEnvironment], str | None] | None = None
    """Function that returns the interpreter of an environment, or None for an unknown environment."""


class CommandLine(NamedTuple):
    """A job translated from a command line, with remarks for its author."""

    job: Job
    remarks: tuple[Remark, ...] = ()
    python: str | None = None
    """Program that the line names without a folder, `python` or a Python launcher; PATH determines its interpreter."""


def job_from_command(
    argv: Sequence[str],
    name: str | None = None,
    environ: Mapping[str, str] | None = None,
    parsed: Parsed | None = None,
) -> Job:
    """Returns the job of a command line, without access to files or Python environments.

    `parsed` contains the options of the launcher if the caller has already parsed them. Raises JobFileError.
    """
    if parsed is not None and argv:
        return _understood(argv, name, Caller(environ), parsed, {}).job
    return read_command(argv, name, Caller(environ)).job


def read_command(argv: Sequence[str], name: str | None = None, caller: Caller | None = None) -> CommandLine:
    """Translates a command line; `name` is the job's name, by default derived from the script.

    Raises `JobFileError`, which names every option that a job cannot express.
    """
    caller = caller or Caller()
    if not argv or not argv[0]:
        raise JobFileError([problem("", "the command is empty", "give for example: torchrun train.py")])
    if len(argv) > 1 and ASSIGNMENT.match(argv[0]):  # as in a shell, the line may begin with variables
        argv = ["env", *argv]
    wrapped = unwrap(argv)
    if wrapped.reason:
        return _opaque(argv, name, f"{wrapped.reason} is not understood")
    if not _is_known(wrapped.words):
        return _opaque(argv, name)
    fields: dict[str, Any] = _given(env=wrapped.env)
    remarks: list[Remark] = []
    if wrapped.environment is not None:
        python = caller.find_python(wrapped.environment) if caller.find_python is not None else None
        if python is None:
            return _opaque(argv, name, f"the environment of {wrapped.environment.tool} is not found")
        fields["python"] = python
        if wrapped.environment.tool == "uv run" and "--no-sync" not in argv:
            remarks.append(
                Remark("environment-as-it-is", f"{python} is used without the sync that uv run does", "uv sync")
            )
    line = _understood(wrapped.words, name, caller, None, fields)
    return line._replace(remarks=(*remarks, *line.remarks))


def _is_known(words: Sequence[str]) -> bool:
    return bool(words) and (
        launcher_of(words) is not None or words[0].endswith(".py") or python_command(words) is not None
    )


def _understood(
    words: Sequence[str], name: str | None, caller: Caller, parsed: Parsed | None, outer: Mapping[str, Any]
) -> CommandLine:
    """Translates a command line with a known program; `outer` contains job fields set by the words before the
    program.
    """
    launcher = launcher_of(words)
    python = python_command(words)
    typed = words[0] if words[0] in PLAIN_PYTHON and "python" not in outer else None
    if launcher is not None:
        parsed = parsed or read_past_unknown(launcher.options, words[launcher.num_words :], launcher.program)
        if launcher.options in (MPIRUN, HOROVOD):
            typed = parsed.rest[0] if parsed.rest[:1] and parsed.rest[0] in PLAIN_PYTHON else None
            job = _mpi(parsed, name, caller.environ, outer)
        else:
            interpreter, env, _ = python or (_interpreter_beside(words[0]), {}, [])
            typed = words[0] if python is None and interpreter is None else typed
            job = _elastic(parsed, name, caller, {**outer, **_given(python=interpreter)}, env)
        return CommandLine(job, tuple(parsed.remarks), None if "python" in outer else typed)
    if python is None and words[0].endswith(".py"):
        return CommandLine(_job({"run": shlex.join(words), **outer}, words, name))
    if python is None:
        return _opaque(words, name)
    interpreter, env, rest = python
    fields = {**outer, **_given(python=interpreter, env={**outer.get("env", {}), **env})}
    return CommandLine(_job({"run": shlex.join(rest), **fields}, rest, name), (), typed)


def _opaque(words: Sequence[str], name: str | None, reason: str = "") -> CommandLine:
    """Returns a job that runs the line unchanged; a remark gives the `reason`, if any, why the line is not
    translated.
    """
    job = _job({"command": list(words), "launcher": "plain"}, [], name or legal_name(stem(words[0])))
    if not reason:
        return CommandLine(job)
    fix = "leave it out, or write run: and python: in a job file"
    return CommandLine(job, (Remark("command-opaque", f"{reason}, so that the line is one command", fix),))


def hidden_launcher(words: Sequence[str]) -> str | None:
    """Returns the launcher in a program's command line, also inside the text of `sh -c`; None without a launcher.

    Arguments of a Python script are not searched.
    """
    if launcher_of(words) is None and (words[0].endswith(".py") or python_command(words) is not None):
        return None
    parts = [part for word in words for part in re.split(r"[\s;&|()]+", word) if part]
    for at, part in enumerate(parts):
        if stem(part) in _OF_CLUSTERS:
            return stem(part)
        launcher = launcher_of(parts[at:])
        if launcher is not None:
            return launcher.program
    return None


class Launch(NamedTuple):
    """The launcher at the start of a command line."""

    num_words: int
    """Number of words of the launcher: 1 for `torchrun`, 2 for `accelerate launch`, 3 for `python -m
    torch.distributed.run`."""
    options: Options
    program: str
    """Name of the launcher in messages."""


def launcher_of(words: Sequence[str]) -> Launch | None:
    """Returns the launcher at the start of a command line; None if the line starts with another program."""
    program = stem(words[0])
    if program in _PROGRAMS:
        return Launch(1, _PROGRAMS[program], program)
    if options := _TWO_WORDS.get((program, words[1] if len(words) > 1 else "")):
        return Launch(2, options, f"{program} {words[1]}")
    _, _, rest = python_command(words) or (None, {}, [""])
    if rest[0] == "-m" and (options := _OPTIONS_OF_MODULES.get(rest[1])):
        return Launch(len(words) - len(rest) + 2, options, rest[1])
    return None


def job_from_script(script: str, args: Sequence[str] = ()) -> Job:
    """Returns a job that runs one script with these arguments, on one node with one rank."""
    words = [script, *args]
    return _job({"run": shlex.join(words)}, words, None)


def _elastic(parsed: Parsed, name: str | None, caller: Caller, outer: Mapping[str, Any], env: Mapping[str, str]) -> Job:
    """Returns the job for parsed options of torchrun or a similar launcher; `outer` and `env` are further job
    fields.
    """
    words, flags = parsed.rest, parsed.flags
    if "accelerate" in flags:
        take_settings(parsed, caller.read_file, caller.accelerate_defaults)
    elif "deepspeed" in flags:
        parsed.fields.setdefault("procs_per_node", "auto")
        words = _with_local_rank(parsed, "--local_rank", unless="no-local-rank")
    elif "launch" in flags:
        words = _with_local_rank(parsed, "--local-rank", unless="use-env")
    elif "fabric" in flags:
        _finish_fabric(parsed)
    fields = dict(parsed.fields)
    if "accelerate" not in flags:  # for a single process, accelerate sets no torchrun variables
        fields["launcher"] = "torchrun"
    if "standalone" in flags and fields.get("nodes", 1) not in (1, {"min": 1, "max": 1}):
        parsed.problems.append(problem("--standalone", "means one node, and --nnodes asks for more", "leave one out"))
    if not words:
        parsed.problems.append(problem("", "no script is named", "give for example: torchrun train.py"))
    elif "module" in flags and "no-python" in flags:
        parsed.problems.append(problem("--no-python", "cannot be used with --module", "leave one out"))
    elif "module" in flags:
        words = ["-m", *words]
    elif "no-python" in flags:
        if words[0].endswith(".py"):
            parsed.problems.append(problem("--no-python", f"starts {words[0]} without Python", "leave it out"))
    elif not words[0].endswith(".py") and not parsed.has_unknown:
        hint = "let its name end in .py, or add --no-python if it is a program"
        parsed.problems.append(problem("", f"{words[0]!r} is not the name of a Python script", hint))
    parsed.refuse_if_any()
    fields |= _given(env={**outer.get("env", {}), **env, **fields.pop("env", {})})
    return _job({"run": shlex.join(words), **outer, **fields}, words, name)


def _with_local_rank(parsed: Parsed, option: str, unless: str) -> list[str]:
    """Returns the script and its arguments, with the local rank inserted as `option` unless the flag `unless` is
    set.
    """
    if unless in parsed.flags or not parsed.rest:
        return parsed.rest
    return [parsed.rest[0], f"{option}=$WINDLASS_LOCAL_RANK", *parsed.rest[1:]]


def _finish_fabric(parsed: Parsed) -> None:
    env = parsed.fields.get("env", {})
    parsed.fields.setdefault("procs_per_node", 1)
    parsed.fields["env"] = {"LT_CLI_USED": "1", "LT_DEVICES": "1", "LT_NUM_NODES": "1", **env}
    if env.get("LT_STRATEGY") == "dp":
        hint = "--strategy ddp"
        parsed.problems.append(problem("--strategy", "is dp, one process that uses all devices", hint))


def _mpi(parsed: Parsed, name: str | None, environ: Mapping[str, str] | None, outer: Mapping[str, Any]) -> Job:
    """Returns the job for parsed options of mpirun: all ranks on one node unless the options set `nodes`."""
    fields = dict(parsed.fields)
    env: dict[str, str] = fields.pop("env", {})
    for variable in parsed.exported:
        if environ is not None and variable in environ:
            env[variable] = environ[variable]
        else:
            hint = f"write -x {variable}=VALUE"
            parsed.problems.append(problem(f"-x {variable}", "has no value, and none is known here", hint))
    if "procs_per_node" not in fields:
        parsed.problems.append(problem("-np", "is missing", "set the number of ranks: -np 4"))
    words = parsed.rest
    if not words:
        parsed.problems.append(problem("", "no program is named", "give for example: mpirun -np 4 python train.py"))
    if ":" in words:
        parsed.problems.append(problem(":", "starts several programs, and a job is one", "make a job of each"))
    parsed.refuse_if_any()
    if python := python_command(words):
        interpreter, more, words = python
        fields |= _given(python=interpreter)
        env = more | env
    fields |= _given(env={**outer.get("env", {}), **env})
    return _job({"run": shlex.join(words), "launcher": "mpi", **outer, **fields}, words, name)


def stem(path: str) -> str:
    """Returns the name of a program without its folder."""
    return path.rstrip("/").rpartition("/")[2]


def _interpreter_beside(path: str) -> str | None:
    """Returns the interpreter next to a launcher given by path, such as `.venv/bin/torchrun`; None for a bare name."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}/python3" if slash else None


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _name_from(words: Sequence[str]) -> str:
    """Derives a job name: `digits` from `digits/train.py`, `finetune` from `finetune.py`, `package` from `-m
    package.train`.
    """
    if words[0] == "-m":
        steps = words[1].split(".") if len(words) > 1 else []
    else:
        steps = [step for step in words[0].split("/") if step not in ("", ".", "..", "~")]
        if steps:
            steps[-1] = steps[-1].rpartition(".")[0] or steps[-1]
    while len(steps) > 1 and steps[-1].lower() in _COMMON_STEMS:
        steps.pop()
    return legal_name(steps[-1] if steps else "job")


def _job(fields: Mapping[str, Any], words: Sequence[str], name: str | None) -> Job:
    return job_from_mapping({"name": _name_from(words) if name is None else name, **fields}, WHERE)
