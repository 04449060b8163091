"""Every error that Windlass raises, as one tree.

    WindlassError                   1    the root of all others; an internal error, where it is none of those below
    ├── UsageError                  2    a command line, a name or an option that cannot be
    │   ├── JobFileError            2    a job file, targets file or job object with problems in it
    │   └── PlanError               2    a good job that this target cannot run; names the targets which can
    ├── MissingPart                 1    an extra that is not installed; names the one command that installs it
    ├── StoreError                  1    the record cannot be read or written
    │   ├── UnsupportedVersion      1    recorded by another version of Windlass; nothing is changed
    │   └── StoreFull               1    no space left where the record lives
    ├── EngineError                 1    a target refused or broke
    │   └── LoginFailed             2    a target that knows no login, or one that has expired; nothing was started
    ├── StorageError                1    a folder or an object store refused or broke
    ├── NoSuchRun                   102  no run has this id, or several have this prefix
    └── RunEnded                         what `wait` and `run` raise for a run that did not succeed
        ├── RunFailed               100
        ├── RunNotFinished          101
        └── RunStopped              103

The number is the exit code of the command. A person sees `message` and `hint`; `--debug` shows the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class WindlassError(Exception):
    """Something was asked that could not be done: `message` says what was asked and found, `hint` what to try."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # An exception is pickled as a call with its `args`; subclasses take other arguments, some by keyword alone.
        return BaseException.__new__, (type(self), *self.args), vars(self)


class UsageError(WindlassError):
    """The request itself is wrong."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in what the user wrote."""

    where: str
    """File and line, `job.yaml:4`; the name of the object where there is no file."""
    field: str
    """Path of the field, `resources.gpus`; empty where the whole document is meant."""
    message: str
    """What was found, as the end of a sentence that begins with the field: `not a field`."""
    hint: str = ""
    """What to try: `did you mean nodes?`"""

    def __str__(self) -> str:
        field = f" {self.field}:" if self.field else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.where}:{field} {self.message}{hint}"


class JobFileError(UsageError):
    """What the user wrote has problems; all of them are in `problems`, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class PlanError(UsageError):
    """A good job that this target cannot run; all reasons are in `problems`."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class MissingPart(WindlassError):
    """A part that is installed by an extra is not there."""


class StoreError(WindlassError):
    """The record cannot be read or written."""


class UnsupportedVersion(StoreError):
    """A record was written by another version of Windlass; it is neither read nor changed."""


class StoreFull(StoreError):
    """There is no space left where the record lives."""


class EngineError(WindlassError):
    """A target refused the request, or broke."""


class LoginFailed(EngineError):
    """There is no login for the target, it has expired, or it is another one than the run's."""

    exit_code = 2


class StorageError(WindlassError):
    """A folder or an object store refused a request, or broke."""


class NoSuchRun(WindlassError):
    """No run has this id, or more than one has this prefix."""

    exit_code = 102


class RunEnded(WindlassError):
    """A run that was waited for did not succeed."""

    run: Any = None
    """The `windlass.Run`; None where the error was not raised by one."""

    @property
    def diagnosis(self) -> Any:
        """The `windlass.Diagnosis` of why it ended so, as `run.why()`. Raises NoSuchRun once the run was removed."""
        return None if self.run is None else self.run.why()


class RunFailed(RunEnded):
    """The run failed; the message names the first cause."""

    exit_code = 100


class RunNotFinished(RunEnded):
    """The run is still going on."""

    exit_code = 101


class RunStopped(RunEnded):
    """The run was stopped by a person."""

    exit_code = 103


def in_a_line(error: Exception) -> str:
    """What went wrong, and what to do about it in brackets."""
    hint = f" ({error.hint})" if isinstance(error, WindlassError) and error.hint else ""
    return f"{error.message if isinstance(error, WindlassError) else error}{hint}"


def near(word: str, choices: Iterable[str]) -> str:
    """`did you mean nodes?`; empty if no choice is similar."""
    import difflib  # most commands fail without a misspelled name

    by_folded = {choice.lower(): choice for choice in choices}
    hits = difflib.get_close_matches(word[:80].lower(), by_folded, n=1, cutoff=0.6)
    return f"did you mean {by_folded[hits[0]]}?" if hits else ""
