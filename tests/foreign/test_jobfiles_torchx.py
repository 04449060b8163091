"""Small equivalents of the AppDefs that TorchX's own components make: each is imported right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windlass.importers.convert import Imported, import_text
from windlass.spec.parse import parse_job

FOLDER = Path(__file__).parent / "jobfiles"
ROLE = "roles[0]"


def imported(name: str) -> Imported:
    path = FOLDER / f"torchx-{name}.json"
    return import_text(path.read_text(), path.name, form="torchx")


IMPORTED: dict[str, dict[str, Any]] = {
    "ddp": {
        "run": "fit.py --epochs 3", "launcher": "torchrun", "nodes": (2, 2), "procs": 8, "gpus": 8,
    },
    "ddp-one-node": {"run": "fit.py --note 'a b'", "launcher": "torchrun", "nodes": (1, 1), "procs": 2},
    "ddp-elastic": {"run": "-m app.fit --lr 0.1", "launcher": "torchrun", "nodes": (1, 3), "procs": 2},
    "ddp-app-id": {
        "command": "torchrun --rdzv_backend c10d --rdzv_endpoint $WINDLASS_MASTER_ADDR:29500 --rdzv_id "
        '"$WINDLASS_RUN_ID" --nnodes 2 --nproc_per_node 4 --tee 3 --role \'\' fit.py --out /results/$WINDLASS_RUN_ID',
        "launcher": "plain", "nodes": (2, 2), "procs": 1, "left": {f"{ROLE}.entrypoint"},
    },
    "ddp-rendered": {"run": "fit.py", "launcher": "torchrun", "nodes": (2, 2), "procs": 4},
    "python": {
        "run": "-m app.tool --x 1", "launcher": "plain", "nodes": (2, 2), "procs": 1, "left": {f"{ROLE}.entrypoint"},
    },
    "binary": {
        "command": 'exec "./tool.par" --shard "$WINDLASS_NODE_RANK"', "launcher": "plain", "nodes": (2, 2), "procs": 1,
        "left": {f"{ROLE}.image"},
    },
    "mounts": {"command": "hi", "launcher": "plain", "nodes": (1, 1), "procs": 1, "left": {f"{ROLE}.mounts[1]"}},
}  # fmt: skip
"""Name of the file, and what the job has; `command` is its last word."""


@pytest.mark.parametrize("name", IMPORTED)
def test_an_appdef_of_this_shape_is_imported_right(name: str) -> None:
    made, expected = imported(name), IMPORTED[name]
    job = made.job
    assert (job.run, job.command and job.command[-1]) == (expected.get("run"), expected.get("command"))
    assert (job.launcher, job.procs_per_node, job.resources.gpus) == (
        expected["launcher"],
        expected["procs"],
        expected.get("gpus", 0),
    )
    assert (job.nodes.min, job.nodes.max) == expected["nodes"]
    assert {one.field for one in made.actionable} == expected.get("left", set())
    assert parse_job(made.text) == job


def test_there_is_an_outcome_for_each_file() -> None:
    assert {path.stem.removeprefix("torchx-") for path in FOLDER.glob("torchx-*.json")} == {*IMPORTED}


def test_a_machine_that_is_named_by_its_label_is_the_jobs_instance() -> None:
    assert imported("ddp").job.resources.instance == "p4d.24xlarge"


def test_a_folder_of_the_machine_is_named_as_torchx_names_it() -> None:
    bind = "{src_path: /host, dst_path: /job, read_only: true}"
    made = import_text(f"roles: [{{entrypoint: a, mounts: [{bind}]}}]\n", "app.yaml", form="torchx")
    assert [one.meaning for one in made.actionable] == ["/host of the machine"]


@pytest.mark.parametrize(
    ("script", "filled"),
    [
        ("a --role '' --out '/r/${app_id}' --b 'c d'", "a --role '' --out \"/r/$WINDLASS_RUN_ID\" --b 'c d'"),
        ("echo '' ${app_id} 'lone'", "echo '' $WINDLASS_RUN_ID 'lone'"),
        ("echo \"it's ${app_id}\" 'b'", "echo \"it's $WINDLASS_RUN_ID\" 'b'"),
        ("echo 'costs $5: \"${app_id}\"'", r'echo "costs \$5: \"$WINDLASS_RUN_ID\""'),
        ("a --on '${rank0_env}'", 'a --on "$WINDLASS_MASTER_ADDR"'),
    ],
)
def test_quotes_of_a_script_stay_pairs(script: str, filled: str) -> None:
    app = {"roles": [{"name": "a", "entrypoint": "bash", "args": ["-c", f"cd /app; {script}"]}]}
    job = import_text(json.dumps(app), "app.json", form="torchx").job
    assert job.command == ("bash", "-c", f"cd /app; {filled}")


def test_a_role_that_asks_for_no_number_of_gpus_comes_before_those_after_it() -> None:
    roles = [
        {"name": "trainer", "entrypoint": "fit", "resource": {"cpu": -1, "gpu": -1, "memMB": -1}},
        {"name": "board", "entrypoint": "tensorboard", "resource": {"cpu": 1, "gpu": 0, "memMB": 100}},
    ]
    assert import_text(json.dumps({"roles": roles}), "app.json", form="torchx").job.name == "trainer"
