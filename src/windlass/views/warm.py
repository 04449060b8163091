"""Warm processes: what `windlass warm` prints."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.worker.values import Value


class WarmProcess(Value):
    """A process from which ranks are forked, or an environment in which none is safe; a field is there where it is
    known."""

    name: str
    state: str
    """`importing`, `ready` or `refused`."""
    pid: int = 0
    started_at: float = 0.0
    """Unix seconds."""
    python: str = ""
    """Its interpreter."""
    modules: tuple[str, ...] = ()
    """Those that are wanted."""
    imported: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Modules that are left to the scripts, each with the reason."""
    trying: tuple[str, ...] = ()
    """Modules that are tried now."""
    reads_all: str = ""
    """The function that has read the whole environment; empty where none has."""
    forks: int = 0
    """Nodes that were started from it."""
    resident_bytes: int = 0
    why: str = ""
    """Why it is refused."""


@dataclass(frozen=True, slots=True)
class StoppedWarm:
    """The warm processes that `warm stop` has ended."""

    stopped: tuple[str, ...]
    """Their names."""
