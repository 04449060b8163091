"""Models deployed to the emulation of SageMaker on this machine, with real processes."""

from __future__ import annotations

import http.server
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.until import until

from windlass.engines.deployments import Deployment, DeploymentPhase, DeploymentRequest
from windlass.engines.sagemaker import objects
from windlass.engines.sagemaker.twin import deployments
from windlass.engines.sagemaker.twin.deployments import TwinDeployments
from windlass.errors import EngineError, MissingExtra, UsageError
from windlass.runs.clock import Clock
from windlass.spec.targets import SageMakerLocalTarget
from windlass.worker import process

pytestmark = pytest.mark.slow

SERVE = f"""#!{sys.executable} -S
import http.server, os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
folder = pathlib.Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"), "model")
weights = (folder / "weights.bin").read_bytes()
if weights == b"broken":
    raise SystemExit("ValueError: broken weights")
while weights.startswith(b"/") and not pathlib.Path(weights.decode()).exists():
    time.sleep(0.01)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def do_POST(self):
        body = weights + self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(os.environ["SAGEMAKER_BIND_TO_PORT"])), Handler).serve_forever()
"""


class Machine:
    """An environment with a program `serve`, and a model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin, self.model = folder / "bin", folder / "model"
        for made in (self.bin, self.model / "code"):
            made.mkdir(parents=True)
        (self.bin / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (self.bin / "serve").write_text(SERVE)
        for program in self.bin.iterdir():
            program.chmod(0o755)
        (self.model / "weights.bin").write_bytes(b"weights")
        (self.model / "code" / "inference.py").write_text("def model_fn(folder):\n    return 1\n")

    def deployments(self, **fields: Any) -> TwinDeployments:
        target = SageMakerLocalTarget(name="here", python=str(self.bin / "python"), **fields)
        return TwinDeployments(target, self.folder / "home", os.environ)

    def deploy(
        self,
        seconds: float = 600.0,
        *,
        name: str = "digits",
        on_progress: Callable[[str], None] = lambda line: None,
        **fields: Any,
    ) -> Deployment:
        deployments = self.deployments()
        request = DeploymentRequest(name, self.model, Clock().time() + seconds, "ada", **fields)
        return deployments.deploy(deployments.plan(request), on_progress)

    def processes(self) -> list[int]:
        """Returns the processes of all deployments below the folder."""
        found = []
        for line in process.all_processes():
            try:
                words = Path(f"/proc/{line.pid}/cmdline").read_text()
            except OSError:
                continue
            if str(self.folder) in words:
                found.append(line.pid)
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for one in made.deployments().list():
        made.deployments().undeploy(one.name, lambda line: None)


def test_serve_answers_with_the_model_and_undeploy_leaves_nothing(machine: Machine) -> None:
    made = machine.deploy()
    assert (made.phase, made.owner, made.ends_by) == (DeploymentPhase.READY, "ada", "supervisor")
    answer = machine.deployments().invoke("digits", b"-1", "text/csv", "text/csv", 5.0)
    assert (answer.status, answer.body) == (200, b"weights-1")
    [listed] = machine.deployments().list()
    assert (listed.name, listed.phase, listed.ends_at) == ("digits", DeploymentPhase.READY, made.ends_at)
    assert machine.deploy().created_at == made.created_at  # the same deployment, not a second one
    removed = machine.deployments().undeploy("digits", lambda line: None)
    assert [one.split()[0] for one in removed] == ["job", "archive"]
    assert machine.deployments().list() == ()
    assert machine.processes() == []
    assert [
        path for path in (machine.folder / "home").rglob("*") if path.is_file() and path.name != ".namespaces"
    ] == []


@pytest.mark.nightly
def test_archive_of_killed_deploy_is_listed_and_removed(machine: Machine) -> None:
    home = machine.folder / "home"
    objects.put(f"file://{home}/sagemaker-storage/deployments/digits/3f2a9c01b7de/", {"model.tar.gz": b""}, home)
    [left] = machine.deployments().list()
    assert (left.name, left.phase, left.objects) == ("digits", DeploymentPhase.FAILED, ("archive of digits",))
    machine.deployments().undeploy("digits", lambda line: None)
    assert machine.deployments().list() == ()


@pytest.mark.nightly
def test_another_request_of_that_name_is_refused(machine: Machine) -> None:
    machine.deploy()
    (machine.model / "weights.bin").write_bytes(b"others")
    with pytest.raises(UsageError, match="with another request"):
        machine.deploy()


def test_failed_server_is_removed_with_its_error(machine: Machine) -> None:
    (machine.model / "weights.bin").write_bytes(b"broken")
    with pytest.raises(EngineError, match="ValueError: broken weights"):
        machine.deploy()
    assert machine.deployments().list() == ()
    assert machine.processes() == []


def test_time_limit_ends_the_deployment(machine: Machine) -> None:
    machine.deploy(seconds=12.0)
    until(lambda: machine.deployments().list() == ())
    assert machine.processes() == []


@pytest.mark.nightly
def test_deployment_whose_manager_was_killed_is_listed_as_failed(machine: Machine) -> None:
    machine.deploy()
    [manager] = [pid for pid in machine.processes() if "sagemaker.twin\0" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(manager, signal.SIGKILL)
    until(lambda: [one.phase for one in machine.deployments().list()] == [DeploymentPhase.FAILED])
    assert machine.deploy().phase is DeploymentPhase.READY  # a repeated deploy starts it again


class Killed(BaseException):
    """The end of the process that deploys."""


def test_servers_that_do_not_listen_yet_have_ports_of_their_own(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(line: str) -> None:
        raise Killed

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(deployments, "PORT", free.getsockname()[1])  # 8080 may be in use
    may_listen = machine.folder / "may-listen"
    (machine.model / "weights.bin").write_text(str(may_listen))
    with pytest.raises(Killed):
        machine.deploy(name="letters", on_progress=killed)
    (machine.model / "weights.bin").write_bytes(b"weights")
    machine.deploy()
    may_listen.touch()
    until(lambda: {one.phase for one in machine.deployments().list()} == {DeploymentPhase.READY})
    for name, weights in (("digits", "weights"), ("letters", str(may_listen))):
        answer = machine.deployments().invoke(name, b"-1", "text/csv", "text/csv", 5.0)
        assert answer.body.decode() == f"{weights}-1"


class Other(http.server.BaseHTTPRequestHandler):
    """Answers as a server of another model."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Writes no log."""


