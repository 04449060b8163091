"""Why a command failed, as JSON on standard error."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.errors import Problem


@dataclass(frozen=True, slots=True)
class ErrorView:
    """Why a command failed."""

    code: int
    """The exit code."""
    message: str
    hint: str
    """What to do; may be empty."""
    problems: tuple[Problem, ...]
    """All errors of a file."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """On standard error, where a command with -o json fails."""

    error: ErrorView
