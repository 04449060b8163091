"""Checkpoints on a real S3 server are complete or absent, verified, and resumed bit for bit, even after kills."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.helpers.machine import Machine, machine_in
from tests.helpers.until import until
from tests.servers.faulty import BUSY, PASS, Fault, FaultProxy, Request, fault_proxy
from tests.servers.s3 import S3Server, s3_server
from tests.train.checkpoint.saved import build, flip, make
from torch import nn

from windlass.actions.checkpoints import find_checkpoints
from windlass.errors import WindlassError
from windlass.train.checkpoint import Checkpoint, files
from windlass.train.checkpoint.faults import UnreadableCheckpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EXACT = Path(__file__).parents[1] / "scripts" / "exact.py"
LARGE = 6_000_000
"""Numbers in a tensor whose file is large enough for a multipart upload."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "buckets") as found:
        yield found


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.port) as found:
        yield found


@pytest.fixture
def bucket(server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Creates a bucket that this process and its children reach through the proxy."""
    name = f"b{secrets.token_hex(6)}"
    server.client().create_bucket(Bucket=name)
    for variable, value in server.environ(proxy.endpoint).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    yield name
    # The server may still be writing data sent by a killed writer.
    shutil.rmtree(server.folder / name, ignore_errors=True)


@pytest.fixture
def folder(bucket: str) -> str:
    return f"s3://{bucket}/saved"


def restored(folder: str) -> tuple[int, torch.Tensor]:
    """Returns the step and weights with which a new process would continue."""
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=folder, every=1)
    step = saved.restore()
    saved.close()
    return step, model.weight.detach()


def test_checkpoint_in_s3_is_restored_and_only_the_requested_number_is_kept(
    folder: str, bucket: str, server: S3Server
) -> None:
    weights = make(folder, 5, keep=2)
    step, found = restored(folder)
    assert (step, torch.equal(found, weights[-1])) == (5, True)
    assert [one.step for one in files.list_checkpoints(folder)] == [5, 4]
    assert len(list((server.folder / bucket / "saved").iterdir())) == 2


def test_damaged_checkpoint_in_s3_is_skipped_and_set_aside(
    folder: str, bucket: str, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = make(folder, 3)
    newest = files.list_checkpoints(folder)[0]
    flip(server.folder / bucket / "saved" / newest.name / "rank-0.safetensors")
    monkeypatch.setenv("WINDLASS_RUN_ID", newest.run_id)
    model, optimizer = build()
    saved = Checkpoint(model=model, optimizer=optimizer, folder=folder, every=1, when_busy="wait")
    assert (saved.restore(), torch.equal(model.weight, weights[1])) == (2, True)
    saved.step()  # this step sets the damaged checkpoint aside
    saved.close()
    aside = next(one for one in files.list_checkpoints(folder) if one.is_set_aside)
    assert aside.name == f"{newest.name}.damaged"
    [problem] = files.examine(aside)
    assert "is damaged" in str(problem)


@pytest.mark.parametrize("file", ["rank-0.safetensors", files.MANIFEST])
def test_byte_changed_in_transit_is_not_damage(folder: str, proxy: FaultProxy, file: str) -> None:
    weights = make(folder, 3)
    newest = files.list_checkpoints(folder)[0].name
    left = 1

    def flip_once(request: Request) -> Fault:
        nonlocal left
        if request.method != "GET" or not request.path.endswith(f"{newest}/{file}") or not left:
            return PASS
        left -= 1
        return Fault(flips_answer_at=40)

    proxy.fault = flip_once
    step, found = restored(folder)
    assert (left, step, torch.equal(found, weights[2])) == (0, 3, True)
    assert not any(one.is_set_aside for one in files.list_checkpoints(folder))


@pytest.mark.parametrize("fault", [BUSY, Fault(cut_after=100), Fault(loses_answer=True)], ids=["503", "cut", "silent"])
def test_failed_requests_of_the_store_are_retried(folder: str, proxy: FaultProxy, fault: Fault) -> None:
    numbers = itertools.count(1)

    def every_third(_request: Request) -> Fault:
        return PASS if next(numbers) % 3 else fault

    proxy.fault = every_third
    weights = make(folder, 3)
    step, found = restored(folder)
    assert (step, torch.equal(found, weights[-1])) == (3, True)


def large() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(LARGE // 1000, 1000, bias=False)


def test_writer_killed_during_an_upload_leaves_no_checkpoint(folder: str, proxy: FaultProxy, tmp_path: Path) -> None:
    script = tmp_path / "save.py"
    script.write_text(
        "import sys, torch\n"
        "from torch import nn\n"
        "from windlass.train.checkpoint import Checkpoint\n"
        f"model = nn.Linear({LARGE // 1000}, 1000, bias=False)\n"
        "saved = Checkpoint(model=model, folder=sys.argv[1], every=1, when_busy='wait')\n"
        "print(saved.restore(), flush=True)\n"
        "saved.step()\n"
        "saved.close()\n"
    )
    held, release = threading.Event(), threading.Event()

    def hold(num_bytes: int) -> None:
        if num_bytes > 2 * LARGE and not release.is_set():
            held.set()
            release.wait(240)

    proxy.passed = hold
    with subprocess.Popen([sys.executable, str(script), folder], start_new_session=True) as training:
        assert held.wait(240)
        os.killpg(training.pid, signal.SIGKILL)
        release.set()
    until(lambda: proxy.num_open == 0, "the connections of the writer stay open")
    assert [one for one in files.list_checkpoints(folder) if one.complete] == []
    done = subprocess.run([sys.executable, str(script), folder], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "0"
    [whole] = [one for one in files.list_checkpoints(folder) if one.complete]
    assert (whole.step, files.examine(whole)) == (1, [])


def test_missing_bucket_is_named(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_CHECKPOINT_RETRY_SECONDS", "0")
    with pytest.raises((UnreadableCheckpoint, FileNotFoundError), match="there is no bucket nowhere"):
        restored("s3://nowhere/saved")
    engine: Any = SimpleNamespace(status=lambda _: None, checkpoint_dir=lambda _: "s3://nowhere/saved", is_remote=False)
    with pytest.raises(WindlassError, match="there is no bucket nowhere"):
        find_checkpoints(engine, "r-1")


def test_wrong_keys_are_reported(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_CHECKPOINT_RETRY_SECONDS", "0")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(UnreadableCheckpoint, match="403"):
        restored(folder)


def test_ranks_without_torch_distributed_are_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="use torch"):
        restored(folder)


@pytest.fixture
def machine(bucket: str, tmp_path: Path) -> Iterator[Machine]:
    with machine_in(tmp_path) as made:
        yield made
        made.windlass("warm", "stop")


def test_killed_run_resumes_from_s3_with_the_same_weights(machine: Machine, folder: str, tmp_path: Path) -> None:
    digests = []
    for kills in ([], ["12:1", "30:0"]):
        place = tmp_path / f"kills-{len(kills)}"
        place.mkdir()
        # With --patient, a kill waits for the checkpoint before it, however slow the upload is.
        words = [str(EXACT), str(place), "--patient", *(["--kill", *kills] if kills else [])]
        job = {
            "name": "exact",
            "run": " ".join(words),
            "procs_per_node": 2,
            "python": sys.executable,
            "restarts": 5,
            "checkpoint": {"folder": f"{folder}/"},
        }
        done = machine.windlass("run", str(machine.write("job.yaml", json.dumps(job))))
        assert done.returncode == 0, done.stdout + done.stderr
        digests.append((place / "digest").read_text())
        run = str(machine.status()["id"])
        listed = files.list_checkpoints(f"{folder}/{run}")
        assert {one.run_id for one in listed} == {run}
    assert digests[0] == digests[1]
    restored = [event["step"] for event in machine.events() if event.get("action") == "restored"]
    assert restored == [7, 28]

    shown = json.loads(machine.windlass("checkpoints", run, "-o", "json").stdout)
    assert shown["folder"] == f"{folder}/{run}"
    assert [one["step"] for one in shown["checkpoints"]] == [one.step for one in listed]
    assert machine.windlass("checkpoints", run, "verify").returncode == 0
    exported = machine.windlass("checkpoints", run, "export", str(tmp_path / "model.safetensors"))
    assert exported.returncode == 0, exported.stderr
    refused = machine.windlass("cp", f"{run}:checkpoints", str(tmp_path / "copies"))
    assert (refused.returncode, f"windlass data copy {folder}/{run}" in refused.stderr) == (2, True)
    machine.windlass("checkpoints", run, "prune", "--keep", "1")
    # A checkpoint that the killed rank had partly removed remains for some minutes, since its save may still be
    # running.
    assert [one.step for one in files.list_checkpoints(f"{folder}/{run}") if one.complete] == [listed[0].step]
    assert machine.windlass("rm", run).returncode == 0
    assert files.list_checkpoints(f"{folder}/{run}"), "what is in a store stays"
