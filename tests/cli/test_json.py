"""All output of `-o json` matches its schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from tests.cli.conftest import Call

from windlass.cli.main import cli
from windlass.runs.record import Status
from windlass.views.schema import PRINTED, schema_of

BOOM = "import os, time\nif os.environ['WINDLASS_RANK'] == '1': raise ValueError('no')\ntime.sleep(90)\n"


def hold(what: str, data: Any) -> None:
    jsonschema.Draft202012Validator(schema_of(what)).validate(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_all_output_schemas_are_valid_and_printed(name: str, windlass: Call) -> None:
    jsonschema.Draft202012Validator.check_schema(schema_of(name))
    assert windlass("schema", "--printed-by", name).json == schema_of(name)


def test_every_command_that_prints_json_has_a_schema(windlass: Call) -> None:
    def commands(group: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(group, click.Group):
            yield " ".join(path), group
            return
        with click.Context(group) as context:
            for name in group.list_commands(context):
                part = group.get_command(context, name)
                assert part is not None
                yield from commands(part, *path, name)

    found = [name for name, one in commands(cli) if any("json" in getattr(p.type, "choices", ()) for p in one.params)]
    assert len(found) > 30
    names = {name.replace(" ", "-").replace("checkpoints-list", "checkpoints") for name in found}
    assert names - PRINTED.keys() == set()
    assert windlass("schema", "--printed-by", "checkpoints list").json == schema_of("checkpoints")


def test_warm_process_output_matches_its_schema(windlass: Call, home: Path) -> None:
    (home / "warm").mkdir(parents=True)
    hold("warm-ls", windlass("warm", "ls", "-o", "json").json)
    known = {
        "name": "b233d1598fbb", "pid": 26805, "start_ticks": 4951348, "boot": "929a", "started_at": 1795679035.6,
        "python": "/usr/bin/python", "modules": ["torch"], "state": "ready", "forks": 1, "imported": ["torch"],
        "left_out": [], "trying": [], "reads_all": "", "age_seconds": 5.2, "resident_bytes": 725676032,
    }  # fmt: skip
    hold("warm-ls", [known, {"name": "b233d1598fbb", "state": "refused", "why": "a thread"}])
    hold("warm-stop", windlass("warm", "stop", "-o", "json").json)


def test_unknown_schema_is_refused_with_the_available_names(windlass: Call) -> None:
    refused = windlass("schema", "--printed-by", "nothing")
    assert refused.code == 2
    assert ", ".join(PRINTED) in refused.err


@pytest.mark.slow
def test_output_of_a_run_matches_its_schemas(windlass: Call, ended: Callable[..., Status]) -> None:
    Path("job.yaml").write_text(
        "name: job\ncommand: [bash, -c, 'echo hi; sleep 0.3']\nprocs_per_node: 2\nimage: x\nrestarts: 2\n"
    )
    plan = windlass("plan", "-o", "json").json
    hold("plan", plan)
    assert plan["notes"]
    hold("check", windlass("check", "-o", "json").json)
    begun = windlass("run", "--detach", "-o", "json").json
    assert list(begun) == ["id"]
    hold("run", begun)
    status = windlass("status", "-o", "json").json
    hold("status", status)
    assert status["restarts_left"] == 2, "none was used"
    assert status["waits_for"] is None
    hold("ps", windlass("ps", "-o", "json").json)
    ended()
    hold("run", windlass("run", "-o", "json", "--", "true").json)
    hold("stop", windlass("stop", "-o", "json").json)
    hold("ps", windlass("ps", "--all", "-o", "json").json)
    for line in windlass("events", "-o", "json").out.splitlines():
        hold("events", json.loads(line))
    hold("rm", windlass("rm", begun["id"], "-o", "json").json)


@pytest.mark.slow
def test_output_of_a_failed_run_matches_its_schemas(windlass: Call) -> None:
    Path("boom.py").write_text(BOOM)
    failed = windlass(
        "run", "-o", "json", "--set", "restarts=1", "--set", "grace=1s", "--procs-per-node", "2", "boom.py"
    )
    assert failed.code == 100, failed.err
    assert failed.json["cause"]["rank"] == 1
    assert len(failed.json["attempts"]) == 2
    for what in ("run", "status"):
        hold(what, failed.json)
    why = windlass("why", "-o", "json").json
    hold("why", why)
    assert [restart["attempt"] for restart in why["restarts"]] == [2]
    for line in windlass("events", "-o", "json").out.splitlines():
        hold("events", json.loads(line))


def test_errors_match_their_schema(windlass: Call) -> None:
    Path("job.yaml").write_text("name: job\nnode: 2\n")
    for words in (["status", "nope"], ["plan"], ["ps", "--no-such"], ["run", "--", "no-such-program"]):
        result = windlass(words[0], "-o", "json", *words[1:])
        hold("error", json.loads(result.err))
        assert json.loads(result.err)["error"]["code"] == result.code


@pytest.mark.slow
def test_init_and_doctor_output_matches_their_schemas(windlass: Call) -> None:
    Path("train.py").write_text('import torch\nif __name__ == "__main__":\n    print(torch)\n')
    hold("init", windlass("init", "-o", "json").json)
    hold("doctor", windlass("doctor", "-o", "json").json)
