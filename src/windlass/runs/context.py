"""Context of a command: reads clock, environment, randomness and working folder of the process, and passes them on."""

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
"""Letters of run ids: no vowels, so that no id is a word, and no letters that look like digits."""
ID_LENGTH: Final = 5


def _token() -> str:
    return "".join(ID_LETTERS[byte % len(ID_LETTERS)] for byte in os.urandom(ID_LENGTH))


@dataclass(frozen=True, slots=True)
class Context:
    """Inputs that a command takes from its process. Python callers, such as tests, may pass other values."""

    environ: Mapping[str, str]
    cwd: Path
    clock: Clock = field(default_factory=Clock)
    token: Callable[[], str] = _token
    """Returns a new random suffix for a run id."""
    say: Callable[[str], None] = lambda _line: None
    """Prints a message to the user that is not part of the command's result."""

    def now(self) -> float:
        """Returns the wall time in Unix seconds."""
        return self.clock.time()

    @property
    def home(self) -> Path:
        """Returns the folder of this user's records."""
        return default_home(self.environ)

    def store(self) -> Store:
        """Opens the records of this user. Raises StoreError."""
        return Store(self.home, this_machine(self.environ))


def here() -> Context:
    """Returns the context of this process. Does not raise for a deleted working folder; using the folder later
    fails.
    """
    try:
        cwd = Path.cwd()
    except FileNotFoundError:
        # PWD is not used: it is wrong if the program has changed its folder since the shell set it.
        cwd = Path(str(Path("/proc/self/cwd").readlink()).removesuffix(" (deleted)"))
    environ: Mapping[str, str] = os.environ
    if "WINDLASS_RUN_ID" in environ:  # only commands inside a run need the module
        from windlass.plan.environment import outside_of_runs

        environ = outside_of_runs(environ)
    return Context(environ, cwd, say=lambda line: print(line, file=sys.stderr))
