"""Runs are named by the same rule on this machine and on targets."""

from __future__ import annotations

import pytest

from windlass.errors import NoSuchRun
from windlass.runs.naming import choose, newest_of

NEWEST_FIRST = ["digits-aaaaa", "digits-big-ccccc", "digits-big-bbbbb", "digits-zzzzz", "mnist-ab", "mnist-abbbb"]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("digits-zzzzz", "digits-zzzzz"),
        ("mnist-ab", "mnist-ab"),
        ("digits-z", "digits-zzzzz"),
        ("digits", "digits-aaaaa"),
        ("digits-big", "digits-big-ccccc"),
        ("mnist", "mnist-ab"),
        ("none", None),
    ],
)
def test_an_id_counts_before_the_beginning_of_one_and_that_before_a_name(asked: str, meant: str | None) -> None:
    assert choose(asked, NEWEST_FIRST) == meant


def test_ambiguous_prefix_names_its_runs() -> None:
    with pytest.raises(NoSuchRun, match="several runs on lab begin with 'mnist-a': mnist-ab, mnist-abbbb") as caught:
        choose("mnist-a", NEWEST_FIRST, "lab")
    assert caught.value.hint == "write more letters of the id", "for rm too, which takes no name of a job"
    with pytest.raises(NoSuchRun, match="digits-1, digits-2, digits-3, digits-4, digits-5 and more"):
        choose("digit", [f"digits-{number}" for number in range(1, 8)])


def test_only_job_name_is_reported_with_its_run() -> None:
    assert newest_of("digits", "digits-aaaaa") == "digits: its newest run is digits-aaaaa"
    assert newest_of("digits-a", "digits-aaaaa") == newest_of("digits-aaaaa", "digits-aaaaa") == ""
