"""Warm processes: output of `windlass warm`."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.worker.values import Value


class WarmProcess(Value):
    """A process from which ranks are forked, or an environment in which forking is unsafe. Unknown fields are
    omitted.
    """

    name: str
    state: str
    """State of the process: `importing`, `ready` or `refused`."""
    pid: int = 0
    started_at: float = 0.0
    """Start time in Unix seconds."""
    python: str = ""
    """Path of the Python interpreter."""
    modules: tuple[str, ...] = ()
    """Modules that the process should import."""
    imported: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Modules that are not imported in advance, each with the reason."""
    trying: tuple[str, ...] = ()
    """Modules whose import is being tested."""
    reads_all: str = ""
    """Function or child process that has read all environment variables; empty without such a function or process."""
    forks: int = 0
    """Number of nodes forked from the process."""
    resident_bytes: int = 0
    why: str = ""
    """Why the environment is refused."""


@dataclass(frozen=True, slots=True)
class StoppedWarm:
    """Result of `warm stop`."""

    stopped: tuple[str, ...]
    """Names of the stopped processes."""
