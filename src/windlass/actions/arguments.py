"""Checks the types of Python API arguments; UsageError shows the value found and what to write."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping
from numbers import Real
from operator import index
from types import UnionType
from typing import NoReturn

from windlass.errors import UsageError


def require(value: object, kind: type | UnionType, what: str, hint: str) -> None:
    """Raises UsageError unless a value has the given type; `what` names the expected kind of value."""
    if not isinstance(value, kind):
        refuse(value, what, hint)


def refuse(value: object, what: str, hint: str) -> NoReturn:
    """Raises UsageError for an invalid value; `what` names the expected kind of value."""
    from windlass.spec.positions import found

    shown = f"bytes ({value[:40]!r})" if isinstance(value, bytes) else found(value)
    raise UsageError(f"expected {what}, found {shown}", hint)


def whole_number(value: object, what: str, hint: str) -> int:
    """Converts a non-negative integer, including NumPy integers, to an int that SQLite can compare. Raises
    UsageError.
    """
    try:
        number = -1 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 0:
        refuse(value, what, hint)
    return min(number, sys.maxsize)


def rank_numbers(value: object) -> frozenset[int]:
    """Converts a list, a range or another collection to a set of ranks. Raises UsageError."""
    what, hint = "a list of ranks", "write for example ranks=[0, 1]"
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        refuse(value, what, hint)
    return frozenset(whole_number(one, "the number of a rank", hint) for one in value)


def seconds(value: object) -> float:
    """Converts a duration to seconds. Raises UsageError, also for NaN, because a timeout of NaN never passes."""
    if not isinstance(value, Real) or isinstance(value, bool) or math.isnan(value):
        refuse(value, "a number of seconds", "leave it out to wait without a limit")
    return float(value)


def path_text(value: object, what: str) -> str:
    """Converts a path to text. Raises UsageError."""
    return _text(value, what, "give a str or a pathlib.Path")


def words(value: object, what: str, hint: str) -> list[str]:
    """Converts the words of a command line, which may be paths, to text. Raises UsageError, also for a single
    string.
    """
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        refuse(value, what, hint)
    return [_text(one, "a word of a command line", "write numbers as text too: str(0.1)") for one in value]


def _text(value: object, what: str, hint: str) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        refuse(value, what, hint)
    try:
        is_odd = b"\0" in os.fsencode(text)
    except UnicodeEncodeError:
        is_odd = True
    if is_odd:
        refuse(text, what, "leave out the zero byte, or the surrogate, that it holds")
    return text
