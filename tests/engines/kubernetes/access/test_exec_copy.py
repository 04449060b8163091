"""Copies whose connection is closed at a bad moment, with a fake stream in place of the API server's web socket."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import websocket

from windlass.engines.base import Terminal
from windlass.engines.kubernetes.access.errors import Unreachable
from windlass.engines.kubernetes.access.exec_copy import RunPods
from windlass.engines.kubernetes.access.exec_stream import STDERR, STDOUT, Report, attach
from windlass.engines.kubernetes.access.files import PodFiles
from windlass.errors import EngineError
from windlass.worker import tarpipe

Frames = list[tuple[int, bytes]]
CLIENT: Any = None
STATUS: Any = None
PLAN: Any = SimpleNamespace(nodes=SimpleNamespace(worker_python="python3"))


class Closing:
    """Stream with given output, after which the connection is closed, unless the output ends with an exit status."""

    def __init__(self, frames: Frames, exit_code: int | None) -> None:
        self._frames = frames
        self._ends_with = exit_code
        self.exit_code: int | None = None

    def frames(self) -> Iterator[tuple[int, bytes]]:
        yield from self._frames
        if self._ends_with is None:
            raise Unreachable("the command can no longer be heard", "is its node healthy?")
        self.exit_code = self._ends_with

    def write(self, data: bytes) -> None:
        """Discards the data."""

    def end_input(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing: no connection is open."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that sets the output of the pod when files are copied."""

    def say(frames: Frames, exit_code: int | None = None) -> None:
        monkeypatch.setattr(RunPods, "_pod", lambda *_: contextlib.nullcontext(SimpleNamespace()))
        closing = contextlib.closing(Closing(frames, exit_code))
        monkeypatch.setattr(PodFiles, "_stream", lambda *_, **__: closing)

    return say


def archive(path: Path) -> bytes:
    out = io.BytesIO()
    tarpipe.send(str(path), out)
    return out.getvalue()


def put(path: Path) -> Any:
    return RunPods(CLIENT, PLAN, STATUS).put(0, path, "output/there", lambda _sent: None)


def fetch(into: Path) -> tarpipe.Received:
    return RunPods(CLIENT, PLAN, STATUS).fetch(0, "output/there", into, lambda _had: None)


class Socket:
    """Web socket that records what a stream sends, to a command that ends at once."""

    def __init__(self) -> None:
        self.query: list[tuple[str, str]] = []
        self.channels = ""
        self.sent: list[bytes] = []

    def path(self, *words: str) -> str:
        return "/".join(words)

    def websocket(self, path: str, query: list[tuple[str, str]], *, channels: str) -> Socket:
        self.query, self.channels = query, channels
        return self

    def settimeout(self, _seconds: float | None) -> None:
        """Does nothing: the socket always has data."""

    def send_binary(self, data: bytes) -> None:
        self.sent.append(data)

    def getheaders(self) -> None:
        """Returns no headers."""

    def recv_data_frame(self, _control: bool) -> tuple[int, Any]:
        return websocket.ABNF.OPCODE_BINARY, SimpleNamespace(data=b"\x03" + json.dumps({"status": "Success"}).encode())

    def close(self, timeout: float) -> None:
        """Does nothing: no connection is open."""


POD = {"metadata": {"name": "d-1"}, "spec": {"containers": [{"name": "main"}]}}
PYTHON = [sys.executable, "-I", "-S"]


def test_exit_status_of_exec_is_reported_by_the_kubelet() -> None:
    """With other protocols, the API server reports success if it has lost the connection to the kubelet."""
    socket: Any = Socket()
    assert attach(socket, POD, PYTHON, ["true"], None, io.BytesIO(), io.BytesIO()) == 0
    assert socket.channels == "v4.channel.k8s.io"


