"""What is observed of a run by its record and its logs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from windlass.diagnose.observe import observe
from windlass.runs.events import entry_of
from windlass.runs.store import Store

REPORT = '::windlass {"step": 119, "loss": 0.02}\n'


@pytest.mark.parametrize(
    ("log", "shown", "has_written"),
    [
        (f"{REPORT}reads rows\n{REPORT}", "reads rows\n", True),
        (f"50%|###  |{REPORT}no room\n", "50%|###  |\nno room\n", True),
        (REPORT * 3, "", True),
        ("", "", False),
    ],
)
def test_reports_of_progress_are_no_output_of_a_rank_and_a_sign_of_it(
    tmp_path: Path, log: str, shown: str, has_written: bool
) -> None:
    with Store(tmp_path) as store:
        with contextlib.closing(
            store.create("a-1", name="a", target="local", output_dir="/o", plan="{}", time=100.0)
        ) as writer:
            writer.append(entry_of("attempt", {"number": 1, "world_size": 1, "nodes": [[0]]}))
            folder = store.run_dir("a-1") / "attempt-1"
            folder.mkdir()
            (folder / "rank-0.log").write_text(log)
            os.utime(folder / "rank-0.log", (200.0, 200.0))
        [rank] = observe(store, store.status("a-1")).ranks
    assert (rank.tail, rank.last_output_at) == (shown, 200.0 if has_written else None)
