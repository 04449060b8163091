"""Defines every exception that Windlass raises.

    WindlassError                   1    base class of all others; raised itself for internal errors
    ├── UsageError                  2    an invalid command line, name or option
    │   ├── JobFileError            2    a job file, targets file or job object with problems in it
    │   └── PlanError               2    a valid job that this target cannot run; names the targets that can
    ├── MissingExtra                 1    an extra that is not installed; names the command that installs it
    ├── StoreError                  1    the record cannot be read or written
    │   ├── UnsupportedVersion      1    recorded by another version of Windlass; nothing is changed
    │   └── StoreFull               1    no space left on the disk of the record
    ├── EngineError                 1    a target refused a request or failed
    │   └── LoginFailed             2    no login for a target, or an expired one; nothing was started
    ├── StorageError                1    a folder or an object store refused a request or failed
    ├── NoSuchRun                   102  no run has this id, or several have this prefix
    └── RunEnded                         raised by `wait` and `run` for a run that did not succeed
        ├── RunFailed               100
        ├── RunNotFinished          101
        └── RunStopped              103

The number is the exit code of the command. The command prints `message` and `hint`; `--debug` adds the traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class WindlassError(Exception):
    """Base class of Windlass's errors: `message` says what was requested and found, `hint` what to try."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # By default, an exception is unpickled by a call with its `args`, but subclasses require other arguments.
        return BaseException.__new__, (type(self), *self.args), vars(self)


class UsageError(WindlassError):
    """An invalid request: a bad command line, name or option."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a file, a mapping or a command line of the user."""

    where: str
    """File and line, `job.yaml:4`; the name of the object if it was not read from a file."""
    field: str
    """Path of the field, `resources.gpus`; empty if the problem concerns the whole document."""
    message: str
    """Description of the mistake, as the end of a sentence that begins with the field: `not a field`."""
    hint: str = ""
    """How to correct the mistake: `did you mean nodes?`"""

    def __str__(self) -> str:
        field = f" {self.field}:" if self.field else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.where}:{field} {self.message}{hint}"


class JobFileError(UsageError):
    """An invalid job file, targets file or job object; `problems` lists every mistake in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class PlanError(UsageError):
    """A valid job that this target cannot run; `problems` lists every reason."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class MissingExtra(WindlassError):
    """An optional dependency (extra) is not installed."""


class StoreError(WindlassError):
    """The record cannot be read or written."""


class UnsupportedVersion(StoreError):
    """A record was written by another version of Windlass, and is neither read nor changed."""


class StoreFull(StoreError):
    """The disk of the record has no space left."""


class EngineError(WindlassError):
    """A target refused a request or failed."""


class LoginFailed(EngineError):
    """The login for the target is missing, has expired, or differs from the run's."""

    exit_code = 2


class StorageError(WindlassError):
    """A folder or an object store refused a request or failed."""


class NoSuchRun(WindlassError):
    """No run has the requested id, or several runs have the requested prefix."""

    exit_code = 102


class RunEnded(WindlassError):
    """A run that `wait` or `run` waited for did not succeed."""

    run: Any = None
    """The `windlass.Run` that did not succeed; None if the error was not raised by a method of a run."""

    @property
    def diagnosis(self) -> Any:
        """The `windlass.Diagnosis` of the run, as from `run.why()`. Raises NoSuchRun if the run was removed."""
        return None if self.run is None else self.run.why()


class RunFailed(RunEnded):
    """The run failed; the message names the root cause."""

    exit_code = 100


class RunNotFinished(RunEnded):
    """The run has not ended yet."""

    exit_code = 101


class RunStopped(RunEnded):
    """The user stopped the run."""

    exit_code = 103


def error_line(error: Exception) -> str:
    """Formats an error on one line, with its hint in brackets."""
    hint = f" ({error.hint})" if isinstance(error, WindlassError) and error.hint else ""
    return f"{error.message if isinstance(error, WindlassError) else error}{hint}"


def near(word: str, choices: Iterable[str]) -> str:
    """Returns a suggestion such as `did you mean nodes?`; empty if no choice is similar."""
    import difflib  # imported here because only errors about misspelled names use it

    by_folded = {choice.lower(): choice for choice in choices}
    hits = difflib.get_close_matches(word[:80].lower(), by_folded, n=1, cutoff=0.6)
    return f"did you mean {by_folded[hits[0]]}?" if hits else ""
