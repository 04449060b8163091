"""Error of a failed command, as JSON on standard error."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.errors import Problem


@dataclass(frozen=True, slots=True)
class ErrorView:
    """Why a command failed."""

    code: int
    """Exit code of the command."""
    message: str
    hint: str
    """Suggested fix; may be empty."""
    problems: tuple[Problem, ...]
    """All errors in a file."""


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Output on standard error if a command with -o json fails."""

    error: ErrorView
