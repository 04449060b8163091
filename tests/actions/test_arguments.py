"""Arguments of the Python API are taken as NumPy and pathlib give them, and refused where their type is another."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.actions.arguments import rank_numbers, seconds, whole_number, words
from windlass.errors import UsageError


class Whole:
    """A whole number of NumPy as Python sees it: none of its own, with a value that it can count with."""

    def __index__(self) -> int:
        return 3


def test_whole_numbers_of_numpy_become_those_of_python() -> None:
    assert whole_number(Whole(), "a number", "") == 3
    assert type(whole_number(Whole(), "a number", "")) is int
    assert rank_numbers([Whole(), 0]) == {0, 3}


def test_a_number_is_none_that_sqlite_refuses() -> None:
    assert whole_number(10**30, "a number", "").bit_length() == 63


@pytest.mark.parametrize("value", [None, True, -1, 1.0, "3", b"3", [3]])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"expected a number, found .*\n  write 3"):
        whole_number(value, "a number", "write 3")


@pytest.mark.parametrize("value", [True, "1", float("nan"), None, 1j])
def test_what_is_no_time_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="expected a number of seconds"):
        seconds(value)


def test_words_may_be_paths() -> None:
    assert words(("cat", Path("a", "b")), "words", "") == ["cat", "a/b"]


@pytest.mark.parametrize("value", ["cat a", b"cat", {"cat": 1}, 3, None, ["cat", None], ["\0"], ["\ud800"]])
def test_what_are_no_words_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"expected (words|a word)"):
        words(value, "words", "")