def test_command_with_input_succeeds_only_if_it_reports_success() -> None:
    socket: Any = Socket()
    with pytest.raises(Unreachable, match="before it reported its exit code"):
        attach(socket, POD, PYTHON, ["cat"], io.BytesIO(b"in"), io.BytesIO(), io.BytesIO())
    assert socket.channels.startswith("v5.channel.k8s.io,")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_exit_report_is_removed_from_standard_error(size: int) -> None:
    out = io.BytesIO()
    report = Report(out)
    words = report.wrapped(PYTHON, ["sh", "-c", "cat; printf 'a\\0b\\0' >&2; exit 7"])
    done = subprocess.run(words, input=b"in", capture_output=True)
    assert (done.returncode, done.stdout) == (7, b"in")
    for at in range(0, len(done.stderr), size):
        report.write(done.stderr[at : at + size])
    assert report.confirmed(0) == 7, "a success of another program is none of this one"
    assert out.getvalue() == b"a\0b\0"


@pytest.mark.parametrize("size", [1, 1000])
def test_background_process_may_write_after_the_exit_report(size: int) -> None:
    """The output streams of a command end only with the last process that has them open."""
    out = io.BytesIO()
    report = Report(out)
    words = report.wrapped(PYTHON, ["sh", "-c", "exec 3<&0; (read line <&3; printf 'late\\0' >&2) & echo early >&2"])
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait() == 0
        _, said = process.communicate(b"go\n")
    for at in range(0, len(said), size):
        report.write(said[at : at + size])
    assert report.confirmed(0) == 0
    assert out.getvalue() == b"early\nlate\0"


def test_exec_sends_terminal_size_and_restores_terminal() -> None:
    socket, (ours, theirs) = Socket(), os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    before = termios.tcgetattr(theirs)
    client: Any = socket
    terminal = Terminal(theirs, closefd=False)
    assert attach(client, POD, PYTHON, ["bash"], terminal, io.BytesIO(), io.BytesIO()) == 0
    assert ("tty", "true") in socket.query
    assert ("stderr", "true") not in socket.query
    assert socket.sent[0] == b'\x04{"Width": 100, "Height": 30}'
    assert termios.tcgetattr(theirs) == before
    assert signal.getsignal(signal.SIGWINCH) == signal.SIG_DFL
    os.close(ours)  # Closing the terminal ends the input.
    for thread in threading.enumerate():
        if thread.name == "input":
            thread.join()
    os.close(theirs)


def test_copy_succeeds_if_connection_breaks_after_confirmation(said: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    told = {"path": "output/there", "files": 1, "bytes": 4, "left_out": []}
    said([(STDOUT, json.dumps(told).encode() + b"\n")])
    assert vars(put(tmp_path / "file")) == told


@pytest.mark.parametrize("answer", [b"", b'{"path": "output/th'])
def test_copy_fails_if_connection_breaks_before_confirmation(said: Any, tmp_path: Path, answer: bytes) -> None:
    (tmp_path / "file").write_text("text")
    said([(STDOUT, answer)] if answer else [])
    with pytest.raises(EngineError, match="output/there cannot be copied: the command can no longer be heard"):
        put(tmp_path / "file")


def test_copy_fails_if_receiver_exits_without_confirmation(said: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    said([], exit_code=0)
    with pytest.raises(EngineError, match="the receiver exited without confirming the copy"):
        put(tmp_path / "file")


def test_exit_code_of_receiver_overrides_its_confirmation(said: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    said([(STDOUT, b"{}"), (STDERR, b"no space left on device\n")], exit_code=1)
    with pytest.raises(EngineError, match="no space left on device"):
        put(tmp_path / "file")


def test_fetch_succeeds_if_connection_breaks_after_complete_archive(said: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    said([(STDOUT, archive(tmp_path / "file"))])
    assert fetch(tmp_path / "here").files == 1
    assert (tmp_path / "here").read_text() == "text"


@pytest.mark.parametrize("size", [512, 1024], ids=["in the middle of a file", "between two"])
def test_fetch_fails_if_archive_is_incomplete(said: Any, tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_text("text")
    said([(STDOUT, archive(tmp_path / "file")[:size])])
    with pytest.raises(EngineError, match="can no longer be heard"):
        fetch(tmp_path / "here")
