"""Numbers, lists and tables are formatted for a terminal."""

from __future__ import annotations

import io
import math

import pytest

from windlass.cli import formatting
from windlass.cli.render import emit


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0.0s"),
        (0.44, "0.4s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.7, "1m00s"),
        (185, "3m05s"),
        (8040, "2h14m"),
        (273_600, "3d04h"),
        (-1, "0.0s"),
        (math.inf, "–"),
    ],
)
def test_durations_are_short(seconds: float, said: str) -> None:
    assert formatting.duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1234567, "1,234,567"),
        (3.0, "3"),
        (0.03125, "0.0312"),
        (123.456, "123.5"),
        (3.2e-5, "3.2e-05"),
        ("nan", "nan"),
        (math.nan, "nan"),
        (True, "True"),
    ],
)
def test_numbers_are_rounded_to_readable_digits(value: object, said: str) -> None:
    assert formatting.number(value) == said


def test_whole_numbers_are_formatted_as_ranges() -> None:
    assert formatting.spans([3, 1, 0, 2, 7]) == "0–3, 7"
    assert formatting.spans(range(0, 40, 2), limit=3) == "0, 2, 4 and 17 more"
    assert formatting.spans([]) == ""


def test_tables_align_also_with_colours_and_wide_letters() -> None:
    rows = [["\x1b[31mab\x1b[0m", "x"], ["日本", "y"], ["a", "z"]]
    columns = [formatting.width_of(line[: line.rindex(line[-1])]) for line in formatting.table(rows)]
    assert columns == [6, 6, 6]


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("short", ["short"]),
        ("one two three four five six", ["one two three four", "  five six"]),
        ("why       the script takes no such", ["why       the script", "          takes no", "          such"]),
        ("warn  os  one two three", ["warn  os  one two", "          three"]),
        ("   → a fix of it, too", ["   → a fix of it,", "     too"]),
        ("in /a/path/that/is/longer/than/it here", ["in", "  /a/path/that/is/longer/than/it", "  here"]),
        ("\x1b[31mone two\x1b[0m three four five", ["\x1b[31mone two\x1b[0m three four", "  five"]),
    ],
)
def test_long_lines_are_broken_between_words(line: str, rows: list[str]) -> None:
    assert formatting.wrapped(line, 20) == rows


def test_a_table_without_rows_has_no_lines() -> None:
    assert formatting.table([]) == []


@pytest.mark.parametrize("share", [-1, 0, 0.001, 0.5, 0.99, 1, 7])
def test_bar_always_has_the_same_width(share: float) -> None:
    assert len(formatting.bar(share, 24)) == 24


def test_control_characters_from_outside_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in formatting.visible("a\x1b[2Jb\r\n")


def test_only_colours_of_outside_lines_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    emit(["\x1b[31merror\x1b[0m\tpod \x1b[2J\x1b]0;title\x07\x9b1A\r\x08\u202egpj.exe", "日本 é"])
    assert capsys.readouterr().out == "\x1b[31merror\x1b[0m\tpod �[2J�]0;title��1A���gpj.exe\n日本 é\n"


def test_empty_output_prints_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    emit([])
    emit(iter(()))
    assert capsys.readouterr().out == ""


def test_nothing_is_coloured_for_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert formatting.painter(io.StringIO())("text", "red", bold=True) == "text"


def test_no_color_wins_over_force_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert formatting.painter(io.StringIO())("text", "red") != "text"
    monkeypatch.setenv("NO_COLOR", "1")
    assert formatting.painter(io.StringIO())("text", "red") == "text"
