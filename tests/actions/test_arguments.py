"""Arguments of the Python API may be NumPy and pathlib values; other types are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.actions.arguments import rank_numbers, seconds, whole_number, words
from windlass.errors import UsageError


class Whole:
    """An integer like NumPy's: not an `int`, but usable as an index."""

    def __index__(self) -> int:
        return 3


def test_numpy_integers_become_python_ints() -> None:
    assert whole_number(Whole(), "a number", "") == 3
    assert type(whole_number(Whole(), "a number", "")) is int
    assert rank_numbers([Whole(), 0]) == {0, 3}


def test_large_number_is_limited_to_the_sqlite_range() -> None:
    assert whole_number(10**30, "a number", "").bit_length() == 63


@pytest.mark.parametrize("value", [None, True, -1, 1.0, "3", b"3", [3]])
def test_value_that_is_not_an_integer_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"expected a number, found .*\n  write 3"):
        whole_number(value, "a number", "write 3")


@pytest.mark.parametrize("value", [True, "1", float("nan"), None, 1j])
def test_value_that_is_not_a_duration_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="expected a number of seconds"):
        seconds(value)


def test_command_words_may_be_paths() -> None:
    assert words(("cat", Path("a", "b")), "words", "") == ["cat", "a/b"]


@pytest.mark.parametrize("value", ["cat a", b"cat", {"cat": 1}, 3, None, ["cat", None], ["\0"], ["\ud800"]])
def test_values_that_are_not_command_words_are_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"expected (words|a word)"):
        words(value, "words", "")
