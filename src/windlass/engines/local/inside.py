"""Reaches into a run on this machine: commands as its ranks have them, and files from its folders and to them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tarfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import windlass.worker
from windlass.errors import EngineError, UsageError
from windlass.plan.plan import Plan
from windlass.runs.record import Status
from windlass.worker import tarpipe

PROGRAM = Path(windlass.worker.__file__).with_name("inside.py")
FOLDERS = {"output": "WINDLASS_OUTPUT_DIR", "checkpoints": "WINDLASS_CHECKPOINT_DIR"}
"""What results are made of, and the variable that says where it is."""


def execute(
    run_dir: Path, plan: Plan, status: Status, rank: int | None, node: int, command: Sequence[str],
    stdin: IO[bytes] | None, stdout: IO[bytes], stderr: IO[bytes],
) -> int:  # fmt: skip
    """Run a command as one of the ranks of a node, or as none; gives its exit code. Raises EngineError."""
    request = next(one for one in plan.requests("node") if one["node"] == node)
    spec = run_dir / f"attempt-{status.attempts[-1].number}" / f"node-{node}.json"
    beside = _process_of(status, node) if "network" in request else 0
    words = [request["worker_python"], "-I", "-S", str(PROGRAM), str(spec), "-" if rank is None else str(rank)]
    try:
        child = subprocess.Popen(
            [*words, str(beside), *command], stdin=subprocess.DEVNULL if stdin is None else stdin, stdout=stdout,
            stderr=stderr,
        )  # fmt: skip
    except OSError as error:
        raise EngineError(f"{words[0]} cannot be started: {error.strerror}", "windlass doctor") from error
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # the terminal has told the command as well
            code = child.wait()
            return code if code >= 0 else 128 - code


def _process_of(status: Status, node: int) -> int:
    """A live process in the network of a node. Raises EngineError."""
    pids = [rank.pid for rank in status.ranks if rank.node == node and rank.exit_code is None and rank.pid]
    if not pids:
        raise EngineError(f"node {node} has no live rank, and no way leads into its network", f"windlass status "
                          f"{status.id}")  # fmt: skip
    return pids[0]


def fetch(run_dir: Path, plan: Plan, path: str, local: Path, told: Callable[[int], None]) -> tarpipe.Received:
    """Copy a result of a run to `local`. Raises UsageError, OSError."""
    source = _place(run_dir, plan, path)
    return _pipe(source, local, told, Path(path).name)


def put(run_dir: Path, plan: Plan, local: Path, path: str, told: Callable[[int], None]) -> Mapping[str, Any]:
    """Copy what is at `local` into the results of a run. Raises UsageError, OSError."""
    return vars(_pipe(local, _place(run_dir, plan, path), told, local.resolve().name))


def _place(run_dir: Path, plan: Plan, path: str) -> Path:
    """Where a relative path of the results is. Raises UsageError."""
    if path.startswith("/"):
        raise UsageError(f"{path} is a path of this machine, as the run is", f"cp {path}, without windlass")
    first, _, rest = path.partition("/")
    variable = FOLDERS.get(first)
    if variable is None:
        return run_dir / path
    return Path(plan.requests("node")[0]["env"][variable], rest)


def _pipe(source: Path, destination: Path, told: Callable[[int], None], name: str) -> tarpipe.Received:
    """Copy as between machines, so that the same is kept and the same left out."""
    if not source.exists():
        raise UsageError(f"{source} is not there", "see what is: ls the folder above it")
    read, write = os.pipe()
    broken: list[OSError] = []

    def feed() -> None:
        try:
            with os.fdopen(write, "wb") as out:
                tarpipe.send(str(source), out)
        except BrokenPipeError:
            pass  # who reads has a reason of its own
        except OSError as error:
            broken.append(error)

    feeder = threading.Thread(target=feed, name="sender")
    feeder.start()
    try:
        with os.fdopen(read, "rb") as stream:
            found = tarpipe.receive(stream, str(destination), name, told)
    except tarfile.TarError as error:
        feeder.join()
        raise broken[0] if broken else OSError(str(error)) from error
    finally:
        feeder.join()
    if broken:
        raise broken[0]
    return found
