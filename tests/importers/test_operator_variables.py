"""Commands that stay commands get the variables of their operator, with values from Windlass."""

from __future__ import annotations

import subprocess

import pytest

from windlass.importers.operator_variables import OperatorVariables, with_variables

HERE = {
    "PATH": "/usr/bin:/bin",
    "WINDLASS_NUM_NODES": "3",
    "WINDLASS_NODE_RANK": "2",
    "WINDLASS_MASTER_ADDR": "node-a",
    "WINDLASS_MASTER_PORT": "29401",
}
TORCHRUN = "torchrun() { printenv | grep ^PET | sort | tr '\\n' ' '; }; "


def said(command: list[str]) -> str:
    return subprocess.run(command, env=HERE, capture_output=True, text=True, check=True).stdout.strip()


def test_torchrun_without_a_rendezvous_joins_the_other_nodes() -> None:
    command, names, missing = with_variables(["bash", "-c", f"{TORCHRUN}torchrun train.py"], ("torchrun",), 8)
    assert missing == []
    assert names[-1] == "PET_NPROC_PER_NODE"
    assert said(command) == (
        "PET_MASTER_ADDR=node-a PET_MASTER_PORT=29401 PET_NNODES=3 PET_NODE_RANK=2 PET_NPROC_PER_NODE=8"
    )


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("torchrun --rdzv-endpoint $MASTER_ADDR:1 --nproc_per_node=2 train.py", ("torchrun",)),
        ("torchrun train.py", ("index",)),
        ("python train.py", ("torchrun", "index")),
    ],
)
def test_command_without_operator_variables_is_unchanged(words: str, given: tuple[OperatorVariables, ...]) -> None:
    command = ["bash", "-c", words]
    assert with_variables(command, given, 8) == (command, [], [])


def test_command_without_a_shell_is_wrapped_and_keeps_its_words() -> None:
    words = ["/usr/bin/env", "sh", "-c", 'echo "$JOB_COMPLETION_INDEX" "$1"', "x", "two  words"]
    command, names, _ = with_variables(words, ("index",), None)
    assert names == ["JOB_COMPLETION_INDEX"]
    assert said(command) == "2 two  words"


def test_unknown_variables_are_reported() -> None:
    command = ["sh", "-c", "echo $OMPI_COMM_WORLD_RANK $PET_RDZV_ENDPOINT $JOB_COMPLETION_INDEX"]
    assert with_variables(command, (), 4) == (
        command,
        [],
        ["JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK", "PET_RDZV_ENDPOINT"],
    )
