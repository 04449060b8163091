"""Chooses the files of a folder that travel to a cluster, by ignore files, and refuses those that hold credentials.

What counts, the last of these that matches an entry deciding: the user's global ignore file, `.git/info/exclude`,
`.gitignore` of the folders from the root of the repository down, and `.windlassignore` of the same folders. As in git,
nothing is included again from a folder that is ignored. Unlike in git, a file that is tracked and also ignored stays
behind, so that the same rules hold with and without git, and the folder itself travels though a rule may match it.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from windlass.code.credentials import is_credential
from windlass.code.ignore import Rule, last_match
from windlass.code.repository import excluded_by, root_of, rules_above, rules_of, user_rules
from windlass.errors import UsageError

GIT, OWN = ".gitignore", ".windlassignore"
NEVER: Final = frozenset({".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache",
                          ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", ".DS_Store"})  # fmt: skip
"""Names that are no code, whether or not an ignore file lists them."""
BUILT_IN: Final = "built-in rule"
SHOWN: Final = 8
"""Credentials that a message names."""


@dataclass(frozen=True, slots=True)
class File:
    """A file or link that travels."""

    name: str
    """Path below the folder, with slashes."""
    path: Path
    num_bytes: int
    is_named: bool = False
    """Whether a line of `.windlassignore` that begins with `!` names it."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Entries that one rule keeps from travelling."""

    source: str
    """File and line of the rule, `.gitignore:3`; `built-in rule` for names that never travel."""
    pattern: str
    num_entries: int
    """Files and folders; what a folder holds is not counted."""


@dataclass(slots=True)
class Selection:
    """What of a folder travels, and what does not."""

    files: list[File] = field(default_factory=list)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)

    def counted(self) -> tuple[LeftOut, ...]:
        """What was left out, the rules with most entries first."""
        ordered = sorted(self.left_out.items(), key=lambda item: (-item[1], item[0]))
        return tuple(LeftOut(source, pattern, many) for (source, pattern), many in ordered)


def select(folder: Path, environ: Mapping[str, str]) -> Selection:
    """The files of a folder that travel, sorted. Raises UsageError for a folder or ignore file that cannot be read.

    `environ` tells where the user's own configuration of git lies.
    """
    folder = folder.resolve()  # as git does: the repository is that of the folder, not of a link to it
    found = Selection()
    root = root_of(folder)
    above = [excluded_by(root), *rules_above(folder, GIT)] if root is not None and root != folder else []
    try:
        _walk(found, folder, folder, [user_rules(folder, environ), *above], rules_above(folder, OWN))
    except RecursionError as error:
        raise UsageError(f"folders in {folder} are nested too deeply to travel", f"ignore them in {OWN}") from error
    found.files.sort(key=lambda file: file.name)
    return found


def refuse_credentials(files: list[File], folder: Path) -> None:
    """Raise UsageError if files hold credentials that no `.windlassignore` names with a `!` line."""
    try:
        unasked = [file for file in files if not file.is_named]
        held = [file.name for file in unasked if is_credential(file.name, file.path, file.num_bytes)]
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}", f"name it in {OWN}") from error
    if held:
        more = f" and {len(held) - SHOWN} more" if len(held) > SHOWN else ""
        raise UsageError(
            f"{len(held)} file{'s' * (len(held) > 1)} in {folder} may hold credentials, which would travel to the "
            f"cluster: {', '.join(held[:SHOWN])}{more}",
            f"ignore them in {GIT} or {OWN}; a file that shall travel is named in {OWN}: !/{held[0]}",
        )


def _walk(found: Selection, root: Path, folder: Path, git: list[list[Rule]], own: list[list[Rule]]) -> None:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}", "check code:") from error
    below = folder.relative_to(root)
    git = [*git, excluded_by(folder), rules_of(folder / GIT, folder, shown=str(below / GIT))]
    own = [*own, rules_of(folder / OWN, folder, shown=str(below / OWN))]
    for entry in entries:
        path = folder / entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name in NEVER:
            found.left_out[BUILT_IN, entry.name] += 1
            continue
        name = os.fsencode(path)
        ours = last_match(own, name, is_folder=is_folder)
        rule = ours or last_match(git, name, is_folder=is_folder)
        if rule is not None and not rule.keeps:
            found.left_out[rule.source, rule.pattern] += 1
        elif is_folder:
            _walk(found, root, path, git, own)
        else:
            found.files += _file(path, root, is_named=ours is not None)


def _file(path: Path, root: Path, *, is_named: bool) -> Iterator[File]:
    """The entry, if it is a file or a link; sockets, devices and pipes are passed over."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return  # removed since the folder was listed
    if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
        num_bytes = status.st_size if stat.S_ISREG(status.st_mode) else 0
        yield File(path.relative_to(root).as_posix(), path, num_bytes, is_named)
