"""A home that cannot be written, such as an archive, is looked at by all commands that change nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.disk import make_read_only, small_disk
from tests.helpers.machine import Machine, machine_in

FAILS = "print('reads rows', flush=True)\nraise ValueError('no such column')\n"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with small_disk(tmp_path / "home", 8192), machine_in(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_a_run_in_a_home_that_cannot_be_written_is_shown_and_explained(machine: Machine) -> None:
    machine.write("train.py", FAILS)
    assert machine.windlass("run", "--set", f"python={sys.executable}", "train.py").returncode == 100
    run = machine.ended()["id"]
    machine.empty()
    make_read_only(machine.home)
    shown = {
        words: machine.windlass(*words.split())
        for words in ("ps", "ps --all", f"status {run}", "logs", "events", "why", "cost", "artifacts", "checkpoints",
                      f"cp {run}:code copy", "warm ls", "stop")
    }  # fmt: skip
    assert {words: (done.returncode, done.stderr) for words, done in shown.items() if done.returncode} == {}
    assert f"{run}  train" in shown["ps"].stdout
    assert "reads rows" in shown["logs"].stdout
    assert "ValueError: no such column" in shown["why"].stdout
    assert machine.folder.joinpath("copy/train.py").read_text() == FAILS
    for words in ("run train.py", "resume", f"rm {run}", f"note {run} text", "rerun"):
        refused = machine.windlass(*words.split())
        assert (refused.returncode, f"the record in {machine.home} cannot be" in refused.stderr) == (1, True), refused
