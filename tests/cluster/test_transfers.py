"""Data sets are staged in a claim once for all runs, and outputs are uploaded from one, in spite of faults."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call, home, windlass
from tests.cli.test_json import hold
from tests.cluster.bed.cluster import Bed
from tests.cluster.harnesses import harness_on, opened, plan_on, set_up, target_on, way_on
from tests.cluster.stores import BUCKET, SECRET, PodStore, pod_store
from tests.cluster.test_exec_copy import write_targets
from tests.engines.harness import Harness, Run
from tests.helpers.until import until
from tests.servers.http_files import file_host

from windlass.diagnose.diagnose import diagnose
from windlass.engines.kubernetes.objects.manifests import MAX_PIECES, PIECE_BYTES
from windlass.runs.phase import Phase

__all__ = ["home", "windlass"]

pytestmark = pytest.mark.timeout(900)
PATIENCE_SECONDS = 300.0
LARGE = 40 << 20
FILES = {
    **{f"train/{at:02}.txt": bytes([at]) * 2000 for at in range(40)},
    "weights.bin": bytes(range(256)) * (LARGE >> 8),
}
SIZE = sum(map(len, FILES.values()))
SUM = hashlib.sha256(b"".join(FILES[name] for name in sorted(FILES))).hexdigest()
READS = """
import hashlib, os, pathlib
root = pathlib.Path(os.environ["WINDLASS_DATA_DIGITS"])
found, whole = sorted(path for path in root.rglob("*") if path.is_file()), hashlib.sha256()
for path in found:
    whole.update(path.read_bytes())
print("read", len(found), whole.hexdigest(), flush=True)
out = pathlib.Path(os.environ["WINDLASS_OUTPUT_DIR"])
out.mkdir(parents=True, exist_ok=True)
(out / "model.txt").write_text(whole.hexdigest())
"""
STORY = ("data", "attempt", "ending", "outputs", "end")
"""Order of event kinds: the data set is staged before the first attempt, and outputs are uploaded before the end."""
DATA = {"data": [{"name": "digits", "source": f"s3://{BUCKET}/digits"}]}
KUBERNETES = {"data": {"size": "1GiB", "storage_class": "bed"}, "via": "job"}
RESULTS = {"size": "1GiB", "storage_class": "bed"}


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    """Job of one rank, which reads the whole data set."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "reads.py").write_text(READS)
    return {"base": tmp_path / "code", "launcher": "plain", **DATA}


@pytest.fixture
def store(bed: Bed, namespace: str, tmp_path: Path) -> Iterator[PodStore]:
    with pod_store(bed, namespace, tmp_path / "buckets") as found:
        fill(found)
        yield found


def fill(store: PodStore) -> None:
    client = store.server.client()
    for name, data in FILES.items():
        client.put_object(Bucket=BUCKET, Key=f"digits/{name}", Body=data)


def fetched(store: PodStore) -> int:
    """Returns the bytes of objects that the pods have received so far."""
    return sum(one.down for one in store.proxy.data if one.method == "GET")


def succeeded(run: Run) -> None:
    status = run.wait()
    assert status.phase is Phase.SUCCEEDED, f"{status}\n{run.text()}"


def staged(run: Run) -> dict[str, Any]:
    [found] = run.status.files.data
    return found.to_json()


