"""Finds the command behind `env A=1 …`, `uv run …` and `conda run …`, with its variables and Python environment.

Only options without further effects are supported. A line with any other option is run unchanged as a command, with the
reason in a remark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class PythonEnvironment(NamedTuple):
    """A reference to a Python environment, which its tool resolves."""

    tool: str
    """Tool and subcommand: `uv run`, `conda run` …"""
    name: str = ""
    """Name of a conda environment; empty for the project's environment or the active environment."""
    path: str = ""
    """Folder of the environment (conda) or of the project (other tools); empty if the tool searches for the folder."""


@dataclass
class Wrapped:
    """The command that remains after wrapping programs such as `uv run` are removed from a command line."""

    words: list[str]
    env: dict[str, str] = field(default_factory=dict)
    environment: PythonEnvironment | None = None
    reason: str = ""
    """Why the line cannot be unwrapped; empty if it was unwrapped."""


class _Tool(NamedTuple):
    """The supported options of a program that runs a command in a Python environment."""

    flags: frozenset[str]
    values: frozenset[str] = frozenset()
    path_options: frozenset[str] = frozenset()
    """Options that name the folder of the environment, or of the project."""
    name_options: frozenset[str] = frozenset()
    """Options that name the environment."""


_UV = _Tool(
    frozenset(
        {"frozen", "locked", "no-sync", "active", "quiet", "q", "dev", "no-dev", "all-extras", "all-groups", "offline",
         "no-progress", "exact", "no-default-groups"}
    ),
    frozenset({"extra", "group", "no-extra", "no-group"}),
    frozenset({"project"}),
)  # fmt: skip
_CONDA = _Tool(
    frozenset({"no-capture-output", "live-stream", "verbose", "v"}),
    path_options=frozenset({"prefix", "p"}),
    name_options=frozenset({"name", "n"}),
)
_TOOLS: Final = {
    "uv": _UV,
    **dict.fromkeys(("conda", "mamba", "micromamba"), _CONDA),
    **dict.fromkeys(("poetry", "pdm", "pipenv", "rye"), _Tool(frozenset())),
}


def unwrap(words: Sequence[str]) -> Wrapped:
    """Returns the command behind the wrappers at the start of a line; returns the whole line, with a reason, if an
    option is not supported.
    """
    found = Wrapped(list(words))
    while found.words and not found.reason:
        program = found.words[0].rpartition("/")[2]
        if program == "env" and len(found.words) > 1:
            _env(found)
        elif program in _TOOLS and found.words[1:2] == ["run"] and found.environment is None:
            _run(found, program, _TOOLS[program])
        else:
            break
    if not found.reason and not found.words:
        found.reason = "no command follows"
    return Wrapped(list(words), reason=found.reason) if found.reason else found


def _env(found: Wrapped) -> None:
    """Removes `env A=1 B=2` from the start."""
    words = found.words[1:]
    if words[0] == "--":
        words = words[1:]
    if words and words[0].startswith("-"):
        found.reason = f"env {words[0]}"
        return
    while words and ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        found.env[name] = value
    found.words = words


def _run(found: Wrapped, program: str, tool: _Tool) -> None:
    """Removes `uv run --frozen` or `conda run -n base` from the start."""
    words, named, at = found.words[2:], {"name": "", "path": ""}, 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        spelled, equals, value = words[at].partition("=")
        option = spelled.lstrip("-")
        if program == "uv" and option in ("m", "module") and not equals:
            words = [*words[:at], "--", "python", "-m", *words[at + 1 :]]
            break
        if option in tool.flags and not equals:
            at += 1
            continue
        if option not in tool.values | tool.path_options | tool.name_options or (not equals and at + 1 >= len(words)):
            found.reason = f"{program} run {spelled}"
            return
        value = value if equals else words[at + 1]
        at += 1 if equals else 2
        if option in tool.path_options:
            named["path"] = value
        elif option in tool.name_options:
            named["name"] = value
    found.words = words[at + (words[at : at + 1] == ["--"]) :]
    found.environment = PythonEnvironment(f"{program} run", **named)
