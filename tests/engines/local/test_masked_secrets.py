"""Secrets of a job that ranks print are masked in all stored and displayed output of the run."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from tests.helpers.machine import Machine

VALUE = "hf_0123456789-of-no-log"
SCRIPT = """
import os, sys, time
from windlass.train.report import report
token = os.environ["HF_TOKEN"]
sys.stdout.write(f"begins with {token[:9]}")
sys.stdout.flush()
time.sleep(0.3)  # so that it is another read
print(token[9:] + " ends")
report(step=1, message=f"logged in with {token}")
raise ValueError(f"{token} is refused")
"""


@pytest.mark.slow
def test_printed_secret_is_masked_in_logs_events_verdict_and_files(machine: Machine) -> None:
    machine = dataclasses.replace(machine, keys={"HF_TOKEN": VALUE})
    machine.write("train.py", SCRIPT)
    job = {
        "name": "leak",
        "run": "train.py",
        "secrets": ["hf-token"],
        "python": sys.executable,
        "setup": 'echo "setup sees $HF_TOKEN"',
    }
    machine.write("job.yaml", json.dumps(job))
    shown = [machine.windlass("run")]
    assert shown[0].returncode == 100, shown[0].stderr
    logs = machine.windlass("logs")
    assert "begins with *** ends" in logs.stdout
    assert "setup sees ***" in logs.stdout
    why = machine.windlass("why", "-o", "json")
    assert "ValueError: *** is refused" in json.loads(why.stdout)["summary"]
    status = machine.windlass("status", "-o", "json")
    assert json.loads(status.stdout)["progress"]["message"] == "logged in with ***"
    shown += [logs, why, status, machine.windlass("events", "-o", "json"), machine.windlass("status", "-v")]
    assert not any(VALUE in f"{done.stdout}{done.stderr}" for done in shown)
    found = subprocess.run(["grep", "-rlF", VALUE, str(machine.home)], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, ""), "another process: closing a file gives up the record's locks"
