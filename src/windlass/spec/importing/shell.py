"""Turns a line for a shell into its steps, where it is so simple that words without a shell mean the same."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

SHELLS: Final = ("sh", "bash", "ash", "dash", "zsh")
_BETWEEN: Final = re.compile(r"(&&|;|\n)[;\n]*")
_RESERVED: Final = frozenset(
    ("if", "for", "while", "until", "case", "select", "function", "{", "[[", "[", "test", "trap", "wait", "eval", "!")
)
"""Words after which the order of the steps is not that of the line."""
_QUIET: Final = (
    "set",
    "echo",
    "date",
    "pwd",
    "hostname",
    "whoami",
    "env",
    "printenv",
    "nvidia-smi",
    "ls",
    "sleep",
    "true",
)
"""Steps that change nothing for what follows."""
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SUBSTITUTION: Final = re.compile(
    r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=\"?(?:`[^`\n]*`|\$\([^\n]*\))\"?[ \t]*$", re.MULTILINE
)
_COMMENT: Final = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_NOT_PLAIN: Final = re.compile(
    r"""(?:^|\s)(?:"[;&|<>()]+"|'[;&|<>()]+'|\\[;&|<>()])(?=\s|$)|'[^'\n]*\$[^'\n]*'|\\\$|(?:^|\s)[#~]|`|\$\(""",
    re.MULTILINE,
)
"""Signs that are meant as they stand, and what a shell makes something else of."""
VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:[:=?+%#/-][^}]*)?\}|([A-Za-z_]\w*))")
"""`$NAME`, `${NAME}` and `${NAME:-else}`."""
_MACRO: Final = re.compile(r"\$\$|\$\(([A-Za-z_][-.\w]*)\)")


@dataclass
class Line:
    """What a line for a shell does, step by step."""

    words: list[str]
    """The command that it is for."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that it sets before."""
    folder: str | None = None
    """Where it goes before."""
    others: list[str] = field(default_factory=list)
    """Commands before and after it that do something."""


def script_of(words: Sequence[str]) -> str | None:
    """What a shell is told by `sh -c`; None where this is no such command, or one with arguments of its own."""
    if words[0].rpartition("/")[2] not in SHELLS:
        return None
    for at, word in enumerate(words[1:], 1):
        if not word.startswith("-") or word == "--":
            return None
        if re.fullmatch(r"-[a-z]*c[a-z]*", word):
            is_last = at + 2 == len(words) or all(not more for more in words[at + 2 :])
            return words[at + 1] if at + 1 < len(words) and is_last else None
        if word == "-o":
            return None
    return None


def read_line(script: str, starts_ranks: Callable[[Sequence[str]], bool]) -> Line | None:
    """The steps of a script, one of which starts the ranks; None where only a shell can tell what it does."""
    script = _SUBSTITUTION.sub("", _COMMENT.sub("", script.replace("\\\n", " ")))
    if _NOT_PLAIN.search(script):
        return None
    try:
        lexer = shlex.shlex(script, posix=True, punctuation_chars="();<>|&\n")
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
        steps = _steps(list(lexer))
    except ValueError:
        return None
    if steps is None:
        return None
    found, commands = Line([]), []
    for step in steps:
        words = list(step)
        env = {}
        while words and (pair := _ASSIGNMENT.fullmatch(words[0])):
            env[pair[1]] = pair[2]
            words = words[1:]
        if not words:
            found.env |= env
        elif words[0] in _RESERVED:
            return None
        elif words[0] == "cd" and len(words) == 2:
            found.folder = _joined(found.folder, words[1])
        elif words[0] == "export" and all(_ASSIGNMENT.fullmatch(word) for word in words[1:]):
            found.env |= {name: value for name, _, value in (word.partition("=") for word in words[1:])}
        elif words[0] not in ("set", "export"):
            commands.append((words[1:] if words[0] == "exec" and len(words) > 1 else words, env))
    loud = [one for one in commands if one[0][0] not in _QUIET]
    starting = [one for one in loud if starts_ranks(one[0])]
    chosen = starting if len(starting) == 1 else loud
    if len(chosen) != 1 or any("*" in word or "?" in word for word in chosen[0][0]):
        return None
    found.words, env = chosen[0]
    found.env |= env
    found.others = [shlex.join(words) for words, _ in loud if words is not found.words]
    return found


def _steps(tokens: Sequence[str]) -> list[list[str]] | None:
    """The tokens of each step; None for what is more than one step after the other."""
    steps: list[list[str]] = [[]]
    for token in tokens:
        if token and set(token) <= set("();<>|&\n"):
            if not _BETWEEN.fullmatch(token):
                return None
            steps.append([])
        else:
            steps[-1].append(token)
    return [step for step in steps if step]


def _joined(folder: str | None, name: str) -> str:
    return name if folder is None or name.startswith("/") else f"{folder.rstrip('/')}/{name}"


def expanded(text: str, env: Mapping[str, str]) -> str:
    """Kubernetes' own `$(NAME)` filled in from variables; what is not known stays, and `$$` is one `$`."""
    return _MACRO.sub(lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]), text)


def macros(words: Sequence[str]) -> list[str]:
    """The names that Kubernetes would fill in in these words."""
    return [match[1] for word in words for match in _MACRO.finditer(word) if match[1]]


def filled(text: str, env: Mapping[str, str]) -> str:
    """A shell's `$NAME` filled in from variables; what is not known stays."""

    def value(match: re.Match[str]) -> str:
        return env.get(match[1] or match[2], match[0])

    return VARIABLE.sub(value, text)
