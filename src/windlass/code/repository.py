"""Finds the ignore files that apply to a folder: those of its git repository, and the user's global one.

Only the setting `core.excludesFile` is read with git, because only git resolves all includes of its configuration. If
git is not installed, the configuration files in their usual paths are read.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from windlass.code.ignore import Rule, parse
from windlass.errors import UsageError

GIT_SECONDS: Final = 10.0
_OF_A_HOOK: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE")
"""Variables that git sets for hooks, and that would make git read another repository."""
MAX_BYTES: Final = 1 << 20
"""Maximum bytes of an ignore file."""
_SECTION: Final = re.compile(r"^\s*(\[[^\]\n]*\])", re.MULTILINE)


def root_of(folder: Path) -> Path | None:
    """Returns the root of the git work tree that contains `folder`; None outside of a work tree."""
    return next((place for place in (folder, *folder.parents) if git_folder(place) is not None), None)


def git_folder(root: Path) -> Path | None:
    """Returns the `.git` folder of a work tree; for a linked one, the main work tree's; None if `root` is no root."""
    dot = root / ".git"
    if (dot / "HEAD").is_file():
        return dot
    try:
        first = dot.read_text(encoding="utf-8", errors="surrogateescape").partition("\n")[0]
    except (OSError, ValueError):
        return None
    if not first.startswith("gitdir: "):
        return None
    found = root / first.removeprefix("gitdir: ")
    try:
        return found / (found / "commondir").read_text(encoding="utf-8", errors="surrogateescape").strip()
    except (OSError, ValueError):
        return found  # a submodule, unlike a linked worktree, has its own git folder


def excluded_by(root: Path) -> list[Rule] | None:
    """Returns the rules of `.git/info/exclude` of the work tree at `root`; None if `root` is not a work tree."""
    found = git_folder(root)
    return None if found is None else rules_of(found / "info" / "exclude", root, shown=".git/info/exclude", follow=True)


def user_rules(folder: Path, environ: Mapping[str, str]) -> list[Rule]:
    """Returns the rules of the user's global ignore file."""
    path = _user_file(folder, environ)
    if path is None:
        return []
    home = environ.get("HOME", "")
    shown = f"~{str(path)[len(home) :]}" if home and str(path).startswith(f"{home}/") else str(path)
    return rules_of(path, root_of(folder) or folder, shown=shown, follow=True)


def rules_of(path: Path, base: Path, *, shown: str, follow: bool = False) -> list[Rule]:
    """Returns the rules of a file, relative to `base`; empty if it does not exist. Raises UsageError if it cannot be
    read.

    As in git, a link is followed only outside of work trees.
    """
    if not path.is_file() or (path.is_symlink() and not follow):
        return []
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path} is larger than an ignore file can be", "see: git help gitignore")
        return parse(path.read_bytes(), os.fsencode(base), shown)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "make it readable: it names files that must not be packed"
        ) from error


def ask_git(folder: Path, environ: Mapping[str, str], words: Sequence[str], seconds: float) -> bytes | None:
    """Returns git's output in a folder; None if git is not installed, fails, or does not respond within `seconds`."""
    git = shutil.which("git", path=environ.get("PATH", os.defpath))
    if git is None:
        return None
    env = {name: value for name, value in environ.items() if name not in _OF_A_HOOK}
    command = [git, "-C", str(folder), *words]
    try:
        answer = subprocess.run(
            command, env=env, capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def _user_file(folder: Path, environ: Mapping[str, str]) -> Path | None:
    home = environ.get("HOME", "")
    config = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else "")
    named = _from_git(folder, environ)
    if named is None:
        named = _configured(root_of(folder), home, config, environ)
    if named is not None:
        return folder / named if named else None
    return Path(config) / "git" / "ignore" if config else None


def _from_git(folder: Path, environ: Mapping[str, str]) -> str | None:
    """Returns `core.excludesFile` from git; None if it is not set, or git is not installed or fails."""
    found = ask_git(folder, environ, ["config", "--type=path", "--get", "core.excludesFile"], GIT_SECONDS)
    return None if found is None else os.fsdecode(found.removesuffix(b"\n"))


def _configured(root: Path | None, home: str, config: str, environ: Mapping[str, str]) -> str | None:
    """Returns `core.excludesFile` from configuration files in their usual paths; the last file with the setting
    wins.
    """
    if "GIT_CONFIG_GLOBAL" in environ:
        user = [environ["GIT_CONFIG_GLOBAL"]]
    else:
        user = [f"{config}/git/config"] * bool(config) + [f"{home}/.gitconfig"] * bool(home)
    repository = git_folder(root) if root is not None else None
    own = [] if repository is None else [str(repository / "config")]
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True, inline_comment_prefixes=("#", ";"))
    for path in ("/etc/gitconfig", *user, *own):
        with contextlib.suppress(OSError, configparser.Error):
            # Adapts git's syntax to configparser: indentation and the case of section names do not matter, and an entry
            # may follow the section name on the same line.
            text = _SECTION.sub(lambda line: f"{line[1].lower()}\n", Path(path).read_text(errors="surrogateescape"))
            parser.read_string(re.sub(r"(?m)^\s+", "", text))
    value = parser.get("core", "excludesfile", fallback=None)
    if value is None:
        return None
    value = value.strip('"')
    return f"{home}{value[1:]}" if value.startswith("~/") else value
