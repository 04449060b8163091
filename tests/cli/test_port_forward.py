"""`port-forward` reaches a port of a rank of a local run, and ends with the run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
import pytest
from tests.cli.conftest import WINDLASS, Call
from tests.cli.test_json import hold
from tests.helpers.until import until

from windlass.cli.port_forward import ports_of

SERVER = """
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
path = os.path.join(os.environ["WINDLASS_OUTPUT_DIR"], "port")
open(path + ".new", "w").write(str(listener.getsockname()[1]))
os.rename(path + ".new", path)
while True:
    connection, _ = listener.accept()
    connection.sendall(b"hello")
    connection.close()
"""
JOB = "name: server\nrun: server.py\nlauncher: plain\n"


@pytest.fixture
def server(windlass: Call) -> tuple[str, int]:
    """Run that listens on a port; returns its id and the port."""
    Path("server.py").write_text(SERVER)
    Path("job.yaml").write_text(JOB)
    started = windlass("run", "-d", "-q")
    assert started.code == 0, started.err
    run_id = started.out.strip()
    path = Path(windlass("status", run_id, "-o", "json").json["output_dir"]) / "port"
    until(path.exists, lambda: windlass("logs", run_id).out)
    return run_id, int(path.read_text())


@contextlib.contextmanager
def forwarded(environ: Mapping[str, str], *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """Runs the command until the end of the block; yields its process and what it printed."""
    command = [*WINDLASS, "port-forward", *words, "-o", "json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, process.communicate()
            yield process, json.loads(line)
        finally:
            process.kill()


def said_at(address: object) -> bytes:
    host, _, port = str(address).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        return b"".join(iter(lambda: connection.recv(100), b""))


def test_port_of_a_run_is_reached_until_it_ends(
    server: tuple[str, int], windlass: Call, environ: Mapping[str, str]
) -> None:
    run_id, port = server
    with forwarded(environ, run_id, f"0:{port}") as (process, printed):
        hold("port-forward", printed)
        assert (printed["id"], printed["rank"], printed["port"]) == (run_id, 0, port)
        assert str(printed["address"]).startswith("127.0.0.1:")
        assert printed["address"] != f"127.0.0.1:{port}"
        assert [said_at(printed["address"]) for _ in range(3)] == [b"hello"] * 3
        assert windlass("stop", run_id, "--now").code == 0
        _, err = process.communicate(timeout=100)
        assert process.returncode == 1
        assert f"{run_id} has ended as stopped" in err


def test_port_without_a_listener_and_other_addresses_are_named(
    server: tuple[str, int], environ: Mapping[str, str]
) -> None:
    run_id, _ = server
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = other.getsockname()[1]
    with forwarded(environ, run_id, f"0:{free}", "--address", "0.0.0.0") as (process, printed):
        assert str(printed["address"]).startswith("127.0.0.1:")
        assert said_at(printed["address"]) == b""
        assert said_at(printed["address"]) == b""
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 0
    assert "other machines can reach the port, without login or encryption: 0.0.0.0" in err
    assert err.count(f"node 0 cannot be reached at port {free}: Connection refused") == 2


def test_ended_run_is_refused(recorded: Callable[..., str], windlass: Call) -> None:
    from windlass.spec.job import Job

    run_id = recorded(Job.model_validate({"name": "d", "run": "x.py"}))
    found = windlass("port-forward", run_id, "6006")
    assert (found.code, "has ended as failed: nothing listens" in found.err) == (2, True)


def test_ports_are_local_and_remote() -> None:
    assert ports_of("6006") == ((6006, 0), 6006)
    assert ports_of("8080:6006") == ((8080,), 6006)
    assert ports_of("0:6006") == ((0,), 6006)
    for wrong in ("", "x", "0", "6006:", ":6006", "6006:0", "65536", "1:2:3", "-1", "٣"):
        with pytest.raises(click.UsageError, match="is no port"):
            ports_of(wrong)


# -- nodes in networks of their own -----------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace, which needs root")
def test_loopback_of_a_node_in_a_network_of_its_own_is_reached() -> None:
    from windlass.engines.local.ports_of_nodes import open_port

    name = f"wl-test-{os.getpid()}"
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 6006)); print(1, flush=True); s.accept()[0].send(b'in')"
    )
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        command = ["ip", "netns", "exec", name, WINDLASS[0], "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with open_port(f"/run/netns/{name}", 0, 6006) as connection:
                assert connection.recv(10) == b"in"
        with pytest.raises(Exception, match="Connection refused"):
            open_port(None, 0, 6006)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
