"""Parses the words of `python train.py`: interpreter, variables equivalent to its flags, script and arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from windlass.spec.runline import split_run

PLAIN_PYTHON: Final = ("python", "python3")
LAUNCHER_MODULES: Final = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)
"""Modules that start the ranks of a script: `python -m torch.distributed.run train.py`."""
_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?)?")
_PYTHON_FLAGS: Final = {"-u": "PYTHONUNBUFFERED", "-O": "PYTHONOPTIMIZE", "-B": "PYTHONDONTWRITEBYTECODE"}
_SPACE: Final = r"(?:\s|\\\n)+"


def python_command(words: Sequence[str]) -> tuple[str | None, dict[str, str], list[str]] | None:
    """Returns the interpreter (None for plain `python`), the variables equivalent to its flags, and the words of the
    script, `train.py …` or `-m module …`. Returns None if the line does not start a Python script, or if a flag has no
    equivalent variable.
    """
    if not _PYTHON.fullmatch(words[0].rpartition("/")[2]):
        return None
    env, at = {}, 1
    while at < len(words) and words[at] in _PYTHON_FLAGS:
        env[_PYTHON_FLAGS[words[at]]] = "1"
        at += 1
    rest = list(words[at:])
    is_script = bool(rest) and rest[0].endswith(".py") and not rest[0].startswith("-")
    if not is_script and not (len(rest) > 1 and rest[0] == "-m"):
        return None
    return (None if words[0] in PLAIN_PYTHON else words[0]), env, rest


def script_of_python(run: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of a job that a `run` such as `python train.py` means, as on the command line.

    Empty for other lines, for an interpreter with a folder, and for launchers: `python -m torch.distributed.run`.
    """
    try:
        words = split_run(run, env)
    except ValueError:
        return {}
    found = python_command(words) if words and "/" not in words[0] else None
    if found is None:
        return {}
    interpreter, variables, rest = found
    if rest[0] == "-m" and rest[1] in LAUNCHER_MODULES:
        return {}
    before = words[: len(words) - len(rest)]
    match = re.match(rf"\s*{''.join(re.escape(word) + _SPACE for word in before)}", run)
    given = {"python": interpreter, "env": variables}
    return {"run": run[match.end() :], **{name: value for name, value in given.items() if value}} if match else {}


def interpreter_by_path(words: Sequence[str]) -> tuple[str, str] | None:
    """Returns the path of the interpreter that starts a Python script or module, and the line without it; else None."""
    python = python_command(words) if "/" in words[0] else None
    return None if python is None else (words[0], shlex.join(python[2]))
