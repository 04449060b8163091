"""Each figure of the page has a command that exists, and each benchmark has its figures there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "concepts" / "figures.md"
COMMANDS = sorted(set(re.findall(r"`python (bench/\w+\.py)([^`]*)`", PAGE.read_text())))
HELPERS = {"common.py", "fake_pods.py", "onbed.py", "spawn.py", "stage_peers.py", "stream_ways.py", "supervised.py"}


@pytest.mark.parametrize(("file", "words"), COMMANDS)
def test_the_command_of_a_figure_exists_with_its_options(file: str, words: str) -> None:
    source = (ROOT / file).read_text()
    assert [option for option in re.findall(r"--[a-z]+", words) if f'"{option}"' not in source] == []


def test_every_benchmark_has_figures() -> None:
    files = {path.name for path in (ROOT / "bench").glob("*.py")} - HELPERS
    assert {Path(file).name for file, _ in COMMANDS} == files


def test_a_smoke_test_has_one_trial_in_its_title_and_not_medians_of_none() -> None:
    common = runpy.run_path(str(ROOT / "bench" / "common.py"))
    assert (common["medians"](5), common["medians"](0)) == ("medians of 5 (least–greatest)", "one trial")
    for path in (ROOT / "bench").glob("*.py"):
        if re.search(r"runs\b.* = 0\b|0 if \S*smoke", path.read_text()):
            assert "medians of {" not in path.read_text(), path
