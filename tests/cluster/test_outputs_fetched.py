"""Outputs of a run without a claim are fetched from each node, wherever its supervisor runs and however it ends."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.harnesses import set_up
from tests.cluster.test_laptop_off import WAIT_SECONDS, Machines, end_of, machines, pods, settled, switch_off
from tests.helpers.machine import Machine

from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.running import collection
from windlass.worker import pod_reuse

__all__ = ["machines"]

pytestmark = pytest.mark.timeout(900)

SCRIPT = """
import os, pathlib, sys, time
rank, out = os.environ["WINDLASS_RANK"], pathlib.Path(os.environ["WINDLASS_OUTPUT_DIR"])
if rank == "1":
    time.sleep(float(sys.argv[2]))
(out / "part").mkdir()
(out / "part" / f"{rank}.bin").write_bytes(bytes([int(rank)]) * 300_000)
(out / "model.txt").write_text(f"of rank {rank}")
(out / "same.txt").write_text("same")
pathlib.Path("own").mkdir()
pathlib.Path("own", f"{rank}.txt").write_text("in the code folder")
print("saved by", rank, flush=True)
if sys.argv[1] == "fails" and rank == "0":
    raise RuntimeError("no such file: weights.bin")
while sys.argv[1] == "stops":
    time.sleep(1)
"""


@pytest.fixture
def inside(cluster: Cluster, namespace: str) -> str:
    """Namespace with supervisors in the cluster."""
    set_up(cluster, namespace)
    return namespace


def job(machine: Machine, how: str, seconds: float = 0.0, **fields: Any) -> None:
    machine.write("code/script.py", SCRIPT)
    made = {
        "name": how,
        "run": f"script.py {how} {seconds}",
        "code": "code",
        "launcher": "plain",
        "grace": "2s",
        "nodes": 2,
        "outputs": {"collect": ["own/**"]},
        **fields,
    }
    machine.write("job.yaml", json.dumps(made))


def run(machine: Machine, *words: str) -> tuple[str, int, str]:
    """Follows a run to its end; returns its id, the exit code and the output of the command."""
    done = machine.windlass("run", "--on", "bed", *words)
    [run_id] = [path.name for path in (machine.home / "runs").iterdir()]
    return run_id, done.returncode, done.stdout + done.stderr


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


BOTH = {
    "part/0.bin": b"\0" * 300_000,
    "part/1.bin": b"\1" * 300_000,
    "model.txt": b"of rank 0",
    "same.txt": b"same",
    "own/0.txt": b"in the code folder",
    "own/1.txt": b"in the code folder",
}


def require_home(machine: Machine, run_id: str, said: str) -> None:
    """Requires that all outputs are local; of the file that both nodes wrote, the first node's."""
    folder = machine.home / "runs" / run_id / "output"
    assert files(folder) == BOTH, said
    assert {"[0] saved by 0", "[1] saved by 1"} <= set(said.splitlines()), "`run` shows what the ranks write"
    assert f"runs/{run_id}/output (4 entries)" in said
    status = machine.status(run_id)
    assert status["output_dir"] == str(folder)
    assert (status["collected"]["files"], list(status["collected"]["nodes"])) == (6, [0, 1])
    warned = [event["message"] for event in machine.events(run_id) if event["kind"] == "warning"]
    [conflict] = [message for message in warned if "the first node are kept" in message]
    assert conflict.endswith("model.txt of node 1")
    assert not any("lost" in message for message in warned), warned


def require_outputs_are_fetched(machine: Machine) -> str:
    """Follows a run to its end; returns its id."""
    job(machine, "succeeds", 3.0)
    run_id, code, said = run(machine)
    assert code == 0, said
    require_home(machine, run_id, said)
    return run_id


def require_copied(machine: Machine, run_id: str, name: str) -> None:
    done = machine.windlass("cp", f"{run_id}:output", name)
    assert done.returncode == 0, done.stderr
    assert files(machine.folder / name) == BOTH


def delete_pods(cluster: Cluster, namespace: str, run_id: str) -> None:
    cluster.kubectl("delete", "job,jobset,pod", "-n", namespace, "-l", f"{layout.RUN_LABEL}={run_id}", "--wait=true")


def test_outputs_of_a_followed_run_are_local_at_its_end(cluster: Cluster, inside: str, machines: Machines) -> None:
    machine = machines(cluster, inside, "first")
    run_id = require_outputs_are_fetched(machine)
    end_of(cluster, inside, run_id)  # the supervisor ends, since the outputs are fetched
    settled(cluster, inside, run_id)
    assert {pod["status"]["phase"] for pod in pods(cluster, inside, run_id)} == {"Succeeded"}
    delete_pods(cluster, inside, run_id)
    require_copied(machine, run_id, "got")
    assert machine.windlass("rm", run_id).returncode == 0
    assert not (machine.home / "runs" / run_id).exists()


