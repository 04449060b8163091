"""Training on a real cluster has the same weights with every workload kind and fault, and each log line once."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed import host
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.harnesses import digest, harness_on, let_go, opened, pods
from tests.cluster.stores import pod_store
from tests.engines.harness import Can, Harness, Run, Way
from tests.engines.local.planning import plan_local
from tests.helpers.once import once
from tests.helpers.samples import counted, notes_in

from windlass.actions import checkpoints, exec_copy
from windlass.engines.local.engine import LocalEngine
from windlass.plan.plan import NO_PLAN
from windlass.runs.ledger import restarts
from windlass.runs.phase import Phase

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = EXAMPLES / "01-digits"
ELASTIC = Path(__file__).parents[1] / "engines" / "local" / "elastic"
RESUMABLE = EXAMPLES / "08-resumable-digits"
SHAPE: dict[str, Any] = {"nodes": 2, "procs_per_node": 2}
LOCAL = Way("local", LocalEngine, plan_local, frozenset(Can), {"start": "cold"})
LOST_SECONDS = 5
"""Seconds for which pods stay on an unreachable node; the cluster needs 10 s to detect one."""
EPOCHS = "5"
NUM_SAMPLES = 101
"""Number of samples of the elastic job."""
NUM_RUNS = 20
OUTAGE_SECONDS = 6
"""Seconds in which the supervisor's requests of all kinds fail at least once."""
NUM_LINES = 2000
COUNTS = f"""
import os, time
for number in range({NUM_LINES}):
    print(f"line {{number}} of rank {{os.environ['WINDLASS_RANK']}}", flush=True)
    time.sleep(0.02)
    while number == {NUM_LINES} // 2 and not os.path.exists(os.environ["WINDLASS_OUTPUT_DIR"] + "/go"):
        time.sleep(0.1)
"""
"""Program that prints half of its lines during the outage, however long that is, and half after it."""
WAIT_SECONDS = 600.0

pytestmark = pytest.mark.timeout(900)


def results(cluster: Cluster, **more: Any) -> dict[str, Any]:
    """Returns job fields with a claim for results."""
    claim = {"size": "1GiB"} | ({"storage_class": "bed"} if isinstance(cluster, Bed) else {})
    return {"kubernetes": {"results": claim, **more}}


def accuracy(run: Run) -> str:
    [said] = re.findall(r"^test accuracy (.*)$", run.text(), re.MULTILINE)
    return str(said)


def succeeded(run: Run) -> Run:
    status = run.wait()
    assert status.phase is Phase.SUCCEEDED, f"{status}\n{run.text()}"
    return run


def told(run: Run, kind: str) -> list[dict[str, Any]]:
    """Returns the data of the events of a kind."""
    return [dict(event.data) for event in run.events if event.kind == kind]


