"""Builds the command line of the model server, for a model on this machine or the results of a run."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from windlass.engines.deployments import require_server
from windlass.engines.interpreter import find_python
from windlass.errors import UsageError

if TYPE_CHECKING:
    from windlass.engines.base import Engine
    from windlass.plan.plan import Plan

FOLDER: Final = "serving"
"""Folder in the home with the zip file of the model server, for interpreters other than that of Windlass."""


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """Command line and environment of a process that serves a model."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def of_folder(model: Path, options: Sequence[str]) -> ServeCommand:
    """Returns the command that serves a folder or file with the active interpreter. Raises MissingExtra."""
    python = find_python(None, Path.cwd(), os.environ)
    return _command(python, model, options, os.environ.get("PYTHONPATH", ""))


def of_run(engine: Engine, run_id: str, options: Sequence[str]) -> ServeCommand:
    """Returns the command that serves the results of a run; with the script's interpreter, if the run was here.

    Raises NoSuchRun, UsageError, EngineError, MissingExtra.
    """
    place, plan = engine.results(run_id), engine.plan_of(run_id)
    model = place.copied or (place.path if place.kind == "folder" else "")
    if not model:
        copy = f"windlass cp {run_id}:output FOLDER, then windlass serve FOLDER"
        raise UsageError(f"the results of {run_id} are not on this machine", copy)
    if not any(Path(model).glob("*")):
        raise UsageError(f"{run_id} has no results in {model}", f"list what it wrote: windlass artifacts {run_id}")
    python, path = find_python(None, Path.cwd(), os.environ), os.environ.get("PYTHONPATH", "")
    if plan is not None and plan.runs_here and plan.nodes.worker_python:
        python, path = Path(plan.nodes.worker_python), dict(plan.nodes.common).get("PYTHONPATH", path)
        options = [_in_code(word, plan) for word in options]
    return _command(python, Path(model), options, path)


def _in_code(option: str, plan: Plan) -> str:
    """Resolves FILE in `--code=FILE` and `--function=FILE:NAME` in the run's code folder, if it is not in the working
    folder. Other options are returned unchanged.
    """
    name, _, value = option.partition("=")
    if name not in ("--code", "--function") or (Path.cwd() / value.partition(":")[0]).is_file():
        return option
    found = Path(plan.nodes.cwd) / value
    return f"{name}={found}" if Path(str(found).partition(":")[0]).is_file() else option


def _command(python: Path, model: Path, options: Sequence[str], path: str) -> ServeCommand:
    """Returns the command line. Another interpreter than that of Windlass gets the server as a zip file."""
    require_server()
    environment = {**os.environ, "PYTHONPATH": path}
    if python != Path(sys.executable):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_archive()), path)))
    if not environment["PYTHONPATH"]:
        del environment["PYTHONPATH"]
    return ServeCommand((str(python), "-m", "windlass.serving", str(model), *options), environment)


def _archive() -> Path:
    """Writes the zip file of the model server to the home, unless the same content exists there. Returns its path."""
    from windlass.runs.context import here
    from windlass.serving.pack import archive

    content = archive()
    path = here().home / FOLDER / f"{hashlib.sha256(content).hexdigest()[:16]}.zip"
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(path)
    return path
