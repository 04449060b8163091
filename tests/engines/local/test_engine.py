"""Preparing a home for runs on this machine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from windlass.engines import travel
from windlass.engines.local.engine import make_import_folder


def test_commands_that_make_the_first_runs_of_a_home_at_once_share_its_import_folder(tmp_path: Path) -> None:
    at_once = Barrier(8)

    def make(home: Path) -> None:
        at_once.wait()
        make_import_folder(home)

    with ThreadPoolExecutor(at_once.parties) as commands:
        for number in range(20):
            home = tmp_path / str(number)
            home.mkdir()
            list(commands.map(make, [home] * at_once.parties))
            assert {part.name for part in home.glob("travel/*/windlass/*")} == set(travel.PARTS)
