"""Example 08 is killed and stopped, and reaches the weights and the accuracy of a run that was left alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.faults.machine import Machine, kill, until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "08-resumable-digits"


def accuracy(said: str) -> float:
    found = re.search(r"test accuracy ([\d.]+) %", said)
    assert found is not None, said
    return float(found[1])


def model(machine: Machine) -> bytes:
    return (Path(machine.status()["output_dir"]) / "model.safetensors").read_bytes()


def test_kills_and_a_stop_leave_the_model_as_it_would_have_been(machine: Machine) -> None:
    job = str(EXAMPLE / "job.yaml")
    undisturbed = machine.windlass("run", job)
    assert undisturbed.returncode == 0, undisturbed.stdout + undisturbed.stderr
    assert accuracy(undisturbed.stdout) >= 97
    expected = model(machine)

    run = json.loads(machine.windlass("run", job, "--detach", "-o", "json").stdout)["id"]

    def saved(attempt: int) -> bool:
        events = machine.events(run)
        return [e for e in events if e["kind"] == "checkpoint" and f"-a{attempt}" in e.get("name", "")] != []

    until(lambda: saved(1), "no checkpoint was saved")
    victim = next(event["pid"] for event in machine.events(run) if event["kind"] == "rank")
    assert kill(victim, signal.SIGKILL)
    until(lambda: len(machine.status(run)["attempts"]) == 2, "not restarted")
    until(lambda: any(event.get("action") == "restored" for event in machine.events(run)), "nothing was restored")
    assert machine.windlass("stop", run).returncode == 0
    resumed = machine.windlass("resume", run)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert len(machine.status(run)["attempts"]) == 3
    assert accuracy(resumed.stdout) == accuracy(undisturbed.stdout)
    assert model(machine) == expected


def test_it_goes_on_without_windlass_too(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    command = [sys.executable, str(EXAMPLE / "train.py"), "--epochs"]
    said = [
        subprocess.run([*command, epochs], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True).stdout
        for epochs in ("4", "20")
    ]
    assert "checkpoint: step 180 restored" in said[1]
    assert accuracy(said[1]) >= 97
    assert (tmp_path / "outputs" / "model.safetensors").stat().st_size > 10_000
