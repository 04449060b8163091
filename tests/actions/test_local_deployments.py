"""A model is served on this machine by one run, which ends by itself, and of which nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers.until import until

from windlass.actions import all_services, runs
from windlass.actions.deployments import deploy, invoke, planned, undeploy
from windlass.actions.local_deployments import LocalDeployments
from windlass.engines.deployments import Deployment, DeploymentRequest
from windlass.engines.pinned_http import ServerAccess, send
from windlass.errors import EngineError, MissingExtra, UsageError
from windlass.runs.context import Context
from windlass.services import certificates
from windlass.services.known import KnownDeployment, read_known, remember
from windlass.services.service import Service, ServiceKind, ServicePhase
from windlass.views.services import ServiceList

PREDICT = """
def load(folder):
    global weights
    weights = [float(word) for word in open(folder + "/weights.txt").read().split()]

def predict(data):
    return [[a * b for a, b in zip(weights, row)] for row in data]
"""


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    context = Context({**os.environ, "WINDLASS_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}, tmp_path)
    yield context
    with context.store() as store:
        for status in store.statuses(unfinished=True):
            engine = runs.engine_for(status.id, store)
            engine.stop(status.id, now=True)
            engine.wait(status.id, 100)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "predict.py").write_text(PREDICT)
    (folder / "weights.txt").write_text("0.1 0.9")
    (folder / "labels.json").write_text('["cat", "dog"]')
    return folder


def deployed(
    model: Path,
    context: Context,
    seconds: float | None = 3600.0,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> Deployment:
    options = DeploymentRequest("pets", Path(), None if seconds is None else context.now() + seconds, "ann")
    with planned(str(model), "local", options, context) as (deployments, plan, known):
        return deploy(deployments, plan, known, context, on_progress)


def wait_until_nothing_is_up(context: Context) -> None:
    until(lambda: all_services.list_all(context).services == ())


def asked(context: Context, body: bytes = b"[[1, 1]]") -> tuple[int, object, tuple[str, ...]]:
    found = invoke("pets", body, "application/json", "local", context, accept="application/json", timeout=30)
    return found.status, found.body, found.labels


def left(context: Context) -> list[str]:
    """Returns the files of deployments and services that are left in the home."""
    folders = (context.home / "deployments", context.home / "services")
    return [str(path) for folder in folders for path in folder.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_deployed_model_answers_with_the_class_and_is_removed_without_a_trace(model: Path, context: Context) -> None:
    found = deployed(model, context)
    assert (found.phase, found.ends_by, found.ready_replicas) == ("ready", "supervisor", 1)
    assert found.last_request_at == found.created_at
    assert asked(context) == (200, [[0.1, 0.9]], ("dog",))
    assert asked(context, b"{")[0] == 400
    [listed] = all_services.list_all(context).services
    assert (listed.name, listed.kind, listed.phase) == ("pets", "deployment", "ready")
    assert listed.last_request_at is not None
    with pytest.raises(UsageError, match="local answers, and pets may be up there"):
        all_services.forget_deployment("pets", None, context)
    run_id = found.run_id
    again = deployed(model, context)
    assert again.run_id == run_id
    (model / "weights.txt").write_text("0.9 0.1")
    with pytest.raises(UsageError, match="pets is up with another model or other options"):
        deployed(model, context)
    assert asked(context) == (200, [[0.1, 0.9]], ("dog",))
    served = context.home / "deployments" / "local" / "pets" / "model" / "weights.txt"
    assert served.read_text() == "0.1 0.9"
    with pytest.raises(UsageError, match="no service 'pet' is up"):
        all_services.close("pet", None, context, lambda _line: None)
    assert all_services.close("pets", None, context, lambda _line: None).removed == (f"run {run_id}",)
    assert left(context) == []
    assert all_services.list_all(context).services == ()
    with pytest.raises(UsageError, match="there is no deployment pets"):
        undeploy("pets", "local", context, lambda _line: None)


@pytest.mark.slow
def test_server_refuses_other_tokens_and_plain_http(model: Path, context: Context) -> None:
    found = deployed(model, context)
    folder = context.home / "services" / found.run_id
    port = int(json.loads((folder / "port").read_text())["port"])
    known = certificates.read(folder)

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), 30)

    wrong = send(connect(), ServerAccess(known.certificate, "wrong"), "POST", "/invocations", body=b"[]", timeout=30)
    assert wrong.status == 401
    with connect() as plain:
        plain.settimeout(30)
        plain.sendall(b"GET /ping HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"200" not in plain.recv(100)


@pytest.mark.slow
def test_model_that_cannot_be_loaded_fails_with_its_last_lines_and_is_gone(model: Path, context: Context) -> None:
    (model / "weights.txt").unlink()
    with pytest.raises(EngineError, match=r"(?s)the server of pets has failed.*weights\.txt"):
        # the server has ended before the command looks for it
        deployed(model, context, on_progress=lambda _line: wait_until_nothing_is_up(context))
    all_services.list_all(context)
    assert left(context) == []


@pytest.mark.slow
def test_time_limit_ends_a_deployment(model: Path, context: Context) -> None:
    deployed(model, context, seconds=15.0)
    until(lambda: all_services.list_all(context).services == ())
    assert left(context) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [seed if seed < 2 else pytest.param(seed, marks=pytest.mark.nightly) for seed in range(10)]
)
def test_killed_deploy_is_continued_by_the_next_and_never_makes_two(seed: int, model: Path, context: Context) -> None:
    command = [sys.executable, "-m", "windlass", "deploy", str(model), "--name", "pets"]
    killed = subprocess.Popen(command, env=dict(context.environ), cwd=context.cwd, stderr=subprocess.DEVNULL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        killed.wait(random.Random(seed).uniform(0.1, 4.0))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    deployed(model, context)
    assert asked(context) == (200, [[0.1, 0.9]], ("dog",))
    with context.store() as store:
        assert len(store.statuses(unfinished=True)) == 1
    undeploy("pets", "local", context, lambda _line: None)
    assert left(context) == []


def test_options_of_other_targets_are_refused_here(model: Path, context: Context) -> None:
    options = DeploymentRequest("pets", Path(), None, "ann", image="a", instance="ml.m5.large", max_replicas=3, gpus=1)
    with (
        pytest.raises(UsageError, match="--image, --instance, --max-replicas, --gpus has no meaning on this machine"),
        planned(str(model), "local", options, context),
    ):
        pass
    assert left(context) == []


def test_model_that_does_not_exist_is_refused(context: Context) -> None:
    with (
        pytest.raises(UsageError, match="there is no model none/model"),
        planned("none/model", "local", DeploymentRequest("", Path(), None, "ann"), context),
    ):
        pass


def test_deployment_on_a_target_that_is_gone_is_unknown_until_it_is_forgotten(context: Context) -> None:
    remember(context.home, KnownDeployment("pets", "gone", 1.0, None))
    found = all_services.list_all(context)
    assert [(one.name, one.target, one.phase) for one in found.services] == [("pets", "gone", "unknown")]
    assert [one.target for one in found.unanswered] == ["gone"]
    with pytest.raises(UsageError, match="on these targets: none"):
        all_services.forget_deployment("cats", None, context)
    assert all_services.forget_deployment("pets", None, context).target == "gone"
    assert all_services.list_all(context) == ServiceList((), ())


def test_beginning_of_the_name_of_a_deployment_does_not_name_it(context: Context) -> None:
    remember(context.home, KnownDeployment("pets-v2", "gone", 1.0, None))
    with pytest.raises(EngineError, match="no service 'pets' was found, and target gone does not answer"):
        all_services.find("pets", None, context)


def test_deployment_of_another_place_is_unknown_until_it_is_forgotten(context: Context) -> None:
    remember(context.home, KnownDeployment("pets", "local", 1.0, None, place="https://lab.example team"))
    [found] = all_services.list_all(context).services
    assert (found.name, found.phase) == ("pets", "unknown")
    assert found.cause == "deployed to https://lab.example team, and local is now this machine"
    with pytest.raises(UsageError, match=r"pets was deployed to https://lab\.example team, and"):
        all_services.close("pets", None, context, lambda _line: None)
    all_services.forget_deployment("pets", None, context)
    assert all_services.list_all(context) == ServiceList((), ())


def test_deployment_that_is_gone_from_its_place_is_forgotten(context: Context) -> None:
    remember(context.home, KnownDeployment("pets", "local", 1.0, None, place="this machine"))
    assert all_services.list_all(context) == ServiceList((), ())
    assert left(context) == []


def test_deployment_that_is_created_while_its_target_is_asked_is_not_forgotten(context: Context) -> None:
    before = KnownDeployment("pets", "local", 1.0, None, place="this machine")
    remember(context.home, replace(before, created_at=2.0))
    assert all_services._deployed("local", context, [before]) == ((), "")
    assert read_known(context.home, "local", "pets") == replace(before, created_at=2.0)
    undeploy("pets", "local", context, lambda _line: None)


def test_removal_of_a_deployment_that_has_ended_by_itself_succeeds(context: Context) -> None:
    remember(context.home, KnownDeployment("pets", "local", 1.0, None, place="this machine"))
    assert undeploy("pets", "local", context, lambda _line: None).removed == ()
    assert left(context) == []


def test_target_whose_settings_cannot_be_read_is_not_an_empty_one(context: Context, tmp_path: Path) -> None:
    (tmp_path / "targets.yaml").write_text("mine: {kind: sagemaker-local, odd: 1}\n")
    found = all_services.list_all(context).unanswered
    assert [one.target for one in found] == ["local", "mine"]
    assert "mine.odd: not a field" in found[1].reason


def test_package_that_the_server_needs_is_missed_before_anything_is_made(
    model: Path, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match="the model server needs uvicorn"):
        deployed(model, context)
    assert left(context) == []


def test_image_and_amounts_are_refused_here_by_name(model: Path, context: Context) -> None:
    asked = DeploymentRequest(
        "pets", model, None, "ann", run_id="pets-7f3k2", image="a", cpus=2.0, memory_bytes=1 << 30
    )
    with (
        context.store() as store,
        pytest.raises(UsageError, match="--image, --cpus, --memory has no meaning on this machine"),
    ):
        LocalDeployments("local", store, context).plan(asked)


def test_server_whose_credentials_are_gone_is_not_ready(context: Context) -> None:
    ended = Service(
        "pets", "pets-7f3k2", ServiceKind.DEPLOYMENT, "local", ServicePhase.UP, "ann", 1.0, None, None, port=8888
    )
    with context.store() as store:
        assert not LocalDeployments("local", store, context)._is_ready(ended)