def test_outputs_are_kept_until_one_machine_fetches_them(cluster: Cluster, inside: str, machines: Machines) -> None:
    first = machines(cluster, inside, "first")
    job(first, "fails")
    done = first.windlass("run", "--on", "bed", "-d", "-q")
    run_id = done.stdout.strip()
    assert done.returncode == 0, done.stderr
    switch_off(first)
    head = ("get", "configmap", layout.record_name(run_id), "-n", inside, "-o", "json")

    def ended() -> bool:
        notes = json.loads(cluster.kubectl(*head))["metadata"].get("annotations", {})
        return bool(json.loads(notes.get(layout.STATUS_ANNOTATION, "{}")).get("phase") == "failed")

    wait_for(ended, f"the end of {run_id}", WAIT_SECONDS)
    settled(cluster, inside, run_id)
    second, third = (machines(cluster, inside, name) for name in ("second", "third"))
    shown = second.windlass("status", run_id, "--on", "bed")
    assert shown.returncode == 0, shown.stderr
    came = files(second.home / "runs" / run_id / "output")
    assert came.get("part/0.bin") == BOTH["part/0.bin"], second.windlass("events", run_id).stdout
    end_of(cluster, inside, run_id)  # after the outputs are fetched
    second, third = third, second
    assert second.windlass("status", run_id, "--on", "bed").returncode == 0
    refused = second.windlass("cp", f"{run_id}:output", "got")
    assert refused.returncode == 2
    assert f"the outputs of {run_id} were fetched by" in refused.stderr
    assert not (second.folder / "got").exists()


def test_supervisor_on_the_users_machine_fetches_outputs(cluster: Cluster, namespace: str, machines: Machines) -> None:
    machine = machines(cluster, namespace, "first")
    run_id = require_outputs_are_fetched(machine)
    settled(cluster, namespace, run_id)
    delete_pods(cluster, namespace, run_id)
    require_copied(machine, run_id, "got")


@pytest.mark.nightly
def test_api_server_unreachable_at_the_end_of_a_run_loses_no_outputs(
    lone_bed: Bed, lone_namespace: str, machines: Machines
) -> None:
    set_up(lone_bed, lone_namespace)
    machine = machines(lone_bed, lone_namespace, "first")
    job(machine, "succeeds", 20.0)
    done = machine.windlass("run", "--on", "bed", "-d", "-q")
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.strip()

    def has_ended() -> bool:
        return [rank["exit_code"] for rank in machine.status(run_id)["ranks"]][:1] == [0]

    wait_for(has_ended, "the end of the first rank", WAIT_SECONDS)
    lone_bed.kill_api_server()
    try:
        since = time.monotonic()
        away_seconds = 20.0 + pod_reuse.OUTPUTS_SECONDS + collection.UNANSWERED_SECONDS
        wait_for(lambda: time.monotonic() - since > away_seconds, "pods that are not held to end", WAIT_SECONDS)
    finally:
        lone_bed.start_api_server()
    assert machine.ended(run_id)["phase"] == "succeeded"
    assert files(machine.home / "runs" / run_id / "output") == BOTH, machine.windlass("events", run_id).stdout


@pytest.mark.parametrize("is_inside", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_outputs_of_a_stopped_run_are_fetched_and_too_large_ones_are_not(
    cluster: Cluster, namespace: str, machines: Machines, is_inside: bool
) -> None:
    if is_inside:
        set_up(cluster, namespace)
    machine = machines(cluster, namespace, "first")
    job(machine, "stops", nodes=1)
    done = machine.windlass("run", "--on", "bed", "-d", "-q")
    assert done.returncode == 0, done.stderr
    stopped = done.stdout.strip()
    seen = ("exec", stopped, "--", "cat", f"{layout.OUTPUT}/same.txt")
    wait_for(lambda: machine.windlass(*seen).stdout == "same", "the outputs", WAIT_SECONDS)
    # A stop before the supervisor runs would delete the pods with their outputs.
    wait_for(lambda: machine.status(stopped)["ranks"][0]["pid"], "its supervisor", WAIT_SECONDS)
    assert machine.windlass("stop", stopped).returncode == 0
    status = machine.ended(stopped)
    assert status["phase"] == "stopped"
    assert files(machine.home / "runs" / stopped / "output")["model.txt"] == b"of rank 0"
    job(machine, "succeeds", nodes=1, kubernetes={"outputs_max": "100KiB"})
    done = machine.windlass("run", "--on", "bed", "-q")
    assert done.returncode == 0, done.stderr
    [large] = [path.name for path in (machine.home / "runs").iterdir() if path.name != stopped]
    assert not (machine.home / "runs" / large / "output").exists()
    [warning] = [event["message"] for event in machine.events(large) if event["kind"] == "warning"]
    assert warning.startswith("node 0: its outputs are deleted with its pod: 300,031 bytes")
    assert "kubernetes.outputs_max" in warning