def test_digits_have_the_same_weights_as_job_and_jobset_and_the_local_accuracy(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    words = ("train.py", "--epochs", "2")
    with (
        opened(harness_on(cluster, namespace, tmp_path / "home")) as harness,
        opened(Harness(LOCAL, tmp_path / "local")) as local,
    ):
        runs = {
            via: harness.start(*words, base=DIGITS, **SHAPE, **results(cluster, via=via)) for via in ("job", "jobset")
        }
        at_home = local.start(*words, base=DIGITS, **SHAPE)
        for run in (*runs.values(), at_home):
            succeeded(run)
        weights = {via: digest(run, "model.pt", tmp_path) for via, run in runs.items()}
        assert weights["job"] == weights["jobset"]
        assert accuracy(runs["job"]) == accuracy(runs["jobset"]) == accuracy(at_home)


# -- losses -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the weights of an undisturbed local run; a test cluster is on this machine, so they must be equal."""
    folder = tmp_path_factory.mktemp("undisturbed")

    def trained() -> str:
        with opened(Harness(LOCAL, folder / "home")) as harness:
            return digest(succeeded(resumable(harness)), "model.safetensors", folder)

    return once(tmp_path_factory, "undisturbed-resumable", trained)


@pytest.fixture(scope="module")
def unhurried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the resumable digits with `slow.py`, whose first two attempts do not end before a fault is injected."""
    folder = tmp_path_factory.mktemp("unhurried") / "code"
    shutil.copytree(RESUMABLE, folder)
    (folder / "slow.py").write_text(SLOW)
    return folder


SLOW = """
import os, runpy, sys, time
from torch.optim.optimizer import register_optimizer_step_post_hook

if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 2:
    register_optimizer_step_post_hook(lambda *_: time.sleep(0.2))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def resumable(harness: Harness, *words: str, base: Path = RESUMABLE, bucket: str = "", **kept: Any) -> Run:
    """Starts the digits with one rank on each of two nodes, saving often."""
    fields = {
        "restarts": {"max": 10, "on": ["failure", "preemption", "node-loss"]},
        "checkpoint": {"every": "20 steps", **({"folder": f"s3://{bucket}/saved"} if bucket else {})},
    }
    words = (*words, "train.py", "--epochs", EPOCHS)
    return harness.start(*words, base=base, grace=10, nodes=2, procs_per_node=1, **fields, **kept)


def until_saved(run: Run, attempt: int) -> None:
    """Waits until attempt `attempt` has saved a checkpoint."""

    def saved(run: Run) -> bool:
        assert not run.status.phase.is_terminal, run.status
        begun = [event.seq for event in run.events if event.kind == "attempt"]
        after = begun[attempt - 1] if len(begun) >= attempt else None
        return after is not None and any(
            event.kind == "checkpoint" and event.data["action"] == "saved" and event.seq > after for event in run.events
        )

    run.until(saved)


def went_on(run: Run, reasons: str) -> None:
    """Asserts that later attempts started for these reasons, and restored a checkpoint of an earlier one."""
    found = " ".join(one["reason"] for one in told(run, "attempt"))
    assert re.fullmatch(f"first {reasons}", found), told(run, "attempt-end")
    restored = [one.restored_step for one in run.status.attempts]
    assert restored[0] is None
    assert all(step is not None and step >= 20 for step in restored[1:]), restored


@pytest.mark.nightly
def test_killed_pods_resume_from_the_claim_with_the_same_weights(
    bed: Bed, namespace: str, tmp_path: Path, undisturbed: str, unhurried: Path
) -> None:
    with opened(harness_on(bed, namespace, tmp_path / "home")) as harness:
        run = resumable(harness, "slow.py", base=unhurried, **results(bed, lost_after=LOST_SECONDS, via="job"))
        until_saved(run, 1)
        name = pods(bed, namespace, run, 1)[1]["metadata"]["name"]
        bed.kubectl("delete", "pod", name, "-n", namespace, "--grace-period=0", "--force")
        until_saved(run, 2)
        kill_processes(bed, pods(bed, namespace, run, 2)[0])
        succeeded(run)
        # the API object may be deleted before or after its preemption notice
        went_on(run, "(preemption|node-loss) node-loss")
        assert digest(run, "model.safetensors", tmp_path) == undisturbed


def test_killed_pods_without_a_claim_resume_from_s3_with_the_same_weights(
    bed: Bed, namespace: str, tmp_path: Path, undisturbed: str, unhurried: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pod_store(bed, namespace, tmp_path / "buckets") as store,
        opened(harness_on(bed, namespace, tmp_path / "home")) as harness,
    ):
        for name, value in store.server.environ().items():
            monkeypatch.setenv(name, value)
        kubernetes = {"lost_after": LOST_SECONDS, "via": "job"}
        run = resumable(harness, "slow.py", base=unhurried, bucket="runs", kubernetes=kubernetes, **store.fields)
        until_saved(run, 1)
        name = pods(bed, namespace, run, 1)[1]["metadata"]["name"]
        bed.kubectl("delete", "pod", name, "-n", namespace, "--grace-period=0", "--force")
        until_saved(run, 2)
        kill_processes(bed, pods(bed, namespace, run, 2)[0])
        succeeded(run)
        # the API object may be deleted before or after its preemption notice
        went_on(run, "(preemption|node-loss) node-loss")
        bed.kubectl("delete", "jobs", "--all", "-n", namespace, "--wait=true", "--timeout=600s")
        seen = checkpoints.find_checkpoints(harness.engine, run.id)
        assert seen.folder == f"s3://runs/saved/{run.id}"
        checkpoints.export(seen, None, tmp_path / "model.safetensors", "model", NO_PLAN)
        assert hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest() == undisturbed


def kill_processes(bed: Bed, pod: dict[str, Any]) -> None:
    """Kills all processes of a pod with SIGKILL."""
    found = [
        folder
        for folder in host.cgroup_folders(bed.node(pod["spec"]["nodeName"]).cgroup)
        if pod["metadata"]["uid"] in str(folder)
    ]
    # All are stopped first: the worker must not report the end of its ranks before its own.
    for number, folder in itertools.product((signal.SIGSTOP, signal.SIGKILL), found):
        with contextlib.suppress(OSError):
            for line in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(line), number)


def test_a_drained_and_then_a_lost_node_resume_from_the_claim_with_the_same_weights(
    lone_bed: Bed, lone_namespace: str, tmp_path: Path, undisturbed: str, unhurried: Path
) -> None:
    with opened(harness_on(lone_bed, lone_namespace, tmp_path / "home")) as harness:
        run = resumable(harness, "slow.py", base=unhurried, **results(lone_bed, lost_after=LOST_SECONDS, via="jobset"))
        until_saved(run, 1)
        lone_bed.kubectl("drain", "node2", "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=600s")
        until_saved(run, 2)
        assert {pod["spec"]["nodeName"] for pod in pods(lone_bed, lone_namespace, run, 2)} == {"node1"}
        lone_bed.kubectl("uncordon", "node2")
        lone_bed.kill_node("node1")
        try:
            succeeded(run)
        finally:
            lone_bed.start_node("node1")
        went_on(run, "preemption node-loss")
        assert {pod["spec"]["nodeName"] for pod in pods(lone_bed, lone_namespace, run, 3)} == {"node2"}
        lost = told(run, "lost-node")[-1]
        assert "DeletionByTaintManager" in lost["why"]
        noticed_at = next(event.time for event in run.events if event.kind == "lost-node")
        assert lost["since"] < noticed_at, "the time until the loss is noticed counts as lost"
        assert restarts(run.events)[-1].seconds >= noticed_at - lost["since"] - 1
        assert any("its last lines are missing" in one["message"] for one in told(run, "warning"))
        assert run.status.supervision.condition is None
        assert digest(run, "model.safetensors", tmp_path) == undisturbed


