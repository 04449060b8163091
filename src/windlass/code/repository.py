"""Finds the ignore files that count for a folder: up to the root of its git repository, and those of the user.

The files are read without git. Only `core.excludesFile` is asked of git, where it is installed: git alone knows every
file that its configuration may include. Without git the configuration files in their usual places are read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from windlass.code.ignore import Rule, parse
from windlass.errors import UsageError

GIT_SECONDS: Final = 10.0
MAX_BYTES: Final = 1 << 20
"""Of an ignore file."""


def root_of(folder: Path) -> Path | None:
    """The nearest folder from `folder` upwards that is the root of a git work tree."""
    return next((place for place in (folder, *folder.parents) if git_folder(place) is not None), None)


def git_folder(root: Path) -> Path | None:
    """Where the repository of a work tree lies, if `root` is the root of one; of a worktree, that of its main one."""
    dot = root / ".git"
    if (dot / "HEAD").is_file():
        return dot
    try:
        first = dot.read_text().partition("\n")[0]
    except (OSError, ValueError):
        return None
    if not first.startswith("gitdir: "):
        return None
    found = root / first.removeprefix("gitdir: ")
    try:
        return found / (found / "commondir").read_text().strip()
    except (OSError, ValueError):
        return found  # a submodule has all of its own


def rules_above(folder: Path, name: str) -> list[list[Rule]]:
    """The rules of the files called `name` in the folders above, from the root of the work tree down."""
    root = root_of(folder)
    if root is None:
        return []
    between = [place for place in reversed(folder.parents) if place.is_relative_to(root)]
    return [rules_of(place / name, place, shown=os.path.relpath(place / name, folder)) for place in between]


def excluded_by(root: Path) -> list[Rule]:
    """The rules of `.git/info/exclude` of the work tree at `root`; none if there is none."""
    found = git_folder(root)
    return [] if found is None else rules_of(found / "info" / "exclude", root, shown=".git/info/exclude", follow=True)


def user_rules(folder: Path, environ: Mapping[str, str]) -> list[Rule]:
    """The rules of the user's own ignore file, which holds for all folders."""
    path = _user_file(folder, environ)
    if path is None:
        return []
    home = environ.get("HOME", "")
    shown = f"~{str(path)[len(home) :]}" if home and str(path).startswith(f"{home}/") else str(path)
    return rules_of(path, root_of(folder) or folder, shown=shown, follow=True)


def rules_of(path: Path, base: Path, *, shown: str, follow: bool = False) -> list[Rule]:
    """The rules of a file, relative to `base`; none if it is not there. Raises UsageError if it cannot be read.

    As git does, a link is only followed where the file is not part of a work tree.
    """
    if not path.is_file() or (path.is_symlink() and not follow):
        return []
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path} is larger than an ignore file can be", "see: git help gitignore")
        return parse(path.read_bytes(), os.fsencode(base), shown)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "what it names must not travel: make it readable"
        ) from error


def _user_file(folder: Path, environ: Mapping[str, str]) -> Path | None:
    home = environ.get("HOME", "")
    config = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    named = _asked(folder, environ)
    if named is None:
        named = _configured(root_of(folder), home, config, environ)
    if named is not None:
        return folder / named if named else None
    return Path(config) / "git" / "ignore" if config else None


def _asked(folder: Path, environ: Mapping[str, str]) -> str | None:
    """`core.excludesFile`, as git gives it; None where it is not set, or git is not there or fails."""
    git = shutil.which("git", path=environ.get("PATH", os.defpath))
    if git is None:
        return None
    # Variables that a hook of another repository has set must not lead there.
    env = {name: value for name, value in environ.items() if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR")}
    command = [git, "-C", str(folder), "config", "--type=path", "--get", "core.excludesFile"]
    try:
        answer = subprocess.run(
            command, env=env, capture_output=True, timeout=GIT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(answer.stdout.removesuffix(b"\n")) if answer.returncode == 0 else None


def _configured(root: Path | None, home: str, config: str, environ: Mapping[str, str]) -> str | None:
    """`core.excludesFile` of the configuration files in their usual places; the last one that sets it counts."""
    places = ["/etc/gitconfig"]
    if "GIT_CONFIG_GLOBAL" in environ:
        places.append(environ["GIT_CONFIG_GLOBAL"])
    else:
        places += [f"{config}/git/config"] if config else []
        places += [f"{home}/.gitconfig"] if home else []
    repository = git_folder(root) if root is not None else None
    places += [str(repository / "config")] if repository is not None else []
    found = None
    for place in places:
        for value in _values(Path(place)):
            found = f"{home}{value[1:]}" if value.startswith("~/") else value
    return found


def _values(path: Path) -> Iterator[str]:
    """What one configuration file sets `core.excludesFile` to."""
    try:
        lines = path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    section = ""
    for line in lines:
        if header := re.match(r"\s*\[([^\]]*)\]\s*(.*)", line):
            section, line = header[1].strip().lower(), header[2]
        entry = re.match(r"\s*excludesfile\s*=\s*(.*)", line, re.IGNORECASE)
        if entry and section == "core":
            quoted = re.match(r'"([^"]*)"', entry[1])
            yield quoted[1] if quoted else re.split(r"[#;]", entry[1])[0].strip()
