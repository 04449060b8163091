"""Runs on a machine that does not allow namespaces: hosts are folders, and SAGEMAKER_BASE_DIR replaces /opt/ml."""

from __future__ import annotations

import json
import subprocess

import pytest
from tests.helpers.machine import WINDLASS, Machine

FORBID = "echo 0 > /proc/sys/user/max_uts_namespaces"
"""Forbids namespaces, in a user namespace of the test so that other processes are not affected."""
SCRIPT = """
import json, os
import torch, torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(json.dumps([dist.get_rank(), total.item(), os.environ["SM_CURRENT_HOST"], os.environ["SM_MODEL_DIR"]]))
name = f"rank-{dist.get_rank()}"
open(os.path.join(os.environ["WINDLASS_OUTPUT_DIR"], name), "w").write(name)
dist.destroy_process_group()
"""


def may() -> bool:
    """Whether this machine lets a user create a namespace in which others are forbidden."""
    return subprocess.run(["unshare", "-Ur", "sh", "-c", FORBID], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not may(), reason="needs user namespaces, in which others can be forbidden"),
]


def windlass(machine: Machine, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of a user who may not create namespaces."""
    command = ["unshare", "-Ur", "sh", "-c", f'{FORBID}; exec "$@"', "sh", str(WINDLASS), *words]
    return subprocess.run(
        command, cwd=machine.folder, env=machine.environ, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture
def folders(machine: Machine) -> Machine:
    machine.write("targets.yaml", "here: {kind: sagemaker-local}\n")
    machine.write("train.py", SCRIPT)
    return machine


def test_ranks_of_two_hosts_meet_without_namespaces_and_run_warns(folders: Machine) -> None:
    done = windlass(folders, "run", "train.py", "--on", "here", "--nodes", "2", "--procs-per-node", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    found = sorted(json.loads(line.partition("] ")[2]) for line in done.stdout.splitlines() if line.startswith("["))
    assert [(rank, total, host) for rank, total, host, _ in found] == [
        (0, 10.0, "127.0.0.2"),
        (1, 10.0, "127.0.0.2"),
        (2, 10.0, "127.0.0.3"),
        (3, 10.0, "127.0.0.3"),
    ]
    assert all(model.startswith(str(folders.home)) for _, _, _, model in found)
    [warning] = [one["message"] for one in folders.events() if one["kind"] == "warning"]
    assert "SAGEMAKER_BASE_DIR" in warning
    status = folders.status()
    assert [rank["exit_code"] for rank in status["ranks"]] == [0] * 4