def test_elastic_job_shrinks_without_its_node_and_grows_with_it(
    lone_bed: Bed, lone_namespace: str, tmp_path: Path
) -> None:
    it_shrinks_and_grows(lone_bed, lone_namespace, tmp_path, "job")


def it_shrinks_and_grows(bed: Bed, namespace: str, folder: Path, via: str) -> Run:
    """Each node takes all GPUs of a cluster node: there is capacity for two only while both cluster nodes exist."""
    fields = {"nodes": {"min": 1, "max": 2}, "checkpoint": {"every": "20 steps"}, "resources": {"gpus": 2}}
    kept = results(bed, lost_after=LOST_SECONDS, via=via)
    with opened(harness_on(bed, namespace, folder / "home")) as harness:
        run = harness.start("train.py", base=ELASTIC, procs_per_node=1, grace=10, restarts=0, **fields, **kept)
        until_saved(run, 1)
        assert [one["members"] for one in told(run, "attempt")] == [[0, 1]]
        [lost] = [pod["spec"]["nodeName"] for pod in pods(bed, namespace, run, 1)[1:]]
        bed.kill_node(lost)
        try:
            until_saved(run, 2)
            wait_for(lambda: probe_phases(bed, namespace, run) == ["Pending"], "a pod that asks for room", WAIT_SECONDS)
            assert [one["members"] for one in told(run, "attempt")] == [[0, 1], [0]]
        finally:
            bed.start_node(lost)
        until_saved(run, 3)
        assert [one["members"] for one in told(run, "attempt")] == [[0, 1], [0], [0, 1]]
        assert [one["reason"] for one in told(run, "attempt")] == ["first", "node-loss", "resize"]
        wait_for(lambda: not probe_phases(bed, namespace, run), "the pod that asks for room to go", WAIT_SECONDS)
        enough = folder / "enough"
        enough.touch()
        exec_copy.copy(str(enough), f"{run.id}:output/enough", harness.store, folder)
        succeeded(run)
        exec_copy.copy(f"{run.id}:output", str(folder / "output"), harness.store, folder)
        assert_exact(folder / "output", run)
        return run


def probe_phases(cluster: Cluster, namespace: str, run: Run) -> list[str]:
    """Returns the phases of the pods that probe capacity."""
    chosen = ("-n", namespace, "-l", f"windlass.dev/helper={run.id}-capacity")
    return cluster.kubectl("get", "pods", *chosen, "-o", "jsonpath={.items[*].status.phase}").split()


def assert_exact(output: Path, run: Run) -> None:
    """Asserts that each sample counts once in every epoch."""
    notes = notes_in(output.glob("**/seen-*.jsonl"))
    assert {note["attempt"] for note in notes} == {one.number for one in run.status.attempts}
    epochs = counted(notes)
    assert epochs
    for epoch, counter in epochs.items():
        assert set(counter.values()) == {1}, (epoch, counter)
        assert len(counter) == NUM_SAMPLES, (epoch, sorted(counter))


# -- many runs, and a cluster that does not answer --------------------------------------------------------------------


@pytest.mark.nightly
def test_twenty_parallel_runs_succeed(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    small = {"memory": "128MiB", "cpus": 0.1}
    with opened(
        harness_on(cluster, namespace, tmp_path / "home", resources=small, kubernetes={"via": "job"})
    ) as harness:
        runs = [harness.start("environment") for _ in range(NUM_RUNS)]
        for run in runs:
            succeeded(run)
            [env] = run.json_of_ranks().values()
            assert (env["WINDLASS_RUN_ID"], env["WINDLASS_WORLD_SIZE"], len(run.status.attempts)) == (run.id, "1", 1)


@pytest.mark.nightly
def test_an_api_server_that_is_killed_and_restarted_changes_nothing(
    lone_bed: Bed, lone_namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "counts.py").write_text(COUNTS)
    with opened(harness_on(lone_bed, lone_namespace, tmp_path / "home")) as harness:
        run = harness.start("counts.py", base=tmp_path / "code", restarts=3, **SHAPE)
        run.until(lambda run: len({line.rank for line in run.lines() if line.text.startswith("line 100 ")}) == 4)
        lone_bed.kill_api_server()
        time.sleep(OUTAGE_SECONDS)
        lone_bed.start_api_server()
        assert not run.status.phase.is_terminal
        let_go(lone_bed, lone_namespace, run)
        succeeded(run)
        for rank in range(4):
            expected = [f"line {number} of rank {rank}" for number in range(NUM_LINES)]
            assert [line.text for line in run.lines(ranks=[rank])] == expected
        assert [one.phase for one in run.status.attempts] == [Phase.SUCCEEDED]
        assert told(run, "lost-node") == told(run, "notice") == []
