"""A task of SkyPilot is imported and run by the command, on this machine, with two ranks on each of two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers.machine import machine_in

pytestmark = pytest.mark.slow
TASK = """name: greet
num_nodes: 2
resources: {cpus: 1}
envs: {WHO: world}
setup: |
  echo made by node $SKYPILOT_NODE_RANK > made.txt
run: |
  MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  touch once
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=2 --node_rank=${SKYPILOT_NODE_RANK} \\
    --master_addr=$MASTER_ADDR --master_port=8008 greet.py "hello $WHO"
"""
SCRIPT = """import os, sys
own = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SKYPILOT_NODE_RANK")}
assert os.environ["SKYPILOT_NODE_IPS"].splitlines() == os.environ["WINDLASS_HOSTS"].split(",")
assert os.path.exists("once") and open("made.txt").read().startswith("made by node")
print(*own.values(), *sys.argv[1:])
"""


def test_what_was_imported_runs(tmp_path: Path) -> None:
    with machine_in(tmp_path) as machine:
        machine.write("task.yaml", TASK)
        machine.write("greet.py", SCRIPT)
        imported = machine.windlass("import", "--sky", "task.yaml")
        assert imported.returncode == 0, imported.stderr
        done = machine.windlass("run")
        assert done.returncode == 0, done.stdout + done.stderr
        said = {line.partition("] ")[2] for line in done.stdout.splitlines() if line.endswith("hello world")}
    assert said == {f"{rank} 4 {rank % 2} {rank // 2} hello world" for rank in range(4)}


def test_a_variable_that_is_given_reaches_the_script_after_a_command_that_failed(tmp_path: Path) -> None:
    with machine_in(tmp_path) as machine:
        line = "torchrun --nproc_per_node=2 train.py --lr $LR --start ${START} --end 5"
        machine.write("task.yaml", f'envs: {{LR: "0.1", START: ""}}\nrun: {line}\n')
        machine.write(
            "again.yaml", f'envs: {{LR: "0.1", START: ""}}\nrun: |\n  pkill -f leftover-of-nobody\n  {line}\n'
        )
        machine.write("train.py", "import sys\nprint(*sys.argv[1:])\n")
        said = []
        for file in ("task.yaml", "again.yaml"):
            assert machine.windlass("import", "--sky", "--force", file).returncode == 0
            done = machine.windlass("run", "--env", "LR=0.5", "--env", "START=3")
            assert done.returncode == 0, done.stdout + done.stderr
            said.append([line.partition("] ")[2] for line in done.stdout.splitlines() if "--end 5" in line])
    assert said == [["--lr 0.5 --start 3 --end 5"] * 2] * 2
