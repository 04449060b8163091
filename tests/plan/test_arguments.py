from __future__ import annotations

from typing import Any

import pytest

from windlass.plan.arguments import left_over
from windlass.spec.job import Job

ENV = {"WINDLASS_OUTPUT_DIR": "/out", "WINDLASS_CHECKPOINT_DIR": "/checkpoints"}


@pytest.mark.parametrize(
    ("fields", "codes"),
    [
        ({"run": "train.py --to $WINDLASS_OUTPUT_DIR"}, []),
        ({"run": "train.py --to $WINDLASS_OUTPUT"}, ["name-unknown"]),
        ({"run": "train.py --local_rank=$WINDLASS_LOCAL_RANK"}, []),
        (
            {"run": "train.py", "checkpoint": {"find": "*.pt", "resume": "--from {path} $WINDLASS_RANK"}},
            ["name-unknown"],
        ),
        ({"command": ["./prog", "--to", "$WINDLASS_OUTPUT_DIR", "--rank=${WINDLASS_RANK}"]}, ["name-not-read"] * 2),
        ({"command": ["bash", "-c", "./prog $WINDLASS_OUTPUT_DIR"]}, []),
        ({"command": ["env", "A=1", "/bin/sh", "-c", "./prog $WINDLASS_RANK"]}, []),
        ({"command": ["./prog", "$HOME"]}, []),
    ],
)
def test_a_name_that_is_not_replaced_and_read_by_no_shell_is_noted(fields: dict[str, Any], codes: list[str]) -> None:
    notes = left_over(Job(name="job", **fields), ENV)
    assert [note.code for note in notes] == codes
    assert not any(note.blocks for note in notes)
