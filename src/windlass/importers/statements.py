"""Splits a shell script into its statements, each with its position, without running or expanding anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_OPENING: Final = frozenset(("if", "for", "while", "until", "case", "select", "{"))
_CLOSING: Final = frozenset(("fi", "done", "esac", "}"))
_BEFORE_COMMAND: Final = frozenset(("if", "then", "elif", "else", "while", "until", "do", "{", "!", "time"))
_WORD_ENDS: Final = frozenset(" \t\n;&|<>()")
_REDIRECTED: Final = re.compile(r"[<>]&[0-9-]|&?>>?|<<<|<")


@dataclass(frozen=True, slots=True)
class Statement:
    """A command, or a whole `if … fi`, at the top level of a script."""

    start: int
    """Offset of the first character in the script."""
    end: int
    text: str

    @property
    def is_compound(self) -> bool:
        """Whether the statement contains others: a condition, a loop, a function, a group."""
        words = self.text.split(None, 2)
        return words[0] in _OPENING or self.text.startswith("(") or bool(re.match(r"\S+\s*\(\)|function\s", self.text))


def statements(script: str) -> list[Statement] | None:
    """Returns the statements of a script in order; None for a here-document or a script that is syntactically
    incomplete.
    """
    found: list[Statement] = []
    start: int | None = None
    depth, begins_command, at = 0, True, 0
    try:
        while at < len(script):
            char = script[at]
            if char in " \t" or script.startswith("\\\n", at):
                at += 1 if char in " \t" else 2
            elif char == "#" and (at == 0 or script[at - 1] in _WORD_ENDS):
                at = _line_end(script, at)
            elif char in "\n;" or script.startswith("&&", at):
                if depth == 0 and start is not None:
                    found.append(_statement(script, start, at))
                    start = None
                begins_command, at = True, at + (2 if char == "&" else 1)
            elif char in "|&<>()":
                if script.startswith("<<", at) and not script.startswith("<<<", at):
                    return None
                start = at if start is None else start
                depth += {"(": 1, ")": -1}.get(char, 0)
                begins_command, at = char in "|&(" or begins_command, at + 1
            else:
                start = at if start is None else start
                end = _word_end(script, at)
                word = script[at:end]
                is_keyword = begins_command or word in ("{", "}")
                depth += is_keyword * ((word in _OPENING) - (word in _CLOSING))
                begins_command, at = begins_command and word in _BEFORE_COMMAND, end
            if depth < 0:
                return None
    except IndexError:  # an unclosed quote or parenthesis
        return None
    if depth == 0 and start is not None:
        found.append(_statement(script, start, len(script)))
    return found if depth == 0 else None


def words(text: str) -> Iterator[tuple[int, str]]:
    """Yields the words and operators of a statement as written, quotes included, each with its position."""
    at = 0
    while at < len(text):
        if text[at] in " \t" or text.startswith("\\\n", at):
            at += 1 if text[at] in " \t" else 2
        elif text[at] == "#" and (at == 0 or text[at - 1] in _WORD_ENDS):
            at = _line_end(text, at)
        elif match := _REDIRECTED.match(text, at):
            yield at, match[0]
            at = match.end()
        else:
            end = at + 1 if text[at] in _WORD_ENDS else _word_end(text, at)
            yield at, text[at:end]
            at = end


def _statement(script: str, start: int, end: int) -> Statement:
    text = script[start:end].rstrip()
    return Statement(start, start + len(text), text)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _word_end(text: str, at: int) -> int:
    """Returns the end of a word. Raises IndexError for an unclosed quote or parenthesis."""
    while at < len(text) and text[at] not in _WORD_ENDS:
        if text[at] == "\\":
            at += 2
        elif text[at] in "'\"`":
            at = _quote_end(text, at)
        elif text.startswith("$(", at) or text.startswith("=(", at):
            at = _nested_end(text, at + 1, "()")
        elif text.startswith("${", at):
            at = _nested_end(text, at + 1, "{}")
        else:
            at += 1
    return at


def _quote_end(text: str, at: int) -> int:
    quote, at = text[at], at + 1
    while text[at] != quote:
        if quote == '"' and text.startswith("$(", at):
            at = _nested_end(text, at + 1, "()")
        else:
            at += 2 if text[at] == "\\" and quote != "'" else 1
    return at + 1


def _nested_end(text: str, at: int, pair: str) -> int:
    depth = 0
    while True:
        if text[at] == "\\":
            at += 2
            continue
        if text[at] in "'\"`":
            at = _quote_end(text, at)
            continue
        depth += (text[at] == pair[0]) - (text[at] == pair[1])
        at += 1
        if depth == 0:
            return at