def test_data_set_is_staged_once_for_two_parallel_runs_and_outputs_survive_claim_and_pods(
    bed: Bed,
    namespace: str,
    tmp_path: Path,
    job: dict[str, Any],
    store: PodStore,
    windlass: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_up(bed, namespace)
    write_targets(bed, namespace, monkeypatch, bed.context)
    fields = {**job, **store.fields, "outputs": f"s3://{BUCKET}/out", "kubernetes": {**KUBERNETES, "results": RESULTS}}
    with opened(harness_on(bed, namespace, tmp_path / "home")) as harness:
        runs = [harness.start("reads.py", **fields) for _ in range(2)]
        for run in runs:
            succeeded(run)
            assert f"read {len(FILES)} {SUM}\n" in run.text()
            assert [event.kind for event in run.events if event.kind in STORY] == list(STORY)
        first, second = (staged(run) for run in runs)
        assert first["digest"] == second["digest"]
        assert (first["files"], first["bytes"]) == (len(FILES), SIZE)
        assert {first["moved"], second["moved"]} == {SIZE, 0}, "one has waited for the other"
        assert fetched(store) <= 1.02 * SIZE
        assert "windlass-data" in claims_of(bed, namespace)
        [one] = windlass("data", "ls", "--on", "bed", "--claim", "windlass-data", "-o", "json").json["sets"]
        assert (one["digest"], one["sources"]) == (first["digest"], [f"s3://{BUCKET}/digits/"])
        remove = ("data", "rm", f"s3://{BUCKET}/digits", "--on", "bed", "--claim", "windlass-data")
        refused = windlass(*remove)
        assert (refused.code, f"is read by {runs[0].id}, {runs[1].id}" in refused.err) == (1, True), refused.err
        for run in runs:
            harness.engine.delete(run.id)
        harness.runs.clear()
        assert windlass(*remove).code == 0
        assert windlass("data", "ls", "--on", "bed", "--claim", "windlass-data", "-o", "json").json["sets"] == []
        until(lambda: not bed.kubectl("get", "pods", "-n", namespace, "-o", "name"), seconds=PATIENCE_SECONDS)
        for run in runs:
            answer = store.server.client().get_object(Bucket=BUCKET, Key=f"out/{run.id}/model.txt")
            assert answer["Body"].read().decode() == SUM
        # A claim is protected until the cluster has observed that no pod uses it.
        until(lambda: claims_of(bed, namespace) == ["windlass-data"], lambda: claims_of(bed, namespace))


def test_files_from_a_servers_list_are_staged_by_a_pod(
    bed: Bed, namespace: str, tmp_path: Path, job: dict[str, Any]
) -> None:
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in FILES.items()]
    files = {"SHA256SUMS": "".join(lines).encode(), **FILES}
    with (
        file_host(files, name=bed.layout.outside) as host,
        opened(harness_on(bed, namespace, tmp_path / "home")) as harness,
    ):
        data = [{"name": "digits", "source": f"{host.address}/SHA256SUMS"}]
        run = harness.start("reads.py", **{**job, "data": data, "kubernetes": KUBERNETES})
        succeeded(run)
        assert f"read {len(FILES)} {SUM}\n" in run.text()
        assert (staged(run)["files"], staged(run)["moved"]) == (len(FILES), SIZE)


def test_node_lost_during_staging_repeats_no_transfer(
    lone_bed: Bed, lone_namespace: str, tmp_path: Path, job: dict[str, Any]
) -> None:
    gate, is_half = threading.Event(), threading.Event()

    def hold(num_bytes: int) -> None:
        if num_bytes > SIZE / 2:
            is_half.set()
            gate.wait(PATIENCE_SECONDS)

    with (
        pod_store(lone_bed, lone_namespace, tmp_path / "buckets") as store,
        opened(harness_on(lone_bed, lone_namespace, tmp_path / "home")) as harness,
    ):
        fill(store)
        store.proxy.passed = hold
        run = harness.start("reads.py", **job, **store.fields, kubernetes=KUBERNETES)
        assert is_half.wait(PATIENCE_SECONDS), run.status
        run.until(lambda run: run.status.phase is Phase.STAGING)
        [pod] = data_pods(lone_bed, lone_namespace)
        lost = pod["spec"]["nodeName"]
        lone_bed.kill_node(lost)
        store.proxy.passed = lambda _num_bytes: None
        gate.set()
        try:
            succeeded(run)
        finally:
            lone_bed.start_node(lost)
        assert f"read {len(FILES)} {SUM}\n" in run.text()
        assert fetched(store) <= 1.5 * SIZE, "what was on its way when the node was lost comes again"


