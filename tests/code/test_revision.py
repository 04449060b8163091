"""The commit of a code folder is read from git, and from recorded git output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from windlass.code.revision import Revision, parse_status, read_revision

ENVIRON = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=ann", "-c", "user.email=ann@example.com", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, *words], cwd=folder, env=ENVIRON, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("1")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def test_clean_work_tree_has_commit_and_branch(repository: Path) -> None:
    assert read_revision(repository, ENVIRON) == Revision(git(repository, "rev-parse", "HEAD"), "main", 0)


def test_changed_files_are_counted_only_below_the_folder(repository: Path) -> None:
    (repository / "train.py").write_text("2")
    (repository / "code" / "new file.py").write_text("")
    found = read_revision(repository, ENVIRON)
    below = read_revision(repository / "code", ENVIRON)
    assert (found and found.changed, below and below.changed) == (2, 1)


def test_git_variables_of_another_repository_are_ignored(repository: Path, tmp_path: Path) -> None:
    environ = {**ENVIRON, "GIT_DIR": str(tmp_path / "not-there"), "GIT_INDEX_FILE": str(tmp_path / "no-index")}
    assert read_revision(repository, environ) == read_revision(repository, ENVIRON)


def test_no_revision_outside_of_a_work_tree_or_without_git(repository: Path) -> None:
    assert read_revision(repository, {**ENVIRON, "PATH": "/nowhere"}) is None
    assert read_revision(Path("/proc"), ENVIRON) is None


def test_a_repository_without_a_commit_and_one_without_a_branch(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert read_revision(tmp_path, ENVIRON) == Revision("", "main", 0)
    assert parse_status("# branch.oid 3f2a\0# branch.head (detached)\0") == Revision("3f2a", "", 0)


def test_renamed_file_counts_as_one_change() -> None:
    text = "# branch.oid 3f2a\0# branch.head main\x002 R. N... 100644 100644 100644 a b R100 new\0? old\x00? other\0"
    assert parse_status(text).changed == 2
