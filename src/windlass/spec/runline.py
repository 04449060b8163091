"""Splits the line `run:` into words as a POSIX shell does, and expands the variables of the job's `env:`.

No shell is involved: an expanded value is always one argument, and a `$NAME` in single quotes or after a backslash is
not expanded. Syntax that needs a shell is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from windlass.spec.names import looks_secret

_QUOTED: Final = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""", re.DOTALL)
_SPECIAL: Final = re.compile(r"[$~`\n|<>&;]")
_PROTECTED: Final = "\0"
"""Marker before each quoted character that would be special without quotes; NUL is never part of a job's text."""
_NAME: Final = re.compile(r"(?<!\0)\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", re.ASCII)
_SUBSTITUTION: Final = re.compile(r"(?<!\0)(?:\$\(.*|\$\{.*|`.*)", re.DOTALL)
_OPERATOR: Final = re.compile(r"(?<!\0)[|<>&;]")
_OF_RANKS: Final = {
    "RANK": "RANK",
    "LOCAL_RANK": "LOCAL_RANK",
    "NODE_RANK": "NODE_RANK",
    "GROUP_RANK": "NODE_RANK",
    "WORLD_SIZE": "WORLD_SIZE",
    "LOCAL_WORLD_SIZE": "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE": "NUM_NODES",
}
"""Maps torchrun's variables to Windlass variables with the same values, without the prefix `WINDLASS_`."""


def split_run(run: str, env: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Splits `run` into words and expands the variables of `env`; raises `ValueError` for an unclosed quote."""
    values = env or {}
    return tuple(
        _NAME.sub(lambda match: values.get(match[1] or match[2], match[0]), word).replace(_PROTECTED, "")
        for word in _protected_words(run)
    )


def join_run(words: Sequence[str], names: Sequence[str] = ()) -> str:
    """Joins words into a line for `run`; variables in `names` stay expandable, all other text is quoted."""
    return " ".join(_quoted(word, names) for word in words)


def with_arguments(run: str, words: Sequence[str]) -> str:
    """Appends arguments to the line `run`, quoted as in a shell."""
    line = re.sub(r"(\\?\n\s*)+$", "", run)
    return f"{line} {shlex.join(words)}"


def kind_of(words: tuple[str, ...]) -> Literal["script", "module", "program"]:
    """Returns the kind of program that `run` starts: a Python file, a Python module (`-m`), or another program."""
    if words[0] == "-m":
        return "module"
    return "script" if words[0].endswith(".py") else "program"


def needs_a_shell(run: str, env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields a message and a hint for each part of the line that needs a shell; the hint says what to write instead."""
    protected = _QUOTED.sub(_protect, run).strip()
    words = _protected_words(run)
    shell = "command: [bash, -c, …]"
    if words and kind_of(tuple(words)) != "program":
        shell += " with launcher: pytorch"  # the default launcher of `command` sets no torchrun variables
    if re.search(r"(?<!\0)\n", protected):
        first = protected.split("\n")[0].replace(_PROTECTED, "").strip()
        yield (
            f"has several lines, and is one command: no shell reads it. The first is {first[:60]}",
            f"put what comes before the script into setup:, or write {shell}; one command on several lines is written "
            "with > in place of |, or with \\ at the end of its lines",
        )
        return
    operators = dict.fromkeys(word.replace(_PROTECTED, "") for word in words if _OPERATOR.search(word))
    if operators:
        yield f"holds {' '.join(operators)}, and no shell reads it", f"write {shell}; an argument is written in quotes"
    text = " ".join(words)
    if found := _SUBSTITUTION.search(_NAME.sub("", text)):
        shown = found[0].split()[0].replace(_PROTECTED, "")
        yield f"holds {shown[:40]}, and no shell reads it", f"write {shell}; in single quotes it is passed unchanged"
    names = dict.fromkeys(match[1] or match[2] for match in _NAME.finditer(text))
    for name in names:
        if name not in env and not name.startswith("WINDLASS_"):
            yield f"names ${name}, which env: does not have", _instead_of(name, shell)
    for word in words:
        if word.startswith("~"):
            shown = word.replace(_PROTECTED, "")
            hint = f"write the whole path, or {shell}; in quotes it is passed unchanged"
            yield f"holds {shown}, but no shell expands ~", hint


def _instead_of(name: str, shell: str) -> str:
    if name in _OF_RANKS:
        return f"write $WINDLASS_{_OF_RANKS[name]}, which each rank gets filled in"
    if looks_secret(name, "value"):
        return "let the script read it from its environment, with its name in secrets: a run records its command"
    if name in ("MASTER_ADDR", "MASTER_PORT"):
        return f"it is known when the ranks start: let the script read it from its environment, or write {shell}"
    return f"add {name} to env:, or let the script read it from its environment, or write {shell}"


def _protected_words(run: str) -> list[str]:
    return shlex.split(_QUOTED.sub(_protect, run))


def _protect(match: re.Match[str]) -> str:
    """Marks the special characters in a quoted part of the line; removes a line break after a backslash."""
    text = match[0]
    if text == "\\\n":
        return ""
    if text[0] == "'":
        return _SPECIAL.sub(rf"{_PROTECTED}\g<0>", text)
    if text[0] == "\\":
        return _PROTECTED + text[1] if _SPECIAL.fullmatch(text[1]) else text
    return re.sub(r"\\([$`])|(\\.)|([~\n|<>&;])", _protect_in_double_quotes, text, flags=re.DOTALL)


def _protect_in_double_quotes(match: re.Match[str]) -> str:
    """Marks a special character inside double quotes, where only `$` keeps its meaning."""
    if match[2]:
        return "" if match[2] == "\\\n" else match[2]
    return _PROTECTED + (match[1] or match[3])


def _quoted(word: str, names: Sequence[str]) -> str:
    if not any((match[1] or match[2]) in names for match in _NAME.finditer(word)):
        return shlex.quote(word)
    kept = re.sub(
        _NAME.pattern + r'|[\\"`$]',
        lambda match: match[0] if (match[1] or match[2]) in names else f"\\{match[0]}",
        word,
        flags=re.ASCII,
    )
    return f'"{kept}"'
