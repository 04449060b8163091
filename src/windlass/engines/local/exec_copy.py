"""Runs commands in the environment of a local rank, and copies files from and to the folders of a run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import windlass.worker
from windlass.errors import EngineError, UsageError
from windlass.plan.plan import Plan
from windlass.runs.record import Status

PROGRAM = Path(windlass.worker.__file__).with_name("exec_command.py")
FOLDERS = {"output": "WINDLASS_OUTPUT_DIR", "checkpoints": "WINDLASS_CHECKPOINT_DIR"}
"""Environment variable with the path of each folder of results."""


def execute(
    run_dir: Path,
    plan: Plan,
    status: Status,
    rank: int | None,
    node: int,
    command: Sequence[str],
    stdin: IO[bytes] | None,
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> int:
    """Runs a command with the environment of a rank, or of the node if `rank` is None; returns its exit code.

    Ctrl-C is forwarded to the command; KeyboardInterrupt is raised if the command ends by Ctrl-C. Raises EngineError.
    """
    worker = 0 if plan.nodes.one_worker else node
    spec = run_dir / f"attempt-{status.attempts[-1].number}" / f"node-{worker}.json"
    beside = _process_of(status, node) if plan.nodes.networks else 0
    words = [plan.nodes.worker_python, "-I", "-S", str(PROGRAM), str(spec), f"-{node}" if rank is None else str(rank)]
    try:
        child = subprocess.Popen(
            [*words, str(beside), *command],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=stdout,
            stderr=stderr,
        )
    except OSError as error:
        raise EngineError(f"{words[0]} cannot be started: {error.strerror}", "windlass doctor") from error
    interrupt = None
    while True:
        try:
            code = child.wait()
            break
        except KeyboardInterrupt as received:
            interrupt = received
            if not _is_in_foreground():  # in the foreground, the terminal has already signalled the command
                child.send_signal(signal.SIGINT)
        except BaseException:  # a signal handler of the calling program may raise any exception
            child.kill()
            child.wait()
            raise
    code = code if code >= 0 else 128 - code
    if interrupt is not None and code == 128 + signal.SIGINT:
        raise interrupt
    return code


def _is_in_foreground() -> bool:
    """Whether this process is in the foreground of its terminal, so that Ctrl-C also signals its children."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _process_of(status: Status, node: int) -> int:
    """Returns the pid of a live process in the network of a node. Raises EngineError."""
    pids = [rank.pid for rank in status.ranks if rank.node == node and rank.exit_code is None and rank.pid]
    if not pids:
        raise EngineError(f"node {node} has no live rank to share the network of", f"windlass status {status.id}")
    return pids[0]


def result(folders: tuple[Path, Mapping[str, str]], path: str) -> Path:
    """Resolves a path that is relative to the results. `folders` are the run's folder and its ranks' environment.

    Raises UsageError for an absolute path.
    """
    if path.startswith("/"):
        raise UsageError(f"{path} is a path of this machine, as the run is", f"cp {path}, without windlass")
    run_dir, env = folders
    first, _, rest = path.partition("/")
    variable = FOLDERS.get(first)
    return run_dir / path if variable is None else Path(env[variable], rest)
