"""The view of a run on a cluster is built from its pods."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from windlass.engines.values import Placement, RunState
from windlass.runs.events import entry_of
from windlass.runs.store import Store
from windlass.views.cluster_runs import on_cluster


@pytest.mark.parametrize(("num_recorded", "made_for", "shown"), [(2, 1, 2), (0, 3, 3)])
def test_attempt_in_reused_pods_is_counted(tmp_path: Path, num_recorded: int, made_for: int, shown: int) -> None:
    with Store(tmp_path) as store:
        created = store.create("a-1", name="a", target="lab", output_dir="/o", plan="{}", time=100.0)
        with contextlib.closing(created) as writer:
            for number in range(1, num_recorded + 1):
                writer.append(entry_of("attempt", {"number": number, "world_size": 1, "nodes": [[0]]}))
        state = RunState(store.status("a-1"), 101.0, placement=Placement("team", made_for, 1, 1))
    assert on_cluster(state).attempt == shown
