"""Selects the files of a code folder to upload, by ignore files, and refuses files with credentials.

Rules are read from the user's global ignore file, `.git/info/exclude`, `.gitignore` of the folders from the root of the
repository down, and `.windlassignore` of the same folders; the last match decides. As in git, nothing below an ignored
folder is included again, and git's rules end at the root of a nested repository. Unlike in git, a tracked file that
matches a rule is excluded, so that the result does not depend on git. The code folder itself is selected even if a rule
matches it.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final

from windlass.code.credentials import is_credential
from windlass.code.ignore import Rule, last_match
from windlass.code.repository import excluded_by, root_of, rules_of, user_rules
from windlass.errors import UsageError

GIT, OWN = ".gitignore", ".windlassignore"
NEVER: Final = frozenset({".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache",
                          ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", ".DS_Store"})  # fmt: skip
"""Names of files and folders that are never selected, regardless of ignore files."""
HOME: Final = frozenset({"record.db", "record.db-wal", "record.db-shm", "record.db-journal", "record.lock", "reserve",
                         "reserve.new", "runs", "warm", "travel", "trash", "clusters", "prices.json", "transfers",
                         "slots", "sagemaker-local", "sagemaker-storage", "services", "deployments", "serving",
                         "environments", "ui"})  # fmt: skip
"""Files of Windlass in a folder with run records, which are never selected or opened: closing a file of an SQLite
database drops this process's locks on the file, and another process could then truncate the mapped file."""
RECORD: Final = frozenset({"record.db", "runs"})
"""Names of entries that a folder with run records always has."""
BUILT_IN: Final = "built-in rule"
SHOWN: Final = 8
"""Maximum number of files with credentials that the error lists."""
Rules = tuple[list[list[Rule]], list[list[Rule]]]
"""Rules of git's ignore files, the user's first, and rules of `.windlassignore` files, each in ascending order of
precedence."""


@dataclass(frozen=True, slots=True)
class File:
    """A selected file or link."""

    name: str
    """Path below the folder, with slashes."""
    path: Path
    num_bytes: int
    is_named: bool = False
    """Whether a `!` line of `.windlassignore` matches the file."""
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class ExcludedEntries:
    """The entries excluded by one rule."""

    source: str
    """File and line of the rule, `.gitignore:3`; `built-in rule` for the names in `NEVER` and `HOME`, and for the
    folders of Windlass."""
    pattern: str
    num_entries: int
    """Number of files and folders; the contents of folders are not counted."""


