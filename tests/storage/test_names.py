"""Names that may be written below a folder are accepted, and others refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.storage.names import clashes, is_own, own_file, problem


@pytest.mark.parametrize("name", ["a", "a/b.bin", "…/ä ö", "a" * 255, "/".join(["b" * 100] * 10), "...", ".hidden/x"])
def test_ordinary_names_are_taken(name: str) -> None:
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
def test_others_are_refused_with_a_reason(name: str, why: str) -> None:
    assert why in problem(name)


@given(st.text(max_size=60))
def test_what_is_taken_stays_below_the_folder(name: str) -> None:
    if not problem(name):
        assert not name.startswith("/")
        assert ".." not in name.split("/")
        assert "\0" not in name


def test_a_file_cannot_stand_where_a_folder_is_needed_or_beside_one_of_another_case() -> None:
    found = dict(clashes(["a", "a/b", "c/d", "C", "e", "E", "f/g", "F/h"]))
    assert set(found) == {"a/b", "C", "E"}
    assert "the file a" in found["a/b"]
    assert "upper and lower case" in found["E"]


def test_our_own_files_are_no_part_of_a_set() -> None:
    assert is_own(".windlass/manifest.jsonl")
    assert is_own(own_file(".windlass/manifest.jsonl"))
    assert not is_own(".windlassignore")
