"""Parses the script of `sh -c` into a command, its variables and its working directory, if no shell is needed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from windlass.spec.names import CONTRACT_ENV

SHELLS: Final = ("sh", "bash", "ash", "dash", "zsh")
_BETWEEN: Final = re.compile(r"(&&|;|\n)[;\n]*")
_RESERVED: Final = frozenset(
    ("if", "for", "while", "until", "case", "select", "function", "{", "[[", "[", "test", "trap", "wait", "eval", "!")
)
"""Keywords of control structures, and commands that need a shell."""
_QUIET: Final = (
    "set", "echo", "date", "pwd", "hostname", "whoami", "env", "printenv", "nvidia-smi", "ls", "sleep", "true",
)  # fmt: skip
"""Commands that do not affect later commands."""
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SUBSTITUTION: Final = re.compile(
    r"^[ \t]*(export[ \t]+)?([A-Za-z_]\w*)=\"?(?:`[^`\n]*`|\$\([^\n]*\))\"?[ \t]*$", re.MULTILINE
)
_OF_ERRORS: Final = re.compile(r"set (?:.* )?(?:-[a-z]*e[a-z]*|-o errexit)(?: .*)?")
_COMMENT: Final = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_NOT_PLAIN: Final = re.compile(
    r"""(?:^|\s)(?:"[;&|<>()]+"|'[;&|<>()]+'|\\[;&|<>()])(?=\s|$)|'[^'\n]*\$[^'\n]*'|\\\$|(?:^|\s)[#~]|`|\$\(|\$[\d@*#?$!']""",
    re.MULTILINE,
)
"""Syntax that needs a shell: quoted operators and dollars, comments, home folders, command substitutions, special
parameters and `$'text'`.
"""
_TEXT_IN_QUOTES: Final = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""", re.DOTALL)
_PIP: Final = re.compile(r"\bpip3?\s+install\b[^\n;&|]*")
"""Arguments of pip, such as `ray[default]`, which match no file."""
_PATTERN: Final = re.compile(r"(?<!\$)\{[^\s{}]*(?:,|\.\.)[^\s{}]*\}|\[[^\s\]]+\]")
"""Brace expansion and bracket patterns."""
VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:(:?-)([^}$]*))?\}|([A-Za-z_]\w*))")
"""`$NAME`, `${NAME}`, `${NAME:-else}` and `${NAME-else}`."""
_MACRO: Final = re.compile(r"\$\$|\$\(([A-Za-z_][-.\w]*)\)")


@dataclass
class Line:
    """A parsed shell script."""

    words: list[str]
    """The training command."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables set before the training command."""
    folder: str | None = None
    """Working directory of the training command."""
    before: list[tuple[str, bool]] = field(default_factory=list)
    """Earlier commands with an effect, each in its folder, and whether later ones require its success (`&&`)."""
    ends_at_errors: bool = False
    """Whether the first failing command ends the script: `set -e`."""
    after: list[str] = field(default_factory=list)
    """Commands after the training command."""
    dropped: list[str] = field(default_factory=list)
    """Commands that only print, wait, configure the shell or compute a variable of the launcher."""


def script_of(words: Sequence[str]) -> str | None:
    """Returns the script of `sh -c SCRIPT`; None for other commands, and for a script with arguments."""
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


def read_line(
    script: str, starts_ranks: Callable[[Sequence[str]], bool], given: Mapping[str, str] | None = None
) -> Line | None:
    """Parses a script into the command that starts the ranks and its context; None if it needs a shell.

    Variables in the values of assignments are expanded from earlier assignments and from `given`.
    """
    script = _COMMENT.sub("", script.replace("\\\n", " "))
    dropped = [match[0].strip() for match in _SUBSTITUTION.finditer(script)]
    computed = {match[2] for match in _SUBSTITUTION.finditer(script) if match[1]}
    script = _SUBSTITUTION.sub("", script)
    if _PATTERN.search(_PIP.sub("", _TEXT_IN_QUOTES.sub("_", script))):
        return None
    if _NOT_PLAIN.search(script) or computed.difference(CONTRACT_ENV):  # a computed variable that the program may read
        return None
    try:
        lexer = shlex.shlex(script, posix=True, punctuation_chars="();<>|&\n")
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
        steps = _steps(list(lexer))
    except ValueError:
        return None
    if steps is None:
        return None
    found = Line([])
    commands: list[tuple[list[str], dict[str, str], str | None]] = []
    is_needed: list[bool] = []
    for words, is_joined in steps:
        known = {**(given or {}), **found.env}
        is_env = words[:1] == ["env"] and len(words) > 1 and not words[1].startswith("-")
        if is_env:
            words = words[1:]  # `env A=1 python train.py`
        env: dict[str, str] = {}
        while words and (pair := _ASSIGNMENT.fullmatch(words[0])):
            # the shell expands all arguments of `env` before the first assignment
            env[pair[1]] = filled(pair[2], known if is_env else {**known, **env})
            words = words[1:]
        if not words:
            found.env |= env
        elif words[0] in _RESERVED:
            return None
        elif words[0] == "cd" and len(words) == 2:
            found.folder = joined(found.folder, filled(words[1], known))
        elif words[0] == "export" and all(_ASSIGNMENT.fullmatch(word) for word in words[1:]):
            found.env |= {name: filled(value, known) for name, _, value in (word.partition("=") for word in words[1:])}
        elif words[0] != "export":
            commands.append((words[1:] if words[0] == "exec" and len(words) > 1 else words, env, found.folder))
            is_needed.append(True)
        if is_needed and not is_joined:
            is_needed[-1] = False
    loud = [one for one in commands if not _is_quiet(one[0])]
    starting = [one for one in loud if starts_ranks(one[0])]
    chosen = starting if len(starting) == 1 else loud
    if len(chosen) != 1 or any("*" in word or "?" in word for word in chosen[0][0]):
        return None
    found.words, env, found.folder = chosen[0]
    found.env |= env
    at = loud.index(chosen[0])
    found.dropped = [*dropped, *(_again(one) for one in commands if _is_quiet(one[0]))]
    found.ends_at_errors = any(_OF_ERRORS.fullmatch(" ".join(words)) for words, _, _ in commands)
    needed = [need for one, need in zip(commands, is_needed, strict=True) if not _is_quiet(one[0])]
    found.before = [(_again(one), need) for one, need in zip(loud[:at], needed, strict=False)]
    found.after = [_again(one) for one in loud[at + 1 :]]
    return found


def _is_quiet(words: Sequence[str]) -> bool:
    return words[0] in _QUIET and (words[0] != "env" or len(words) == 1)


def _again(command: tuple[list[str], dict[str, str], str | None]) -> str:
    """Formats a command as a shell line that runs in the code folder."""
    words, env, folder = command
    line = " ".join([*(f"{name}={shlex.quote(value)}" for name, value in env.items()), shlex.join(words)])
    return line if folder is None else f"cd {shlex.quote(folder)} && {line}"


def _steps(tokens: Sequence[str]) -> list[tuple[list[str], bool]] | None:
    """Returns the tokens of each command, and whether `&&` follows; None if commands are not joined in sequence."""
    steps: list[tuple[list[str], bool]] = []
    words: list[str] = []
    for token in (*tokens, "\n"):
        if not token or not set(token) <= set("();<>|&\n"):
            words.append(token)
        elif not _BETWEEN.fullmatch(token):
            return None
        elif words:
            steps.append((words, token.startswith("&&")))
            words = []
    return steps


def joined(folder: str | None, name: str) -> str:
    """Joins a folder and a path; an absolute path is returned unchanged."""
    return name if folder is None or name.startswith("/") else f"{folder.rstrip('/')}/{name}"


def expanded(text: str, env: Mapping[str, str]) -> str:
    """Expands Kubernetes' `$(NAME)`; unknown names are kept, and `$$` becomes `$`."""
    return _MACRO.sub(lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]), text)


def macros(words: Sequence[str]) -> list[str]:
    """Returns the names that Kubernetes would expand in these words."""
    return [match[1] for word in words for match in _MACRO.finditer(word) if match[1]]


def filled(text: str, env: Mapping[str, str], keep: Collection[str] = ()) -> str:
    """Expands `$NAME` and `${NAME:-else}` as a shell does; unknown names, and `$NAME` and `${NAME}` of names in `keep`,
    are kept.
    """

    def value(match: re.Match[str]) -> str:
        name, default = name_in(match), match[2]
        if name not in env or (name in keep and default is None):
            return match[0]
        return match[3] if default == ":-" and not env[name] else env[name]

    return VARIABLE.sub(value, text)


def name_in(match: re.Match[str]) -> str:
    """Returns the name in a match of `VARIABLE`."""
    return match[1] or match[4]


def has_variable(text: str) -> bool:
    """Whether a text contains a variable, also in an expansion that `filled` keeps, such as `${NAME%.pt}`."""
    return "${" in text or VARIABLE.search(text) is not None
