"""`why` is right about each input of `cases.yaml`; `make verdicts` counts them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.verdicts.playing import Case, cases, judged, play

CASES = cases()
WHY = {"verdict": "exception", "summary": "rank 0: ValueError", "evidence": ["train.py:3"], "fix": "see the log"}


def param(case: Case) -> object:
    marks = [pytest.mark.slow] if case.in_ci else [pytest.mark.slow, pytest.mark.nightly]
    return pytest.param(case, id=re.sub(r"[^a-z0-9]+", "-", case.name.lower()), marks=marks)


@pytest.mark.parametrize("case", [param(case) for case in CASES])
def test_why_is_right(case: Case, tmp_path: Path) -> None:
    if case.is_left_out:
        pytest.skip(case.is_left_out)
    said = play(case, tmp_path)
    assert not said.wrong, said.text


def test_each_input_is_in_the_table_and_the_other_way_round() -> None:
    inputs = {path.name for path in Path(__file__).with_name("inputs").iterdir() if path.suffix == ".py"}
    assert inputs == {case.file for case in CASES}
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({}, ()),
        ({"verdict": "hang"}, ("verdict exception, right is hang",)),
        ({"words": ("train.py:3", "step 5")}, ("'step 5' is missing in the verdict",)),
        ({"absent": ("Traceback",)}, ("'Traceback' is printed",)),
        ({"warnings": ("nan", "outlived")}, ("'outlived' is missing in the warnings",)),
        ({"shown": ("loss 0.1",)}, ("'loss 0.1' is missing in the output",)),
        ({"attempts": 3}, ("2 attempts, right is 3",)),
    ],
)
def test_what_is_not_right_is_counted(fields: dict[str, object], wrong: tuple[str, ...]) -> None:
    case = Case(**{"name": "case", "file": "train.py", "verdict": "exception", **fields})  # type: ignore[arg-type]
    status = {"attempts": [1, 2], "warnings": [{"code": "nan-loss", "message": "the loss is nan"}]}
    assert judged(case, WHY, status, "Traceback: …", "step 4").wrong == wrong