def test_another_server_on_the_port_of_an_ended_one_does_not_answer_for_it(machine: Machine) -> None:
    ports: list[str] = []
    machine.deploy(on_progress=lambda line: ports.extend(re.findall(r"127\.0\.0\.1:(\d+)", line)))
    [server] = [pid for pid in machine.processes() if "bin/serve\0" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(server, signal.SIGKILL)
    until(lambda: [one.phase for one in machine.deployments().list()] == [DeploymentPhase.FAILED])
    with http.server.HTTPServer(("127.0.0.1", int(ports[0])), Other) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            with pytest.raises(EngineError, match="digits answers no requests: its server has ended"):
                machine.deployments().invoke("digits", b"-1", "text/csv", "text/csv", 5.0)
            [listed] = machine.deployments().list()
            assert listed.ready_replicas == 0
        finally:
            other.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": "digits:1"}, "an image is not supported"),
        ({"is_serverless": True}, "serverless"),
        ({"replicas": 2}, "several replicas"),
        ({"cpus": 2.0}, "--cpus is not supported"),
        ({"memory_bytes": 4 << 30}, "--memory is not supported"),
        ({"gpus": 1}, "--gpus is not supported"),
        ({"instance": "ml.m5.large"}, "--instance is not supported"),
        ({"server_options": ("--batch", "8")}, "bin/serve has no options"),
    ],
)
def test_plan_refuses_what_one_process_cannot_do(machine: Machine, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        machine.deployments().plan(DeploymentRequest("digits", machine.model, None, "ada", **fields))


def test_unknown_deployments_are_refused(machine: Machine) -> None:
    with pytest.raises(UsageError, match="no deployment letters"):
        machine.deployments().undeploy("letters", lambda line: None)
    with pytest.raises(UsageError, match="no deployment letters"):
        machine.deployments().invoke("letters", b"", "text/csv", "text/csv", 5.0)


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


def test_own_server_acts_as_serve_where_the_environment_has_none(machine: Machine) -> None:
    (machine.bin / "serve").unlink()
    (machine.model / "weights.bin").write_text("2.0")
    (machine.model / "code" / "inference.py").write_text(HANDLER)
    assert machine.deploy().phase is DeploymentPhase.READY
    answer = machine.deployments().invoke("digits", b"[1, 2]", "application/json", "application/json", 5.0)
    assert (answer.status, answer.body) == (200, b"[2.0, 4.0]")
    machine.deployments().undeploy("digits", lambda line: None)
    assert machine.processes() == []


def test_package_that_the_server_needs_is_missed_by_the_plan(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    (machine.bin / "serve").unlink()
    with pytest.raises(MissingExtra, match="the model server needs uvicorn"):
        machine.deploy()
