"""Ignore files match as in git, which is run on the same trees."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.code.ignore import parse
from windlass.code.selection import select

NAMES = ("a", "b", "ab", "a.c", "b.log", "foo", "a b", "é")
ATOMS = (
    *NAMES, "sub", "*", "?", "**", "***", "*.c", "*.log", "a*", "*o*", "fo?", "??", "foo**", "**a", "a.**", "[ab]",
    "[!a]", "[^a]*", "[a-c]*", "[]a]", "[a-", "[a", "[!]", "[--a]", "[a-\\c]", "[\\]]", "[[:alpha:]]", "[[:alpha:]b.]*",
    "[[:foo:]]", "[[:]", "[[:b]", "*a*b*", "*.*", "a*o*o",
    "\\a", "a\\", "a\\ ", "a ", "#a", "\\#a", "\\!a", "é*", "?é", "[é]", " ",
)  # fmt: skip

patterns = st.builds(
    lambda sign, root, names, end: sign + root + "/".join(names) + end,
    st.sampled_from(("", "", "!")),
    st.sampled_from(("", "", "", "/")),
    st.lists(st.sampled_from(ATOMS), min_size=1, max_size=3),
    st.sampled_from(("", "", "", "/", "\r")),
)
ignore_files = st.lists(patterns, max_size=4).map(lambda lines: "\n".join(lines))
trees = st.recursive(
    st.just(""),
    lambda inner: st.tuples(st.dictionaries(st.sampled_from(NAMES), inner, max_size=4), ignore_files),
    max_leaves=24,
)


def build(folder: Path, tree: object) -> None:
    folder.mkdir(exist_ok=True)
    if isinstance(tree, tuple):
        entries, ignored = tree
        if ignored:
            (folder / ".gitignore").write_text(ignored)
        for name, inner in entries.items():
            if inner == "":
                (folder / name).write_text("")
            else:
                build(folder / name, inner)


def git(folder: Path, *words: str, home: Path, check: bool = True) -> bytes:
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *words], cwd=folder, env=env, check=check, capture_output=True).stdout


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(trees, trees, ignore_files, ignore_files)
def test_selected_files_are_those_that_git_does_not_ignore(
    tree: object, sub: object, excluded: str, global_file: str
) -> None:
    with tempfile.TemporaryDirectory() as name:
        home, root = Path(name) / "home", Path(name) / "repo"
        build(root, tree)
        git(root, "init", "-q", "--template=", home=home)
        (root / ".git" / "info").mkdir()
        (root / ".git" / "info" / "exclude").write_text(excluded)
        (home / ".config" / "git").mkdir(parents=True)
        (home / ".config" / "git" / "ignore").write_text(global_file)
        build(root / "sub", sub)
        environ = {"PATH": "", "HOME": str(home)}
        for folder in (root, root / "sub"):
            if folder != root and git(root, "check-ignore", "sub", home=home, check=False):
                continue  # the folder of the job is selected even if a rule matches it
            listed = git(folder, "ls-files", "-coz", "--exclude-standard", home=home).split(b"\0")
            found = [file.name for file in select(folder, environ).files]
            assert found == sorted(os.fsdecode(one) for one in listed if one)


@pytest.mark.parametrize(
    "line", [b"", b"#a", b"   ", b"/", b"!", b"[a", b"a\\", b"[[:foo:]]", b"a/[", b"\xef\xbb\xbf# comment"]
)
def test_line_that_cannot_match_yields_no_rule(line: bytes) -> None:
    assert parse(line, b"/x", ".gitignore") == []


def test_rule_has_the_line_of_its_file() -> None:
    [first, second] = parse(b"# data\n*.bin\n\n!/keep.bin  \n", b"/x", "sub/.gitignore")
    assert (first.source, first.pattern, first.keeps) == ("sub/.gitignore:2", "*.bin", False)
    assert (second.source, second.pattern, second.keeps) == ("sub/.gitignore:4", "!/keep.bin", True)


@pytest.mark.parametrize("line", ["a*" * 30 + "b", "x/" + "*a" * 30 + "/b", "**/" + "a*" * 30 + "b"])
def test_many_stars_match_without_exponential_backtracking(line: str) -> None:
    """A direct translation to a regular expression would never finish."""
    (rule,) = parse(line.encode(), b"/r", "x")
    assert not rule.matches(b"/r/x/" + b"a" * 200, is_folder=False)