def claims_of(bed: Bed, namespace: str) -> list[str]:
    return bed.kubectl("get", "pvc", "-n", namespace, "-o", "jsonpath={.items[*].metadata.name}").split()


def data_pods(bed: Bed, namespace: str) -> list[dict[str, Any]]:
    selector = "app.kubernetes.io/component=transfer"
    found = bed.kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", "json")
    return list(json.loads(found)["items"])


def test_failed_staging_starts_no_rank_and_is_explained(
    bed: Bed, namespace: str, tmp_path: Path, job: dict[str, Any], store: PodStore
) -> None:
    missing = {**job, "data": [{"name": "digits", "source": "s3://no-such-bucket/digits"}]}
    with opened(harness_on(bed, namespace, tmp_path / "home")) as harness:
        run = harness.start("reads.py", **missing, **store.fields, kubernetes=KUBERNETES)
        status = run.wait()
        assert (status.phase, status.attempts) == (Phase.FAILED, ())
        found = diagnose(harness.engine.observe(run.id))
        assert found.verdict.code == "data-not-staged"
        assert "there is no bucket no-such-bucket" in found.verdict.summary
        pods = json.loads(bed.kubectl("get", "pods", "-n", namespace, "-l", "windlass.dev/attempt", "-o", "json"))
        assert pods["items"] == []


