"""The real TensorBoard and JupyterLab on runs, through the forward, in a browser; nothing is left after their end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.helpers.machine import Machine, machine_in
from tests.helpers.until import until
from tests.servers.s3 import s3_server
from tests.web.browser.conftest import browser as browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "01-digits"
MS = 240_000
INDEX_SETTINGS = ("UV_", "PIP_", "SSL_CERT_", "HTTP", "http", "NO_PROXY", "no_proxy")
"""Beginnings of the names of variables by which uv reaches a package index."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with one run of the digits example."""
    folder = tmp_path_factory.mktemp("boards")
    of_index = {name: text for name, text in os.environ.items() if name.startswith(INDEX_SETTINGS)}
    with machine_in(folder, **of_index) as machine:
        shutil.copytree(EXAMPLE, machine.folder, dirs_exist_ok=True)
        done = machine.windlass("run", "train.py", "-q", "--name", "digits", "--", "--epochs", "3")
        assert done.returncode == 0, done.stderr
        yield machine


def start(machine: Machine, *words: str) -> str:
    """Starts a service and returns its run id."""
    done = machine.windlass(*words, "--detach")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def link_to(machine: Machine, kind: str, name: str) -> tuple[subprocess.Popen[str], str]:
    """Opens a forward to a service; returns its process and a one-time link."""
    process = machine.start(kind, name, "--no-open")
    assert process.stdout is not None
    link = process.stdout.readline().strip()
    assert "token=" in link, process.communicate()
    return process, link


def run_prepared_page(browser: Browser, link: str, kernel: str) -> None:
    """Runs all cells of the prepared page in the browser; fails without a right prediction. `kernel` is its name."""
    page = browser.new_page()
    page.set_default_timeout(MS)
    page.goto(link)
    page.get_by_text(f"{kernel} | Idle").wait_for()  # cells that run before do nothing
    page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
    for _ in range(5):
        page.keyboard.press("Shift+Enter")
    page.get_by_text(re.compile(r"predicted \d, label \d: right")).first.wait_for()
    page.close()


def require_nothing_left(machine: Machine) -> None:
    """Fails if a process of a service runs, or a folder with credentials exists."""
    until(lambda: not [one for one in machine.processes() if one.rank is not None], lambda: str(machine.processes()))
    assert list((machine.home / "services").iterdir()) == []


def test_tensorboard_shows_the_curve_of_a_run(machine: Machine, browser: Browser) -> None:
    name = start(machine, "tensorboard", "digits")
    process, link = link_to(machine, "tensorboard", name)
    page = browser.new_page()
    page.set_default_timeout(MS)
    page.goto(link)
    page.get_by_text("digits-").locator("visible=true").first.wait_for()
    page.get_by_text("loss").locator("visible=true").first.wait_for()
    page.locator("line-chart").first.wait_for()
    page.close()
    folder = machine.home / "services" / name
    port = (folder / "port").read_text()
    refused = [f"https://127.0.0.1:{port}/tensorboard/", f"https://127.0.0.1:{port}/tensorboard/?token=wrong"]
    for address in refused:
        assert "/login" in opened_at(address)
    with socket.create_connection(("127.0.0.1", int(port)), timeout=100) as plain:
        plain.sendall(b"GET /tensorboard/ HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert plain.recv(100) == b""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert f"{name} is up until" in err
    assert machine.windlass("stop", name).returncode == 0
    require_nothing_left(machine)


def opened_at(address: str) -> str:
    """Returns the address of the page to which a client without a session is led."""
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(address, context=context, timeout=100) as response:
        return str(response.url)


def test_notebook_runs_the_prepared_page(machine: Machine, browser: Browser) -> None:
    name = start(machine, "notebook", "digits")
    process, link = link_to(machine, "notebook", name)
    run_prepared_page(browser, link, "Python of the run")
    assert len([one for one in machine.processes() if "ipykernel" in one.command]) == 1
    process.kill()  # the connection alone: the notebook continues
    process.communicate()
    until(lambda: machine.status(name)["ended_at"] is None)
    assert machine.windlass("stop", name).returncode == 0
    require_nothing_left(machine)
    assert (machine.home / "runs" / name / "output" / "windlass.ipynb").exists()


def test_nothing_is_left_after_the_time_limit_or_a_kill(machine: Machine) -> None:
    limited = start(machine, "tensorboard", "digits", "--for", "15s")
    assert machine.ended(limited)["ended_at"] is not None
    name = start(machine, "notebook", ".")
    until(lambda: (machine.home / "services" / name / "runtime").exists())
    for one in machine.processes():
        os.kill(one.pid, signal.SIGKILL)
    machine.ended(name)
    require_nothing_left(machine)


def test_event_files_in_s3_are_kept_in_step(machine: Machine, tmp_path: Path) -> None:
    with s3_server(tmp_path / "buckets") as server:
        client = server.client()
        client.create_bucket(Bucket="runs")
        reader = replace(machine, keys={**machine.keys, **server.environ()})
        client.put_object(Bucket="runs", Key="curves/a/events.out.tfevents.1", Body=b"12345")
        name = start(reader, "tensorboard", "s3://runs/curves")
        copy = machine.home / "services" / name / "logs" / "curves" / "a" / "events.out.tfevents.1"
        until(lambda: copy.exists() and copy.read_bytes() == b"12345")
        client.put_object(Bucket="runs", Key="curves/a/events.out.tfevents.1", Body=b"123456789")
        until(lambda: copy.read_bytes() == b"123456789")
        assert machine.windlass("close", name).returncode == 0
    require_nothing_left(machine)


def test_page_loads_checkpoints_of_distributed_data_parallel(machine: Machine, tmp_path: Path) -> None:
    from windlass.actions.boards import prepared_page

    saves = (
        "import os, sys, torch\nsys.path.insert(0, os.getcwd())\nimport train\n"
        "state = {f'module.{name}': one for name, one in train.make_network().state_dict().items()}\n"
        "torch.save({'model': state}, sys.argv[1])\n"
    )
    places = tmp_path / "output"
    places.mkdir()
    subprocess.run([sys.executable, "-c", saves, str(places / "model.pt")], cwd=machine.folder, check=True)
    page = json.loads(prepared_page("digits-7f3k2", [str(places)], str(machine.folder), "train.py"))
    code = "\n".join(cell["source"] for cell in page["cells"] if cell["cell_type"] == "code")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "8 tensors of" in done.stdout
    assert done.stdout.count("predicted") == 8


@pytest.mark.nightly
def test_idle_tensorboard_ends(machine: Machine) -> None:
    name = start(machine, "tensorboard", "digits", "--idle", "5s")
    # jupyter-server looks once a minute
    until(lambda: machine.status(name)["ended_at"] is not None, seconds=400)
    assert machine.status(name)["phase"] == "succeeded"
    require_nothing_left(machine)
