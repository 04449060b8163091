"""The metrics of a run on a cluster are complete with its supervisor there, and the same on every machine."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.cluster.bed.cluster import Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.harnesses import harness_on, let_go, opened
from tests.cluster.test_supervised_inside import (
    WAIT_SECONDS,
    Machine,
    elsewhere,
    inside,
    kill_supervisor,
    left_over,
)

from windlass.runs.metrics import Series
from windlass.runs.phase import Phase

__all__ = ["elsewhere", "inside"]

SCRIPT = f"""import os, time
from pathlib import Path
from windlass.train import report

if os.environ["WINDLASS_ATTEMPT"] == "1":
    for step in range(1, 21):
        report(step, loss=1 / step)
    time.sleep(0.2)
    report(21, loss=1 / 21)
    print("ready", flush=True)
    while not Path(os.environ["WINDLASS_OUTPUT_DIR"], "go").exists():
        time.sleep(0.1)
    report(22, loss=1 / 22)
    os.kill(os.getpid(), {signal.SIGKILL})
for step in range(15, 31):
    report(step, loss=0.5)
"""

pytestmark = pytest.mark.timeout(900)


def loss_of(series: tuple[Series, ...]) -> Series:
    [found] = [one for one in series if (one.name, one.source) == ("loss", "report")]
    return found


def test_curve_of_a_killed_rank_has_both_attempts_on_every_machine(
    cluster: Cluster, inside: str, elsewhere: Machine, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "curve.py").write_text(SCRIPT)
    with opened(harness_on(cluster, inside, tmp_path / "home", restarts={"max": 1})) as harness:
        run = harness.start("curve.py", base=tmp_path / "code").until_ready()
        there = elsewhere.find(run.id)
        wait_for(lambda: there.metrics(run.id), "points on the other machine", WAIT_SECONDS)
        kill_supervisor(cluster, inside, run.id)
        let_go(cluster, inside, run)
        assert run.wait().phase is Phase.SUCCEEDED, run.text()
        loss = loss_of(harness.engine.metrics(run.id))
        assert loss.attempts == (1,) * 22 + (2,) * 16
        assert loss.steps == (*range(1, 23), *range(15, 31))
        assert loss.values[:22] == pytest.approx([1 / step for step in range(1, 23)])
        assert elsewhere.find(run.id).metrics(run.id) == harness.engine.metrics(run.id)
        assert f"configmap/{run.id}-metrics" in left_over(cluster, inside, run.id)
        harness.engine.delete(run.id)
        wait_for(lambda: not left_over(cluster, inside, run.id), "the objects to be deleted", WAIT_SECONDS)
        harness.runs.clear()
