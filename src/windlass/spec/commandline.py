"""Turns the command line of a launcher (`torchrun … train.py`, `mpirun -np 4 …`) into a `Job`.

- `torchrun --nnodes 2 --nproc-per-node 2 train.py` is `run: train.py` with `nodes` and `procs_per_node`. Options of
  the rendezvous (`--rdzv-*`, `--node-rank`, `--master-addr`, `--standalone`) are dropped: Windlass sets it up. Options
  that a job cannot express are refused by name, all of them at once.
- `-m package.train` is `run: -m package.train`: the arguments of an interpreter, which torchrun takes unchanged.
- `--no-python ./prog` is `run: ./prog` with `launcher: torchrun`.
- `mpirun -np 4 python train.py` is `run: train.py` with `launcher: mpi` and `procs_per_node: 4`.
- `python train.py` is `run: train.py`. Anything else is `command: [...]` with `launcher: plain`, unchanged.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from windlass.errors import JobFileError
from windlass.spec.job import Job
from windlass.spec.launchers import ACCELERATE, HOROVOD, LAUNCH, MPIRUN, TORCHRUN, WHERE, Options, Parsed, problem, read
from windlass.spec.names import legal_name
from windlass.spec.parse import job_from_mapping

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_PYTHON_FLAGS = {"-u": "PYTHONUNBUFFERED", "-O": "PYTHONOPTIMIZE", "-B": "PYTHONDONTWRITEBYTECODE"}
_COMMON_STEMS = ("train", "main", "run", "__main__", "script", "job")
_PROGRAMS = {"torchrun": TORCHRUN, **dict.fromkeys(("mpirun", "mpiexec", "orterun"), MPIRUN), "horovodrun": HOROVOD}
_LAUNCHER_MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": LAUNCH,
    "accelerate.commands.launch": ACCELERATE,
}


def job_from_command(
    argv: Sequence[str],
    name: str | None = None,
    environ: Mapping[str, str] | None = None,
    parsed: Parsed | None = None,
) -> Job:
    """The job that a command line asks for; `name` is its name, else one is made from the script.

    `environ` answers `mpirun -x VAR`, which takes a value from the caller's environment. `parsed` are the options of
    the launcher, for a caller that has parsed them.
    Raises `JobFileError` that names every option which a job cannot express.
    """
    words = list(argv)
    if not words or not words[0]:
        raise JobFileError([problem("", "the command is empty", "give for example: torchrun train.py")])
    launcher = launcher_of(words)
    python = _python(words)
    if launcher is not None:
        parsed = parsed or read(launcher.options, words[launcher.num_words :], launcher.program)
        if launcher.options in (MPIRUN, HOROVOD):
            return _mpi(parsed, name, environ)
        interpreter, env, _ = python or (_interpreter_beside(words[0]), {}, [])
        if launcher.options is ACCELERATE:
            _divide_processes(parsed)
        return _elastic(parsed, name, interpreter, env)
    if words[0].endswith(".py"):
        return job_from_script(words[0], words[1:], name)
    if python is None:
        return _job({"command": words, "launcher": "plain"}, [], name or legal_name(stem(words[0])))
    interpreter, env, rest = python
    return _job({"run": shlex.join(rest), **_given(python=interpreter, env=env)}, rest, name)


class Launch(NamedTuple):
    """The launcher at the start of a command line."""

    num_words: int
    """Words that name it: 1 for `torchrun`, 2 for `accelerate launch`, 3 for `python -m torch.distributed.run`."""
    options: Options
    program: str
    """Its name in messages."""


def launcher_of(words: Sequence[str]) -> Launch | None:
    """The launcher that a command line starts with; None if it starts with another program."""
    program = stem(words[0])
    if program in _PROGRAMS:
        return Launch(1, _PROGRAMS[program], program)
    if program == "accelerate" and words[1:2] == ["launch"]:
        return Launch(2, ACCELERATE, "accelerate launch")
    _, _, rest = _python(words) or (None, {}, [""])
    if rest[0] == "-m" and (options := _LAUNCHER_MODULES.get(rest[1])):
        return Launch(len(words) - len(rest) + 2, options, rest[1])
    return None


def job_from_script(script: str, args: Sequence[str] = (), name: str | None = None) -> Job:
    """The job that runs one script with these arguments, on one node with one rank."""
    words = [script, *args]
    return _job({"run": shlex.join(words)}, words, name)


def _elastic(parsed: Parsed, name: str | None, python: str | None, env: Mapping[str, str]) -> Job:
    """The job of a torchrun command line that has been read, started by this interpreter with these variables."""
    fields, words, flags = dict(parsed.fields), parsed.rest, parsed.flags
    if "standalone" in flags and fields.get("nodes", 1) not in (1, {"min": 1, "max": 1}):
        parsed.problems.append(problem("--standalone", "means one node, and --nnodes asks for more", "leave one out"))
    if "launch" in flags and "use-env" not in flags:
        hint = "let the script read LOCAL_RANK, and add --use-env or use torchrun"
        parsed.problems.append(
            problem("--use-env", "is missing, so the script expects --local-rank, which Windlass does not set", hint)
        )
    if not words:
        parsed.problems.append(problem("", "no script is named", "give for example: torchrun train.py"))
    elif "module" in flags and "no-python" in flags:
        parsed.problems.append(problem("--no-python", "cannot be used with --module", "leave one out"))
    elif "module" in flags:
        words = ["-m", *words]
    elif "no-python" in flags:
        fields["launcher"] = "torchrun"
        if words[0].endswith(".py"):
            parsed.problems.append(problem("--no-python", f"starts {words[0]} without Python", "leave it out"))
    elif not words[0].endswith(".py") and not parsed.has_unknown:
        hint = "let its name end in .py, or add --no-python if it is a program"
        parsed.problems.append(problem("", f"{words[0]!r} is not the name of a Python script", hint))
    parsed.refuse_if_any()
    fields |= _given(python=python, env={**env, **fields.pop("env", {})})
    return _job({"run": shlex.join(words), **fields}, words, name)


def _divide_processes(parsed: Parsed) -> None:
    """Sets the ranks of each node: `accelerate launch` counts them over all machines."""
    total, machines = parsed.fields.pop("processes", None), parsed.fields.get("nodes", 1)
    if total is None:
        hint = "say how many: --num_processes 2"
        parsed.problems.append(problem("--num_processes", "is missing, so a file of defaults would decide", hint))
    elif total % machines:
        parsed.problems.append(problem("--num_processes", f"{total} do not divide over {machines} machines"))
    else:
        parsed.fields["procs_per_node"] = total // machines


def _mpi(parsed: Parsed, name: str | None, environ: Mapping[str, str] | None) -> Job:
    """The job of an mpirun line that has been read: all ranks on one node, until `nodes` says otherwise."""
    fields = dict(parsed.fields)
    env: dict[str, str] = fields.pop("env", {})
    for variable in parsed.exported:
        if environ is not None and variable in environ:
            env[variable] = environ[variable]
        else:
            hint = f"write -x {variable}=VALUE"
            parsed.problems.append(problem(f"-x {variable}", "has no value, and none is known here", hint))
    if "procs_per_node" not in fields:
        parsed.problems.append(problem("-np", "is missing", "say how many ranks: -np 4"))
    words = parsed.rest
    if not words:
        parsed.problems.append(problem("", "no program is named", "give for example: mpirun -np 4 python train.py"))
    if ":" in words:
        parsed.problems.append(problem(":", "starts several programs, and a job is one", "make a job of each"))
    parsed.refuse_if_any()
    if python := _python(words):
        interpreter, more, words = python
        fields |= _given(python=interpreter)
        env = more | env
    return _job({"run": shlex.join(words), "launcher": "mpi", **fields, **_given(env=env)}, words, name)


def _python(words: Sequence[str]) -> tuple[str | None, dict[str, str], list[str]] | None:
    """Interpreter (None for the plain one), variables its flags stand for, and `train.py …` or `-m module …`.

    None where this is not Python with a script, or where a flag has no variable that does the same.
    """
    if not _PYTHON.fullmatch(stem(words[0])):
        return None
    env, at = {}, 1
    while at < len(words) and words[at] in _PYTHON_FLAGS:
        env[_PYTHON_FLAGS[words[at]]] = "1"
        at += 1
    rest = list(words[at:])
    is_script = bool(rest) and rest[0].endswith(".py") and not rest[0].startswith("-")
    if not is_script and not (len(rest) > 1 and rest[0] == "-m"):
        return None
    return (None if words[0] in ("python", "python3") else words[0]), env, rest


def stem(path: str) -> str:
    """The name of a program without its folder."""
    return path.rstrip("/").rpartition("/")[2]


def _interpreter_beside(path: str) -> str | None:
    """The interpreter of `.venv/bin/torchrun`, `.venv/bin/python3`; None for a torchrun found by PATH."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}/python3" if slash else None


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _name_from(words: Sequence[str]) -> str:
    """`digits/train.py` is `digits`, `finetune.py` is `finetune`, `-m package.train` is `package`."""
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
