"""Resolves references of a command line on this machine: files, environments of uv and conda, accelerate settings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from windlass.runs.context import Context
    from windlass.spec.commandline import Caller
    from windlass.spec.wrappers import PythonEnvironment

_CONDAS: Final = ("conda run", "mamba run", "micromamba run")


def caller_of(context: Context, read_text: Callable[[Path, str], str]) -> Caller:
    """Returns the context in which command lines are interpreted.

    `read_text` reads a file, given its path and display name.
    """
    from windlass.spec.commandline import Caller

    return Caller(
        environ=context.environ,
        read_file=lambda path: read_text(context.cwd / os.path.expanduser(path), path),
        accelerate_defaults=_accelerate_defaults(context),
        find_python=lambda environment: find_python(environment, context),
    )


def find_python(environment: PythonEnvironment, context: Context) -> str | None:
    """Returns the path of an environment's interpreter, relative if the environment is below the working folder.

    Returns None if the environment does not exist; environments are never created or updated.
    """
    of_conda = environment.tool in _CONDAS
    folders = _of_conda(environment, context) if of_conda else _of_project(environment, context)
    for folder in folders:
        python = context.cwd / folder / "bin" / "python"
        if python.is_file():
            is_below = python.is_relative_to(context.cwd)
            return str(python.relative_to(context.cwd) if is_below else python)
    return None


def python_of(program: str | None, context: Context) -> str | None:
    """Returns the interpreter for a program in the PATH, such as `torchrun`: the one in the program's folder."""
    if program is None or program in ("python", "python3"):
        return program
    found = shutil.which(program, path=context.environ.get("PATH", ""))
    python = Path(found).parent / "python" if found is not None else None
    return str(python) if python is not None and python.is_file() else None


def _of_project(environment: PythonEnvironment, context: Context) -> Iterator[Path]:
    """Yields folders where uv, poetry and similar tools keep a project's environment, the most likely first."""
    if environment.tool == "uv run" and (own := context.environ.get("UV_PROJECT_ENVIRONMENT")):
        yield Path(own)
    start = context.cwd / environment.path
    for folder in (start, *start.parents):
        yield folder / ".venv"
        if (folder / "pyproject.toml").is_file() or environment.path:
            break
    if active := context.environ.get("VIRTUAL_ENV"):
        yield Path(active)


def _of_conda(environment: PythonEnvironment, context: Context) -> Iterator[Path]:
    """Yields the folders of a conda environment, using conda's list of all environments."""
    if environment.path:
        yield Path(os.path.expanduser(environment.path))
        return
    roots = [
        Path(program).parent.parent for name in ("CONDA_EXE", "MAMBA_EXE") if (program := context.environ.get(name))
    ]
    roots += [Path(root) for root in [context.environ.get("MAMBA_ROOT_PREFIX")] if root]
    if not environment.name:
        yield from (Path(prefix) for prefix in [context.environ.get("CONDA_PREFIX")] if prefix)
    elif environment.name == "base":
        yield from roots
    else:
        yield from (root / "envs" / environment.name for root in roots)
        try:
            path = Path(context.environ.get("HOME", "/"), ".conda", "environments.txt")
            listed = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        yield from (Path(line) for line in listed.splitlines() if Path(line).name == environment.name)


def _accelerate_defaults(context: Context) -> str | None:
    """Returns the path of the file that `accelerate config` writes; None if the file does not exist."""
    environ = context.environ
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/"), ".cache")
    path = Path(environ.get("HF_HOME") or Path(cache, "huggingface"), "accelerate", "default_config.yaml")
    return str(path) if path.is_file() else None
