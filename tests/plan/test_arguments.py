from __future__ import annotations

from typing import Any

import pytest

from windlass.plan.arguments import hidden_launchers, left_over
from windlass.spec.job import Job

ENV = {"WINDLASS_OUTPUT_DIR": "/out", "WINDLASS_CHECKPOINT_DIR": "/checkpoints"}


@pytest.mark.parametrize(
    ("fields", "codes"),
    [
        ({"run": "train.py --to $WINDLASS_OUTPUT_DIR"}, []),
        ({"run": "train.py --local_rank=$WINDLASS_LOCAL_RANK"}, []),
        (
            {"run": "train.py", "checkpoint": {"find": "*.pt", "resume": "--from {path} $WINDLASS_RANK"}},
            ["name-unknown"],
        ),
        ({"command": ["./prog", "--to", "$WINDLASS_OUTPUT_DIR", "--rank=${WINDLASS_RANK}"]}, ["name-not-read"] * 2),
        ({"command": ["bash", "-c", "./prog $WINDLASS_OUTPUT_DIR"]}, []),
        ({"command": ["env", "A=1", "/bin/sh", "-c", "./prog $WINDLASS_RANK"]}, []),
        ({"command": ["./prog", "$HOME"]}, []),
        ({"run": "train.py --of=$WINDLASS_WORLD_SIZE"}, []),
        ({"command": ["find", ".", "-exec", "touch", "{}", ";"]}, []),
    ],
)
def test_a_name_that_is_not_replaced_is_noted_where_no_shell_reads_it(fields: dict[str, Any], codes: list[str]) -> None:
    notes = left_over(Job(name="job", **fields), ENV)
    assert [note.code for note in notes] == codes
    assert not any(note.blocks for note in notes)


def test_a_name_of_windlass_in_run_that_is_not_replaced_blocks_the_plan() -> None:
    (note,) = left_over(Job(name="job", run="train.py --to $WINDLASS_OUTPUT"), ENV)
    assert (note.code, note.blocks) == ("name-unknown", True)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"run": "torchrun --nproc-per-node 2 tr.py", "nodes": 2}, "torchrun"),
        ({"run": "mpirun -np 2 python train.py"}, "mpirun"),
        ({"command": ["bash", "-c", "cd src && torchrun train.py"]}, "torchrun"),
        ({"command": ["python", "-m", "torch.distributed.run", "train.py"]}, "torch.distributed.run"),
        ({"command": ["nohup", "accelerate", "launch", "train.py"]}, "accelerate launch"),
        ({"command": ["srun", "-n", "2", "python", "train.py"]}, "srun"),
        ({"command": ["bash", "-c", "echo accelerate"]}, None),
        ({"command": ["python", "train.py", "--launcher", "torchrun"]}, None),
        ({"run": "train.py --launcher torchrun"}, None),
        ({"run": "./prog mine"}, None),
    ],
)
def test_a_launcher_that_each_rank_would_start_is_noted(fields: dict[str, Any], name: str | None) -> None:
    notes = hidden_launchers(Job(name="job", **fields))
    assert [note.message.split(" itself")[0] for note in notes] == ([f"each rank starts {name}"] if name else [])


@pytest.mark.parametrize(
    ("fields", "is_noted"),
    [
        ({"procs_per_node": 2}, True),
        ({"nodes": {"min": 1, "max": 2}}, True),
        ({"procs_per_node": "auto"}, True),
        ({}, False),
        ({"nodes": 2, "launcher": "plain"}, False),
        ({"nodes": 2, "run": "/opt/x/bin/python -c pass"}, False),
        ({"nodes": 2, "run": "./prog train.py"}, False),
    ],
)
def test_an_interpreter_by_path_that_starts_several_ranks_is_noted(fields: dict[str, Any], is_noted: bool) -> None:
    job = Job(**{"name": "job", "run": "/opt/x/bin/python train.py --x 1", **fields})
    notes = hidden_launchers(job)
    assert [note.code for note in notes] == ["interpreter-inside"] * is_noted
    assert all("write python: /opt/x/bin/python and run: train.py" in note.fix for note in notes)
