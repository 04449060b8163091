"""Pods that train and end without a supervisor have their own times in the ledger, once the run is adopted."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.harnesses import harness_on, let_go, opened, set_up
from tests.cluster.test_supervised_inside import supervisors

from windlass.runs.ledger import fold_ledger, restarts
from windlass.runs.phase import Phase
from windlass.runs.time_accounting import Spent
from windlass.supervise.process import supervisor_pid

SCRIPT = """
import os, time
from pathlib import Path
from windlass.train import report
for step in range(1, 61):
    report(step=step, total=60)
    time.sleep(0.1)
    while step == 30 and not Path(os.environ["WINDLASS_OUTPUT_DIR"], "go").exists():
        time.sleep(0.1)
"""

pytestmark = pytest.mark.timeout(900)


def test_unsupervised_time_counts_as_training_until_the_pods_end(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "script.py").write_text(SCRIPT)
    with opened(harness_on(cluster, namespace, tmp_path / "home")) as harness:
        fields: dict[str, Any] = {
            "kubernetes": {"outputs_max": 0}
        }  # otherwise the pod would wait for a supervisor to collect its outputs
        run = harness.start("script.py", base=tmp_path / "job", **fields)
        run.until(lambda run: run.events[-1].kind == "progress")
        supervisor = supervisor_pid(run.dir)
        assert supervisor is not None
        os.kill(supervisor, signal.SIGKILL)
        recorded_at = run.events[-1].time
        # Later progress may be in no event, since events are written once a second.
        observed_at = max(recorded_at, harness.store.status(run.id).progress.at or 0.0)
        let_go(cluster, namespace, run)
        words = ("--for=jsonpath={.status.phase}=Succeeded", "--timeout=600s", "-l", f"windlass.dev/run={run.id}")
        cluster.kubectl("wait", "pod", "-n", namespace, *words)
        assert run.wait().phase is Phase.SUCCEEDED, run.text()
        events = run.events
        [place] = [place for place, event in enumerate(events) if event.kind == "adopted"]
        taken_up_at = events[place].time
        first_answer = fold_ledger(events[: place + 1], taken_up_at).seconds
        assert first_answer[Spent.UNOBSERVED] == pytest.approx(taken_up_at - observed_at, abs=0.5)
        steps = [event.time for event in events[place:] if event.kind == "progress"]
        assert recorded_at <= min(steps) <= max(steps) < taken_up_at
        [ended_at] = [event.time for event in events if event.kind == "rank" and "exit_code" in event.data]
        ledger = fold_ledger(events, 0.0)
        assert Spent.UNOBSERVED not in ledger.seconds
        assert ledger.seconds[Spent.IDLE] == pytest.approx(events[-1].time - ended_at, abs=0.01)
        assert Spent.IDLE not in ledger.node_seconds
        assert sum(ledger.seconds.values()) == pytest.approx(events[-1].time - events[0].time)


STEPS = """import os, time
print("ready", flush=True)
for step in range(10):
    print(f"step {step} loss 0.5", flush=True)
while os.environ["WINDLASS_ATTEMPT"] == "1":
    time.sleep(0.1)
"""


@pytest.mark.nightly
def test_node_lost_together_with_the_supervisor_is_shown_as_lost_since_then(
    lone_bed: Bed, lone_namespace: str, tmp_path: Path
) -> None:
    set_up(lone_bed, lone_namespace)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "steps.py").write_text(STEPS)
    fields = {"kubernetes": {"via": "job"}, "restarts": {"max": 1, "on": ["node-loss"]}}
    with opened(harness_on(lone_bed, lone_namespace, tmp_path / "home", **fields)) as harness:
        run = harness.start("steps.py", base=tmp_path / "code", nodes=2, procs_per_node=1, launcher="plain")
        run.until(lambda run: run.text().count("step 9") == 2 and run.status.progress.step == 9)
        [supervisor] = supervisors(lone_bed, lone_namespace, run.id)
        node = supervisor["spec"]["nodeName"]
        lone_bed.kill_node(node)
        killed_at = time.time()
        try:
            run.until(lambda run: f"is on node {node}, which does not answer" in str(run.status.supervision.condition))
            assert run.wait().phase is Phase.SUCCEEDED, run.text()
        finally:
            lone_bed.start_node(node)
        [lost] = [event for event in run.events if event.kind == "lost-node"]
        assert lost.data["since"] <= killed_at + 1
        assert restarts(run.events)[0].seconds >= lost.time - killed_at - 1
        [cause] = [event.data["summary"] for event in run.events if event.kind == "cause"]
        assert cause.startswith(f"node {lost.data['node']} was lost: ")
