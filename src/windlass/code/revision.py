"""Reads which commit a folder of code is at, and how many of its files differ from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GIT_SECONDS: Final = 5.0
"""A work tree on a slow file system must not hold up a run: its commit is then not recorded."""


@dataclass(frozen=True, slots=True)
class Revision:
    """The commit of a work tree."""

    commit: str
    """SHA of the commit; empty in a repository without one."""
    branch: str
    """Empty where none is checked out."""
    changed: int
    """Files below the folder that differ from the commit, untracked ones included."""


def read_revision(folder: Path, environ: Mapping[str, str]) -> Revision | None:
    """The commit that `folder` is at; None outside of a git work tree, without git, and where git does not answer."""
    # Not at the top: views and plans, which have a revision, are read by commands that are quicker than these imports.
    from windlass.code.repository import ask_git, root_of

    try:
        if root_of(folder) is None:
            return None
    except OSError:  # the name of a folder that is not there may be too long
        return None
    words = ["status", "--porcelain=v2", "--branch", "--untracked-files=normal", "-z", "--", "."]
    found = ask_git(folder, {**environ, "GIT_OPTIONAL_LOCKS": "0"}, words, GIT_SECONDS)
    return None if found is None else parse_status(found.decode(errors="replace"))


def parse_status(text: str) -> Revision:
    """What `git status --porcelain=v2 --branch -z` prints."""
    head = {"oid": "", "head": ""}
    changed, is_old_name = 0, False
    for line in text.split("\0"):
        if is_old_name:  # the second path of a file that was renamed
            is_old_name = False
        elif line.startswith("# branch."):
            name, _, value = line.removeprefix("# branch.").partition(" ")
            head[name] = "" if value.startswith("(") else value
        elif line[:2] in ("1 ", "2 ", "u ", "? "):
            changed += 1
            is_old_name = line.startswith("2 ")
    return Revision(head["oid"], head["head"], changed)
