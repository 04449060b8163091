"""The page with the matrix of the contract has every case, and no case failed in any way."""

from __future__ import annotations

from tests.engines.contract import Contract
from tests.engines.matrix import COLUMNS, PAGE, page

ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]


def test_every_case_has_a_row_and_every_row_is_a_case() -> None:
    cases = {name.removeprefix("test_").replace("_", " ") for name in dir(Contract) if name.startswith("test_")}
    assert cases == {line.split(" | ")[0].removeprefix("| ") for line in ROWS}


def test_no_cell_is_a_failure_or_empty() -> None:
    cells = [line.removesuffix(" |").split(" | ")[1:] for line in ROWS]
    assert {len(row) for row in cells} == {len(COLUMNS)}
    assert {cell for row in cells for cell in row} <= {"✓", *"abcdefghijkl"}


def test_parameters_of_a_case_are_one_row_that_passes_if_all_do() -> None:
    made = page({"fake": {"one[1]": "✗", "one[2]": "✓", "two": "no files"}})
    assert "| one | ✗ |" in made
    assert "| two | a |" in made
    assert "- **a**: this way has no files" in made