@dataclass(slots=True)
class Selection:
    """The selected files of a folder, and the entries that rules exclude."""

    files: list[File] = field(default_factory=list)
    excluded: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Source and pattern of the rule, by name of the excluded entry; the contents of folders are not listed."""
    ignored_folders: list[str] = field(default_factory=list)
    """Names of folders at the top that git ignores, where scripts often write their results."""
    own: frozenset[str] = frozenset()
    """Absolute paths of folders of Windlass, which are excluded."""
    max_entries: int | None = None
    num_entries: int = 0

    def count(self, many: int) -> None:
        """Adds to the number of listed entries. Raises UsageError if it exceeds `max_entries`."""
        self.num_entries += many
        if self.max_entries is not None and self.num_entries > self.max_entries:
            raise UsageError(f"the folder has more than {self.max_entries:,} entries", f"ignore them in {OWN}")

    def counted(self) -> tuple[ExcludedEntries, ...]:
        """Rules that excluded entries, in descending order of the number of entries."""
        ordered = sorted(Counter(self.excluded.values()).items(), key=lambda item: (-item[1], item[0]))
        return tuple(ExcludedEntries(source, pattern, many) for (source, pattern), many in ordered)

    def excluded_entry(self, name: str) -> str | None:
        """Returns the excluded entry that is, or contains, the file or folder `name`; None if there is none."""
        path = PurePosixPath(name)
        return next((one for one in map(str, (path, *path.parents)) if one in self.excluded), None)


def select(
    folder: Path, environ: Mapping[str, str], own: Collection[str] = (), *, max_entries: int | None = None
) -> Selection:
    """Returns the selected files of a folder, sorted. Raises UsageError if a folder or ignore file cannot be read, and
    if more than `max_entries` would have to be listed.

    `environ` locates the user's git configuration. `own` are absolute paths of folders of Windlass, which are excluded.
    """
    folder = folder.resolve()  # as git does before it looks for the repository
    found = Selection(own=frozenset(map(os.path.realpath, own)), max_entries=max_entries)
    root = root_of(folder)
    above = [place for place in reversed(folder.parents) if root is not None and place.is_relative_to(root)]
    rules: Rules = [user_rules(folder, environ)], []
    for place in above:
        rules = _inside(place, folder, rules)
    try:
        _walk(found, folder, folder, rules)
    except RecursionError as error:
        raise UsageError(f"folders in {folder} are nested too deeply to travel", f"ignore them in {OWN}") from error
    found.files.sort(key=lambda file: file.name)
    return found


def with_credentials(files: list[File]) -> list[str]:
    """Returns the names of files with credentials, except files that a `!` line of `.windlassignore` includes.

    Raises UsageError for a file that cannot be read.
    """
    try:
        unasked = [file for file in files if not file.is_named]
        return [file.name for file in unasked if is_credential(file.name, file.path, file.num_bytes)]
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}", f"name it in {OWN}") from error


def refuse_credentials(files: list[File], folder: Path) -> None:
    """Raises UsageError if files contain credentials, unless a `!` line of `.windlassignore` includes them."""
    if held := with_credentials(files):
        more = f" and {len(held) - SHOWN} more" if len(held) > SHOWN else ""
        raise UsageError(
            f"{len(held)} file{'s' * (len(held) > 1)} in {folder} may hold credentials, which would travel to the "
            f"cluster: {', '.join(held[:SHOWN])}{more}",
            f"ignore them in {GIT} or {OWN}; a file that shall travel is named in {OWN}: !/{held[0]}",
        )


def _inside(place: Path, root: Path, rules: Rules) -> Rules:
    """Returns the rules for the entries of the folder `place`: first the rules of the folders above, then its own.

    In the root of a nested repository or submodule, only the user's rules remain of the rules of git above.
    """

    def rules_in(name: str) -> list[Rule]:
        return rules_of(place / name, place, shown=os.path.relpath(place / name, root))

    git, own = rules
    excluded = excluded_by(place)
    if excluded is not None:
        of_user = [replace(rule, base=os.fsencode(place)) for rule in git[0]]
        git = [of_user, excluded]
    return [*git, rules_in(GIT)], [*own, rules_in(OWN)]


def _walk(found: Selection, root: Path, folder: Path, rules: Rules) -> None:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}", "check code:") from error
    found.count(len(entries))
    git, own = rules = _inside(folder, root, rules)
    is_home = {entry.name for entry in entries} >= RECORD
    never = NEVER | HOME if is_home else NEVER
    for entry in entries:
        path = folder / entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        is_data_cache = is_home and entry.name == "data" and (path / "sets").is_dir()
        if entry.name in never or is_data_cache or str(path) in found.own:
            found.excluded[path.relative_to(root).as_posix()] = BUILT_IN, entry.name
            continue
        name = os.fsencode(path)
        ours = last_match(own, name, is_folder=is_folder)
        rule = ours or last_match(git, name, is_folder=is_folder)
        if rule is not None and not rule.keeps:
            found.excluded[path.relative_to(root).as_posix()] = rule.source, rule.pattern
            if is_folder and folder == root and ours is None:
                found.ignored_folders.append(entry.name)
        elif is_folder:
            _walk(found, root, path, rules)
        else:
            found.files += _file(path, root, is_named=ours is not None)


def _file(path: Path, root: Path, *, is_named: bool) -> Iterator[File]:
    """Yields the entry if it is a file or a link; sockets, devices and pipes are skipped."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return  # the file was removed since the folder was listed
    if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
        is_link = stat.S_ISLNK(status.st_mode)
        num_bytes = 0 if is_link else status.st_size
        yield File(path.relative_to(root).as_posix(), path, num_bytes, is_named, is_link)
