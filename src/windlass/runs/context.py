"""The context of a command: clock, environment, randomness and working folder, read here and passed inward."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from windlass.runs.clock import Clock
from windlass.runs.machine import this_machine
from windlass.runs.store import Store, default_home

ID_LETTERS: Final = "23456789bcdfghjkmnpqrstvwxz"
"""No vowels, so that no id is a word; no letters that look like digits."""
ID_LENGTH: Final = 5


def _token() -> str:
    return "".join(ID_LETTERS[byte % len(ID_LETTERS)] for byte in os.urandom(ID_LENGTH))


@dataclass(frozen=True, slots=True)
class Context:
    """What a command takes from its process; a call from Python may be given another one, as by a test."""

    environ: Mapping[str, str]
    cwd: Path
    clock: Clock = field(default_factory=Clock)
    token: Callable[[], str] = _token
    """A fresh ending for a run id."""
    say: Callable[[str], None] = lambda _line: None
    """Takes a line for the user that is not the answer of the command."""

    def now(self) -> float:
        """Unix seconds."""
        return self.clock.time()

    @property
    def home(self) -> Path:
        """Where this user's records live."""
        return default_home(self.environ)

    def store(self) -> Store:
        """The records of this user. Raises StoreError."""
        return Store(self.home, this_machine(self.environ))


def here() -> Context:
    """The context of this process. Raises nothing: a working folder that is gone is an error where it is used."""
    try:
        cwd = Path.cwd()
    except FileNotFoundError:
        # PWD is of the shell: a program that has changed its folder since would work in another one.
        cwd = Path(str(Path("/proc/self/cwd").readlink()).removesuffix(" (deleted)"))
    environ: Mapping[str, str] = os.environ
    if "WINDLASS_RUN_ID" in environ:  # no other command needs the module
        from windlass.plan.environment import outside_of_runs

        environ = outside_of_runs(environ)
    return Context(environ, cwd, say=lambda line: print(line, file=sys.stderr))
