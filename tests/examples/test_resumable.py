"""Example 08 is killed and stopped, and reaches the weights and the accuracy of a run that was left alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.machine import Machine, kill
from tests.helpers.until import until

from windlass.runs.events import Event
from windlass.runs.store import Store

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "08-resumable-digits"


def accuracy(said: str) -> float:
    found = re.search(r"test accuracy ([\d.]+) %", said)
    assert found is not None, said
    return float(found[1])


def model(machine: Machine) -> bytes:
    return (Path(machine.status()["output_dir"]) / "model.safetensors").read_bytes()


def of_checkpoints(store: Store, run: str, action: str) -> list[Event]:
    return [e for e in store.events(run) if e.kind == "checkpoint" and e.data["action"] == action]


def ranks(store: Store, run: str) -> list[int]:
    """Pids of the ranks of the newest attempt."""
    events = store.events(run)
    begun = max(event.seq for event in events if event.kind == "attempt")
    return [event.data["pid"] for event in events if event.kind == "rank" and event.seq > begun and "pid" in event.data]


def awaits(pid: int, number: signal.Signals) -> bool:
    """Whether a process that is stopped has been sent this signal."""
    [pending] = re.findall(r"^ShdPnd:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(pending, 16) >> number - 1 & 1)


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.nightly  # CI stops this example on SageMaker's hosts, and kills it on a cluster
def test_kills_and_a_stop_leave_the_model_as_it_would_have_been(machine: Machine) -> None:
    # Longer than the example: each kill and stop must come before the end, also where this process waits for a core.
    words = ["run", str(EXAMPLE / "job.yaml"), "--set", "run=train.py --epochs 40"]
    undisturbed = machine.windlass(*words)
    assert undisturbed.returncode == 0, undisturbed.stdout + undisturbed.stderr
    assert accuracy(undisturbed.stdout) >= 97
    expected = model(machine)

    run = json.loads(machine.windlass(*words, "--detach", "-o", "json").stdout)["id"]
    with Store(machine.home) as store:  # no command is as fast as the training
        until(lambda: of_checkpoints(store, run, "saved"), "no checkpoint was saved")
        assert kill(ranks(store, run)[0], signal.SIGKILL)
        until(lambda: of_checkpoints(store, run, "restored"), "nothing was restored")
        held = [pid for pid in ranks(store, run) if kill(pid, signal.SIGSTOP)]
        assert held, "it is over already"
        stop = machine.start("stop", run)
        until(lambda: all(awaits(pid, signal.SIGTERM) for pid in held), "the ranks were not stopped")
        for pid in held:
            kill(pid, signal.SIGCONT)
        stop.communicate(timeout=200)
        assert stop.returncode == 0
    resumed = machine.windlass("resume", run)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert len(machine.status(run)["attempts"]) == 3
    assert accuracy(resumed.stdout) == accuracy(undisturbed.stdout)
    assert model(machine) == expected


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.nightly
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
