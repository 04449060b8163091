"""Picks the error to report from an exception group."""

from __future__ import annotations

from windlass.errors import WindlassError


def first_of(error: BaseException) -> BaseException:
    """Returns the error to report: the first Windlass error in an exception group, else its first error."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [first_of(one) for one in error.exceptions]
    return next((one for one in leaves if isinstance(one, WindlassError)), leaves[0])
