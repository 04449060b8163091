"""Reads which commit a folder of code is at, and how many of its files differ from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GIT_SECONDS: Final = 5.0
"""A work tree on a slow file system must not hold up a run: its commit is then not recorded."""
_REPOSITORY: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE")
"""Variables that a hook of another repository may have set."""


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
    import shutil
    import subprocess

    from windlass.code.repository import root_of

    git = shutil.which("git", path=environ.get("PATH", os.defpath))
    try:
        if git is None or root_of(folder) is None:
            return None
    except OSError:  # the name of a folder that is not there may be too long
        return None
    env = {name: value for name, value in environ.items() if name not in _REPOSITORY} | {"GIT_OPTIONAL_LOCKS": "0"}
    command = [git, "-C", str(folder), "status", "--porcelain=v2", "--branch", "--untracked-files=normal", "-z", "--",
               "."]  # fmt: skip
    try:
        answer = subprocess.run(
            command, env=env, capture_output=True, timeout=GIT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_status(answer.stdout.decode(errors="replace")) if answer.returncode == 0 else None


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
