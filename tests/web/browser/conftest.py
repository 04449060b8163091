"""One browser for all tests of a module, and servers over a home with 10,000 generated runs and three real ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from tests.helpers.machine import Machine, machine_in
from tests.helpers.once import once
from tests.web.browser.browsing import WAIT_MS, Visitor, serving, visiting
from tests.web.records import large_run, many_runs, small_record

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
TRAIN: Final = """
import os, sys
from windlass import train
rank = int(os.environ["RANK"])
for step in range(200):
    train.report(step=step, total=200, loss=1 / (step + 1) + rank / 1000)
    print(f"step {step} of rank {rank}")
open(os.path.join(os.environ["WINDLASS_OUTPUT_DIR"], f"model-{rank}.txt"), "w").write("weights")
sys.stdout.flush()
if "broken" in sys.argv:
    assert rank != 1, "the loss of rank 1 is not a number"
"""
HOSTS: Final = "--host-resolver-rules=MAP *.example 127.0.0.1"
"""Every name below `.example` leads to this machine, as an attacker's name server could answer."""
LARGE: Final = "bert-large-big01"
HOSTILE: Final = "digits-7f3k2"


@dataclass(frozen=True)
class Home:
    """A home with many runs."""

    machine: Machine
    good: str
    """Id of a real run of two ranks that succeeded."""
    failed: str
    """Id of a real run of which rank 1 failed."""
    wide: str
    """Id of a real run of six ranks on three nodes."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window. Until it is closed, tests of the same process cannot run an event loop."""
    from playwright.sync_api import expect, sync_playwright

    path = shutil.which("chromium")
    assert path is not None, "the tests need a browser: bash tools/apt.sh browser"
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[HOSTS], timeout=WAIT_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Runs that are over: generated ones and real ones, made once for all processes of the tests."""

    def make() -> str:
        folder = tmp_path_factory.mktemp("ui")
        small_record(folder)
        many_runs(folder)
        large_run(folder)
        with machine_in(folder) as machine:
            machine.write("train.py", TRAIN)
            ids = [
                _run(machine, "good", "train.py", "--procs-per-node", "2"),
                _run(machine, "failed", "train.py", "--procs-per-node", "2", "--", "broken"),
                _run(machine, "wide", "train.py", "--nodes", "3", "--procs-per-node", "2"),
            ]
            for run_id in ids:
                machine.ended(run_id)
        return "\n".join([str(folder), *ids])

    folder, *ids = once(tmp_path_factory, "ui-home", make).split("\n")
    return Home(Machine(Path(folder) / "home", Path(folder) / "job"), *ids)


def _run(machine: Machine, name: str, *words: str) -> str:
    done = machine.windlass("run", "--detach", "-q", "--name", name, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def visitor(browser: Browser, home: Home) -> Iterator[Visitor]:
    """A browser with a session on a read-only server."""
    with serving(home.machine) as server:
        yield visiting(browser, server)


@pytest.fixture(scope="module")
def acting(browser: Browser, home: Home) -> Iterator[Visitor]:
    """A browser with a session on a server that allows actions."""
    with serving(home.machine, "--allow-actions") as server:
        yield visiting(browser, server)
