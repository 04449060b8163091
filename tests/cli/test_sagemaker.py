"""What commands print of targets on SageMaker where nothing can be started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.engines.sagemaker.planning import FIELDS


@pytest.fixture(autouse=True)
def targets(home: Path) -> None:
    aws = {name: value for name, value in FIELDS.items() if name != "name"}
    known = {"here": {"kind": "sagemaker-local"}, "aws": {"kind": "sagemaker", **aws}}
    Path("targets.yaml").write_text(json.dumps(known))
    Path("train.py").write_text("print(1)\n")


def test_hosts_on_this_machine_need_no_rights(windlass: Call) -> None:
    refused = windlass("check", "--on", "here", "--role")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "error: check --role is not supported by engine sagemaker-local\n"
