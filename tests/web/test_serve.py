"""The server is found by its file, hands out links by its secret, and no token is on a command line or in a log."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.until import until
from tests.web.records import small_record

from windlass.cli.ui import _show
from windlass.web import serve
from windlass.web.serve import (
    FOLDER,
    Running,
    find_running,
    open_browser,
    registered,
)


def test_running_server_is_found_until_it_ends(tmp_path: Path) -> None:
    one = Running("127.0.0.1", 8421, os.getpid(), "secret", may_act=False)
    with registered(tmp_path, one):
        path = tmp_path / FOLDER / "8421.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert find_running(tmp_path) == one
    assert find_running(tmp_path) is None


def test_file_of_a_killed_server_is_deleted(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    path = tmp_path / FOLDER / "8421.json"
    path.write_text('{"host": "127.0.0.1", "port": 8421, "pid": 1, "secret": "s", "may_act": false}')
    assert find_running(tmp_path) is None
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": 1}'])
def test_damaged_file_is_no_server(tmp_path: Path, text: str) -> None:
    import fcntl

    (tmp_path / FOLDER).mkdir()
    with open(tmp_path / FOLDER / "1.json", "w") as file:
        file.write(text)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert find_running(tmp_path) is None


def test_browser_is_given_a_private_file_instead_of_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: not opened.append(url))  # type: ignore[func-returns-value]
    assert open_browser(tmp_path, "http://127.0.0.1:1/start?token=abc&x")
    [url] = opened
    path = Path(url.removeprefix("file://"))
    assert "abc" not in url
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert 'url=http://127.0.0.1:1/start?token=abc&amp;x"' in path.read_text()
    serve.clean_redirects(tmp_path)
    assert not path.exists()


@pytest.mark.parametrize("is_writable", [True, False])
def test_link_is_printed_where_no_browser_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_writable: bool
) -> None:
    if not is_writable:
        (tmp_path / FOLDER).write_text("no folder")
    monkeypatch.setattr("webbrowser.open", lambda url: not is_writable)
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path))
    _show("http://127.0.0.1:1/start?token=abc", "http://127.0.0.1:1", no_open=False)
    assert capsys.readouterr() == ("http://127.0.0.1:1/start?token=abc\n", "")


# -- a real server ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ui(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `windlass ui`, and its link."""
    environ = {**os.environ, "WINDLASS_HOME": str(folder / "home"), "BROWSER": "true"}
    command = [sys.executable, "-m", "windlass", "ui", "--no-open", "--port", "0", *words]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def fetch(url: str, headers: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Status, body and cookie of a response."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=30) as response:
            return response.status, response.read().decode(), response.headers.get("set-cookie", "")
    except urllib.error.HTTPError as error:
        return error.code, "", ""


@pytest.mark.slow
def test_page_of_a_real_server(tmp_path: Path) -> None:
    run_id = small_record(tmp_path)
    with ui(tmp_path) as (process, link):
        token = link.partition("token=")[2]
        base = link.partition("/start")[0]
        until(lambda: fetch(base)[0] == 401)
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert token.encode() not in arguments
        status, _, cookie = fetch(link)
        assert status == 200
        assert fetch(link)[0] == 403
        headers = {"Cookie": cookie.partition(";")[0]}
        assert run_id in fetch(f"{base}/", headers)[1]
        stream = urllib.request.urlopen(urllib.request.Request(f"{base}/events", headers=headers), timeout=30)
        assert stream.readline().startswith(b"retry")
        running = find_running(tmp_path / "home")
        assert running is not None
        another = [sys.executable, "-m", "windlass", "open", "--no-open", run_id]
        environ = {**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}
        made = subprocess.run(another, env=environ, capture_output=True, text=True, timeout=60, check=True)
        status, text, _ = fetch(made.stdout.strip())
        assert (status, f"url=/runs/{run_id}" in text) == (200, True)
        process.send_signal(signal.SIGINT)
        process.wait(30)
        assert process.returncode in (0, 130, -signal.SIGINT)
        stream.close()
        assert process.stderr is not None
        said = process.stderr.read()
        assert "token" not in said
        assert re.search(r"Traceback|Error", said) is None
    assert find_running(tmp_path / "home") is None
    for path in (tmp_path / "home").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert token.encode() not in data
            assert running.secret.encode() not in data


def test_missing_extra_names_the_command_that_installs_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from windlass.cli.main import main; main(['ui', '--no-open'])"
    environ = {**os.environ, "WINDLASS_HOME": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert "the web page needs uvicorn" in found.stderr
    assert "pip install 'starlette>=1' uvicorn jinja2" in found.stderr
