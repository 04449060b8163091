"""Names that may be written below a folder are accepted, and others refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.storage.names import clashes, is_own, own_file, problem


@pytest.mark.parametrize("name", ["a", "a/b.bin", "…/ä ö", "a" * 255, "/".join(["b" * 100] * 10), "...", ".hidden/x"])
def test_ordinary_names_are_accepted(name: str) -> None:
    assert problem(name) == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../x", "leads out"),
        ("a/../../x", "leads out"),
        ("/etc/passwd", "absolute"),
        ("a//b", "empty part"),
        ("", "empty part"),
        ("a/", "empty part"),
        ("./a", "empty part"),
        ("a\0b", "NUL"),
        ("a\nb", "control"),
        ("\x1b[31m", "control"),
        ("\ud800", "control"),
        ("a\ufffe", "control"),
        ("x" * 256, "part of its name"),
        ("ä" * 128, "part of its name"),
        ("/".join(["y" * 200] * 6), "longer than 1024"),
    ],
)
def test_invalid_names_are_refused_with_reason(name: str, why: str) -> None:
    assert why in problem(name)


@given(st.text(max_size=60))
def test_accepted_names_stay_below_folder(name: str) -> None:
    if not problem(name):
        assert not name.startswith("/")
        assert ".." not in name.split("/")
        assert "\0" not in name


def test_names_conflict_with_folders_and_names_of_other_case() -> None:
    found = dict(clashes(["a", "a/b", "c/d", "C", "e", "E", "f/g", "F/h"]))
    assert set(found) == {"a/b", "C", "E"}
    assert "the file a" in found["a/b"]
    assert "upper and lower case" in found["E"]


def test_files_of_windlass_are_not_part_of_a_set() -> None:
    assert is_own(".windlass/manifest.jsonl")
    assert is_own(own_file(".windlass/manifest.jsonl"))
    assert not is_own(".windlassignore")
