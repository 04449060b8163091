"""The real TensorBoard and JupyterLab in pods, installed at their start; none stays up after its end."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cluster.bed.cluster import Bed
from tests.cluster.harnesses import claimed, set_up
from tests.helpers.machine import Machine
from tests.helpers.until import until
from tests.services.test_boards import MS, link_to, opened_at, run_prepared_page, start
from tests.web.browser.conftest import browser as browser

from windlass.engines.kubernetes.objects.layout import SERVICE_PORT
from windlass.services.environment import requirements
from windlass.services.service import ServiceKind

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
DIGITS = Path(__file__).parents[2] / "examples" / "01-digits"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the packages of both services, which the pods of a test cluster cannot load from the internet."""
    folder = tmp_path_factory.mktemp("packages")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    subprocess.run([*download, *requirements(ServiceKind.NOTEBOOK)], check=True)
    return folder


@contextlib.contextmanager
def index(folder: Path, host: str) -> Iterator[dict[str, str]]:
    """Serves packages to pods, and yields the variables by which pip finds them."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer((host, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://{host}:{server.server_port}/"
        yield {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": address, "PIP_TRUSTED_HOST": host}
        server.shutdown()


@pytest.fixture
def machine(bed: Bed, namespace: str, packages: Path, tmp_path: Path) -> Iterator[Machine]:
    """A machine with a target whose claim has the results of one run of the digits example, with event files."""
    set_up(bed, namespace)
    machine = Machine(tmp_path / "home", tmp_path / "job")
    shutil.copytree(DIGITS, machine.folder / "code")
    machine.write(".kube/config", Path(bed.kubeconfig).read_text())
    with index(packages, bed.layout.outside) as env:
        where = {"kind": "kubernetes", "context": bed.context, "namespace": namespace, "supervisor": "cluster"}
        target = {**where, "image": bed.image, "python": bed.python, "env": env}
        machine.write("targets.yaml", json.dumps({"bed": target}))
        job = {"name": "digits", "run": "train.py --epochs 2", "code": "code", "kubernetes": claimed(bed, namespace)}
        machine.write("job.yaml", json.dumps(job))
        for words in (
            ("run", "--on", "bed", "-q"),
            ("metrics", "digits", "--to-tensorboard", "events"),
            ("cp", "events", "digits:output"),
        ):
            done = machine.windlass(*words)
            assert done.returncode == 0, done.stderr
        yield machine
        machine.kill_all()


def require_ended(bed: Bed, namespace: str) -> None:
    """Fails if a pod has not ended."""

    def active() -> str:
        phases = "status.phase!=Succeeded,status.phase!=Failed"
        return bed.kubectl("get", "pods", "-n", namespace, "--field-selector", phases, "-o", "name")

    until(lambda: not active(), active, 300)


def close(machine: Machine, name: str, bed: Bed, namespace: str) -> None:
    """Closes a service and deletes its record; fails if a pod has not ended, or an object of the service remains."""
    assert machine.windlass("close", name).returncode == 0
    require_ended(bed, namespace)
    done = machine.windlass("rm", name)
    assert done.returncode == 0, done.stderr
    kinds = "pods,jobs,services,secrets,configmaps"
    left = functools.partial(bed.kubectl, "get", kinds, "-n", namespace, "-l", f"windlass.dev/run={name}", "-o", "name")
    until(lambda: not left(), left, 300)


def test_notebook_on_a_run_installs_its_packages_and_runs_the_prepared_page(
    machine: Machine, browser: Browser, bed: Bed, namespace: str
) -> None:
    name = start(machine, "notebook", "digits", "--install")
    process, link = link_to(machine, "notebook", name)
    run_prepared_page(browser, link, "Python 3 (ipykernel)")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    close(machine, name, bed, namespace)


def test_tensorboard_shows_a_claim_and_refuses_strangers(
    machine: Machine, browser: Browser, bed: Bed, namespace: str
) -> None:
    name = start(machine, "tensorboard", "claim:results", "--on", "bed", "--install")
    process, link = link_to(machine, "tensorboard", name)
    page = browser.new_page()
    page.set_default_timeout(MS)
    page.goto(link)
    page.get_by_text("loss").locator("visible=true").first.wait_for()
    page.locator("line-chart").first.wait_for()
    page.close()
    forward = machine.start("port-forward", name, f"0:{SERVICE_PORT}", "-o", "json")
    assert forward.stdout is not None
    port = int(json.loads(forward.stdout.readline())["address"].rpartition(":")[2])
    for query in ("", "?token=wrong"):
        assert "/login" in opened_at(f"https://127.0.0.1:{port}/tensorboard/{query}")
    with socket.create_connection(("127.0.0.1", port), timeout=100) as plain:
        plain.sendall(b"GET /tensorboard/ HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert plain.recv(100) == b""
    for one in (forward, process):
        one.send_signal(signal.SIGINT)
        one.communicate(timeout=100)
    close(machine, name, bed, namespace)


def test_notebook_ends_by_itself_after_a_kill_of_its_start(machine: Machine, bed: Bed, namespace: str) -> None:
    opening = machine.start("notebook", "digits", "--install", "--for", "60s")
    mine = ("-n", namespace, "-l", "windlass.dev/run", "-o", "name")
    until(lambda: "notebook" in bed.kubectl("get", "pods", *mine), "no pod of the notebook", 300)
    os.kill(opening.pid, signal.SIGKILL)
    opening.communicate()
    require_ended(bed, namespace)
