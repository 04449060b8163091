"""Each row of the reference systems names commands, files and tests that exist."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.docs.test_pages import ROOT, refusal

PAGE = ROOT / "docs/reference-systems.md"
CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"(?:docs|examples|src|tests)/[\w./-]*")
SCRIPT = re.compile(r"python (examples/\S+\.py)\b")


class Row(NamedTuple):
    """A line of a table: steps of the tutorials, what to type for them, and the tests."""

    steps: str
    by_hand: str
    here: str
    tests: str


def rows_of(text: str) -> list[Row]:
    """The rows of all tables, without their headings."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [Row(*cells) for cells in lines if cells[0] != "step"]


ROWS = rows_of(PAGE.read_text())


def code(cell: str) -> list[str]:
    return CODE.findall(cell)


def problems(row: Row) -> Iterator[str]:
    """What the row names and what does not exist."""
    yield from missing_paths(row.here + row.tests)
    for text in code(row.here):
        words = shlex.split(text)
        if words[0] == "windlass" and (why := refusal(words)):
            yield f"{text}: {why}"
        if found := SCRIPT.match(text):
            yield from script_problems(found[1], words[2:])
    tests = code(row.tests)
    for name in tests:
        yield from pytest_problems(name) if name.startswith("tests/") else [f"{name} is not the path of a test"]
    others = re.findall(r"\bas (S\d-\d\d)\b", row.tests)
    yield from (f"there is no row {step}" for step in others if not any(step in one.steps for one in ROWS))
    if not tests and not others:
        yield "no test is named"


def missing_paths(text: str) -> Iterator[str]:
    """The paths of this repository in the code of a text that do not exist."""
    for path in (path for found in code(text) for path in PATH.findall(found)):
        if not (ROOT / path).exists():
            yield f"{path} does not exist"


def script_problems(path: str, words: list[str]) -> Iterator[str]:
    """What the parser of a script of the examples says against these words."""
    if not (ROOT / path).exists():
        return  # reported as a path
    spec = importlib.util.spec_from_file_location("example_script", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.parse_args(words)
    except SystemExit:
        yield f"{path} does not accept {shlex.join(words)}"


def pytest_problems(name: str) -> Iterator[str]:
    """Why pytest would find no test of this name: PATH, PATH::NAME or PATH::CLASS::NAME, perhaps with [PARAMETER]."""
    path, *names = name.split("::")
    if not (ROOT / path).exists() or not names:
        return  # a missing file is reported as a path
    found: object = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    for part in names:
        function, _, parameter = part.removesuffix("]").partition("[")
        found = getattr(found, function, None)
        if found is None or not function.lower().startswith("test"):
            yield f"{path} has no {part}"
            return
        marks = [mark for mark in getattr(found, "pytestmark", ()) if mark.name == "parametrize"]
        if parameter and not any(parameter in map(str, mark.args[1]) for mark in marks):
            yield f"{path}::{function} has no parameter {parameter}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.steps}: {row.by_hand[:30]}")
def test_a_row_names_commands_files_and_tests_that_exist(row: Row) -> None:
    assert list(problems(row)) == []


def test_paths_between_the_tables_exist() -> None:
    assert list(missing_paths(PAGE.read_text())) == []


def test_the_page_has_the_steps_of_five_systems() -> None:
    assert {step[:2] for row in ROWS for step in re.findall(r"S\d-\d\d", row.steps)} == {"S0", "S1", "S2", "S3", "S4"}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (("`windlass data fly`", "as S0-10"), "No such command 'fly'"),
        (("`windlass ps --fly`", "as S0-10"), "No such option '--fly'"),
        (("`windlass run examples/fly/job.yaml`", "as S0-10"), "examples/fly/job.yaml does not exist"),
        (("nothing", "`tests/docs/test_fly.py`"), "tests/docs/test_fly.py does not exist"),
        (("nothing", "`tests/docs/test_pages.py::test_fly`"), "has no test_fly"),
        (("nothing", "`tests/docs/test_pages.py::refusal`"), "has no refusal"),
        (("nothing", "`tests/engines/local/test_contract.py::TestWarm::test_fly`"), "has no test_fly"),
        (("nothing", "`tests/docs/test_pages.py::test_internal_links_resolve[fly]`"), "has no parameter fly"),
        (("nothing", "as S9-99"), "there is no row S9-99"),
        (("nothing", "the same"), "no test is named"),
        (("nothing", "`…::test_internal_links_resolve`"), "is not the path of a test"),
    ],
)
def test_a_name_that_does_not_exist_is_found(row: tuple[str, str], problem: str) -> None:
    [found] = problems(Row("S0-00", "", *row))
    assert problem in found