def test_data_set_staged_in_advance_is_not_fetched_again(
    bed: Bed,
    namespace: str,
    tmp_path: Path,
    job: dict[str, Any],
    store: PodStore,
    windlass: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_targets(bed, namespace, monkeypatch, bed.context)
    targets = json.loads(Path("targets.yaml").read_text())
    targets["bed"] |= {"data": KUBERNETES["data"], "env": store.fields["env"]}
    Path("targets.yaml").write_text(json.dumps(targets))
    stage = ("data", "stage", f"s3://{BUCKET}/digits", "--on", "bed", "-o", "json")
    refused = windlass(*stage)
    assert (refused.code, "AWS_ACCESS_KEY_ID" in refused.err) == (1, True), refused.err
    done = windlass(*stage, "--secret", SECRET)
    assert done.code == 0, done.err
    hold("data-stage", done.json)
    assert (done.json["files"], done.json["fetched_bytes"]) == (len(FILES), SIZE)
    again = windlass(*stage, "--secret", SECRET).json
    assert (again["digest"], again["fetched_bytes"]) == (done.json["digest"], 0)
    [one] = windlass("data", "ls", "--on", "bed", "-o", "json").json["sets"]
    assert one["digest"] == done.json["digest"]
    assert bed.kubectl("get", "jobs,configmaps", "-n", namespace, "-l", "windlass.dev/helper", "-o", "name") == ""
    with opened(harness_on(bed, namespace, tmp_path / "runs")) as harness:
        run = harness.start("reads.py", **job, **store.fields, kubernetes=KUBERNETES)
        succeeded(run)
        assert (staged(run)["digest"], staged(run)["moved"]) == (done.json["digest"], 0)
    assert fetched(store) <= 1.02 * SIZE


SAVES = """
import os, pathlib, time
from windlass.train.report import Reporter
out = pathlib.Path(os.environ["WINDLASS_OUTPUT_DIR"])
out.mkdir(parents=True, exist_ok=True)
(out / "first.txt").write_text("first")
Reporter(os.environ).checkpoint({"action": "saved", "step": 5, "name": "step-5"})
while not (out / "go").exists():
    time.sleep(0.05)
(out / "last.txt").write_text("last")
"""


def test_outputs_are_uploaded_at_a_checkpoint_while_the_pods_train(
    bed: Bed, namespace: str, tmp_path: Path, job: dict[str, Any], store: PodStore
) -> None:
    set_up(bed, namespace)
    (job["base"] / "saves.py").write_text(SAVES)
    fields = {"base": job["base"], "launcher": "plain", "outputs": {"to": f"s3://{BUCKET}/out", "at": "checkpoint"}}
    with opened(harness_on(bed, namespace, tmp_path / "home")) as harness:
        run = harness.start("saves.py", **fields, **store.fields, kubernetes={"results": RESULTS, "via": "job"})
        run.until(lambda run: run.status.files.outputs is not None, seconds=PATIENCE_SECONDS)
        assert run.status.phase is Phase.TRAINING
        client = store.server.client()
        assert client.get_object(Bucket=BUCKET, Key=f"out/{run.id}/first.txt")["Body"].read() == b"first"
        (tmp_path / "go").touch()
        harness.engine.put(run.id, 0, tmp_path / "go", "output/go", lambda _sent: None)
        succeeded(run)
        assert client.get_object(Bucket=BUCKET, Key=f"out/{run.id}/last.txt")["Body"].read() == b"last"
        assert [event.data for event in run.events if event.kind == "warning"] == []
        jobs = bed.kubectl("get", "jobs", "-n", namespace, "-l", "app.kubernetes.io/component=transfer", "-o", "name")
        assert jobs == "", "neither that of the checkpoint nor that of the end is left"


WAITS = """
import time
print("trains", flush=True)
time.sleep(600)
"""


def test_a_run_whose_store_refuses_its_outputs_ends_while_it_trains_and_is_explained(
    bed: Bed, namespace: str, tmp_path: Path, job: dict[str, Any], store: PodStore
) -> None:
    set_up(bed, namespace)
    (job["base"] / "waits.py").write_text(WAITS)
    fields = {"base": job["base"], "launcher": "plain", "outputs": "s3://no-such-bucket/out", **store.fields}
    with opened(harness_on(bed, namespace, tmp_path / "home")) as harness:
        run = harness.start("waits.py", **fields, kubernetes={"results": RESULTS, "via": "job"}, restarts=3)
        status = run.wait()
        assert (status.phase, [(one.phase, one.reason) for one in status.attempts]) == (
            Phase.FAILED,
            [(Phase.FAILED, "upload")],
        )
        found = diagnose(harness.engine.observe(run.id)).verdict
        assert (found.code, f"windlass resume {run.id}" in found.fix) == ("outputs-refused", True)
        assert "there is no bucket no-such-bucket" in found.summary
        assert bed.kubectl("get", "jobs", "-n", namespace, "-l", "app.kubernetes.io/component=transfer") == ""


HOLDS = """
import hashlib, pathlib
print("holds", hashlib.sha256(pathlib.Path("weights.bin").read_bytes()).hexdigest(), flush=True)
"""


def test_code_too_large_for_objects_reaches_the_pods_through_the_store(
    bed: Bed, namespace: str, tmp_path: Path, store: PodStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in store.server.environ().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "holds").mkdir()
    (tmp_path / "holds" / "holds.py").write_text(HOLDS)
    weights = os.urandom(MAX_PIECES * PIECE_BYTES)
    (tmp_path / "holds" / "weights.bin").write_bytes(weights)
    target = target_on(bed, namespace).model_copy(update={"storage": f"s3://{BUCKET}/windlass"})
    way = way_on(bed, namespace, "kubernetes", {})
    stored = dataclasses.replace(way, plan=functools.partial(plan_on, target, bed.kubeconfig))
    with opened(Harness(stored, tmp_path / "home")) as harness:
        for _ in range(2):
            run = harness.start("holds.py", base=tmp_path / "holds", launcher="plain", nodes=2, **store.fields)
            succeeded(run)
            assert run.text().count(f"holds {hashlib.sha256(weights).hexdigest()}\n") == 2
    listed = store.server.client().list_objects_v2(Bucket=BUCKET, Prefix="windlass/code/")["Contents"]
    assert len(listed) == 1, "the second run has the same code"
