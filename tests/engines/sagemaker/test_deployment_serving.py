"""Endpoints of the emulated account that run the code of the model's archive, by Windlass's own server. Not AWS."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.engines.sagemaker.hosted import World, hosted
from tests.fakeaws.containers import LocalContainer

from windlass.engines.deployments import DeploymentPhase
from windlass.errors import EngineError

HANDLER = """
import json, pathlib


def model_fn(folder):
    return float((pathlib.Path(folder) / "weights.bin").read_text())

def input_fn(body, content_type):
    return json.loads(body)

def predict_fn(data, weight):
    return [weight * one for one in data]

def output_fn(found, accept):
    return json.dumps(found)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with hosted(tmp_path) as made:
        made.hosting.serve = partial(LocalContainer, folder=tmp_path / "containers", s3=made.s3)
        made.hosting.creating_seconds = 0.0
        (made.model / "weights.bin").write_text("2.0")
        (made.model / "code" / "inference.py").write_text(HANDLER)
        yield made


IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/digits:1"


def test_endpoint_answers_with_the_code_of_the_archive(world: World) -> None:
    assert world.deploy(world.request(image=IMAGE)).phase is DeploymentPhase.READY
    deployments = world.deployments()
    answer = deployments.invoke("digits", b"[1, 2]", "application/json", "application/json", 10.0)
    assert (answer.status, answer.body) == (200, b"[2.0, 4.0]")
    refused = deployments.invoke("digits", b"{", "application/json", "application/json", 10.0)
    assert refused.status in (400, 500)
    assert refused.body
    assert world.undeploy()
    assert world.objects() == []


def test_code_that_fails_at_its_start_is_the_cause(world: World) -> None:
    (world.model / "code" / "inference.py").write_text("import no_such_module_of_digits\n")
    with pytest.raises(EngineError, match=r"did not pass the ping health check.*no_such_module_of_digits"):
        world.deploy(world.request(image=IMAGE))
    assert world.objects() == []
