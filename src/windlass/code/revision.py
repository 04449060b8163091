"""Reads the git commit of a code folder, and how many of its files differ from the commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GIT_SECONDS: Final = 5.0
"""Time limit for git in seconds, so that a slow file system does not delay the run; after the limit, the commit is not
recorded."""


@dataclass(frozen=True, slots=True)
class Revision:
    """The commit of a work tree."""

    commit: str
    """SHA of the commit; empty in a repository without commits."""
    branch: str
    """Name of the branch; empty if HEAD is detached."""
    changed: int
    """Number of files below the folder that differ from the commit, including untracked files."""


def read_revision(folder: Path, environ: Mapping[str, str]) -> Revision | None:
    """Returns the commit of `folder`; None outside of a git work tree, without git, and if git does not respond."""
    # Imported here because views and plans, which use `Revision`, are loaded by commands that must start fast.
    from windlass.code.repository import ask_git, root_of

    try:
        if root_of(folder) is None:
            return None
    except OSError:  # for example, a name in the path is too long
        return None
    words = ["status", "--porcelain=v2", "--branch", "--untracked-files=normal", "-z", "--", "."]
    found = ask_git(folder, {**environ, "GIT_OPTIONAL_LOCKS": "0"}, words, GIT_SECONDS)
    return None if found is None else parse_status(found.decode(errors="replace"))


def parse_status(text: str) -> Revision:
    """Parses the output of `git status --porcelain=v2 --branch -z`."""
    head = {"oid": "", "head": ""}
    changed, is_old_name = 0, False
    for line in text.split("\0"):
        if is_old_name:  # skips the old path of a renamed file
            is_old_name = False
        elif line.startswith("# branch."):
            name, _, value = line.removeprefix("# branch.").partition(" ")
            head[name] = "" if value.startswith("(") else value
        elif line[:2] in ("1 ", "2 ", "u ", "? "):
            changed += 1
            is_old_name = line.startswith("2 ")
    return Revision(head["oid"], head["head"], changed)
