"""A home shared by two machines: each sees all runs, and acts on its own alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.machine import WINDLASS, Done, Machine, kill, machine_in
from tests.helpers.stores import store_on
from tests.helpers.until import until

TRAINS = "import time\nwhile True:\n    print('step', flush=True)\n    time.sleep(0.05)\n"
OTHER = "node-of-another-rack"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with machine_in(tmp_path) as made:
        store_on(made.home, is_network=True).close()  # a record without WAL, as on NFS
        yield made


def other(machine: Machine, *words: str) -> Done:
    """`windlass WORDS` on a second machine: another host name, and another boot of another kernel."""
    boot = machine.write("boot_id", "6c1f0f0e-0000-4000-8000-000000000000\n")
    script = f"hostname {OTHER} && mount --bind '{boot}' /proc/sys/kernel/random/boot_id && exec \"$@\""
    command = ["unshare", "--mount", "--uts", "sh", "-c", script, "sh", str(WINDLASS), *words]
    return subprocess.run(
        command, cwd=machine.folder, env=machine.environ, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.slow
def test_a_run_of_another_machine_is_shown_and_left_to_it(machine: Machine) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root may give a command another host name")
    machine.write("train.py", TRAINS)
    job = {"name": "a", "run": "train.py", "grace": "1s", "python": sys.executable, "restarts": {"max": 3}}
    machine.write("job.yaml", json.dumps({**job, "restarts": {"max": 3, "on": ["failure", "node-loss"]}}))
    done = machine.windlass("run", "--detach")
    assert done.returncode == 0, done.stderr
    until(lambda: machine.status()["phase"] == "training", "it does not train")
    run = machine.status()["id"]
    here = machine.status()["host"]
    pids = {process.pid for process in machine.processes()}
    seen = other(machine, "ps")
    assert (seen.returncode, "HOST" in seen.stdout, run in seen.stdout) == (0, True, True), seen.stderr
    assert "HOST" not in machine.windlass("ps").stdout
    assert json.loads(other(machine, "status", "-o", "json").stdout)["host"] == machine.status()["host"] != OTHER
    assert "step" in other(machine, "logs", "--tail", "3").stdout
    for words in (("resume", run), ("rm", "--force", run), ("exec", run, "--", "true")):
        refused = other(machine, *words)
        assert refused.returncode == 2, (words, refused.stdout, refused.stderr)
        assert re.search(rf"(supervised on|runs on) {re.escape(here)}\b", refused.stderr), (words, refused.stderr)

    # Even if its supervisor is gone, another machine neither takes the run up nor takes its ranks for lost.
    (supervisor,) = machine.supervisors()
    kill(supervisor.pid)
    until(lambda: not machine.supervisors(), "the supervisor lives")
    before = machine.home.joinpath("runs", run, "attempt-1", "node-0.events").read_bytes()
    shown = other(machine, "status")
    assert ("training" in shown.stdout, "shown as recorded" in shown.stdout) == (True, True), shown.stdout
    assert other(machine, "why").returncode == 0
    assert {process.pid for process in machine.processes()} == pids - {supervisor.pid}
    assert machine.home.joinpath("runs", run, "attempt-1", "node-0.events").read_bytes() == before

    # It is here that it is taken up again, and its new supervisor acts on a stop that was requested elsewhere.
    assert machine.status()["phase"] == "training"
    stopped = other(machine, "stop")
    assert stopped.returncode == 0, stopped.stderr
    assert "stop requested; its supervisor on" in stopped.stderr
    until(lambda: not machine.ranks(), "the stop was not acted upon")
    assert machine.ended()["phase"] == "stopped"

    # Ended, it belongs to the machine that resumes it.
    resumed = other(machine, "resume", "--detach", run)
    assert resumed.returncode == 0, resumed.stderr
    until(lambda: json.loads(other(machine, "status", "-o", "json").stdout)["phase"] == "training", "not resumed")
    assert machine.status()["host"] == OTHER
    assert machine.windlass("stop", "--no-wait").returncode == 0
    until(lambda: json.loads(other(machine, "status", "-o", "json").stdout)["phase"] == "stopped", "not stopped")
    assert other(machine, "rm", "--force", run).returncode == 0
    machine.empty()
