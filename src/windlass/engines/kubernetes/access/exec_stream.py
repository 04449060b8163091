"""Runs a command in a container, with its input and output over a WebSocket of the API server.

The channels are those of `v4.channel.k8s.io`: 0 input, 1 and 2 output, 3 exit status, 4 terminal size. Only v5 can end
the input, but with v5 the API server reports success after it has lost the kubelet. Therefore, a command with input
runs in a wrapper that reports its exit code at the end of standard error. Without that report, a reported success is
not trusted.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

from windlass.engines.kubernetes.access.client import CHANNELS, ENDS_INPUT, Client
from windlass.engines.kubernetes.access.errors import Refused, Unreachable
from windlass.engines.kubernetes.objects import layout
from windlass.errors import EngineError

if TYPE_CHECKING:
    from windlass.engines.base import Terminal

STDIN, STDOUT, STDERR, ENDED, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CHUNK_BYTES: Final = 32 << 10
"""Largest message that API servers accept, in bytes."""
KEPT_BYTES: Final = 8 << 10
"""Bytes of standard error that are kept for error messages."""
REPORTS: Final = """import subprocess, sys
try:
    code = subprocess.call(sys.argv[2:])
except KeyboardInterrupt:
    code = 130
code = code if code >= 0 else 128 - code
sys.stderr.write("\\0windlass %s %d\\n" % (sys.argv[1], code))
sys.exit(code)
"""


Pod = Mapping[str, Any]


class Stream:
    """One command that runs in a pod. Raises Refused, Unreachable, and EngineError if the command cannot be run."""

    def __init__(
        self,
        client: Client,
        pod: Pod,
        command: Sequence[str],
        *,
        stdin: bool = False,
        with_tty: bool = False,
        silence_seconds: float | None = None,
    ) -> None:
        """`silence_seconds`: seconds without data after which the connection counts as broken."""
        query = [("command", word) for word in command]
        query += [("container", layout.container_of(pod)), ("stdout", "true")]
        query += [("tty", "true")] if with_tty else [("stderr", "true")]  # A terminal has a single output stream.
        query += [("stdin", "true")] if stdin else []
        name = pod["metadata"]["name"]
        self._what = f"the command in pod {name}"
        channels = ENDS_INPUT if stdin and not with_tty else CHANNELS
        self._socket = client.websocket(f"{client.path('v1', 'Pod', name)}/exec", query, channels=channels)
        import websocket  # `client.websocket` raises MissingExtra if this package is not installed.

        self._broken = (websocket.WebSocketException, OSError)
        self._socket.settimeout(silence_seconds)
        self.exit_code: int | None = None
        """Exit code of the command; None while it runs."""

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yields the command's output as pairs of channel and data, until the command ends."""
        import websocket

        while self.exit_code is None:
            try:
                kind, frame = self._socket.recv_data_frame(True)
            except self._broken as error:
                raise Unreachable(
                    f"{self._what} is no longer reachable: {error or 'no answer'}", "is its node healthy?"
                ) from error
            if kind == websocket.ABNF.OPCODE_CLOSE:
                raise Unreachable(
                    f"{self._what} is no longer reachable: the connection was closed", "is its node healthy?"
                )
            if kind not in (websocket.ABNF.OPCODE_BINARY, websocket.ABNF.OPCODE_TEXT) or not frame.data:
                continue
            channel, data = frame.data[0], frame.data[1:]
            if channel == ENDED and data:
                self.exit_code = _exit_code(data, self._what)
            elif channel in (STDOUT, STDERR) and data:
                yield channel, bytes(data)

    def code(self) -> int:
        """Returns the exit code of the command. Raises Unreachable if it is unknown."""
        if self.exit_code is None:
            raise Unreachable(f"{self._what} did not report its exit status", "is its node healthy?")
        return self.exit_code

    def write(self, data: bytes) -> None:
        """Sends at most `CHUNK_BYTES` to the command's input."""
        try:
            self._socket.send_binary(bytes([STDIN]) + data)
        except self._broken as error:
            raise Unreachable(f"{self._what} accepts no more input: {error}", "is its node healthy?") from error

    def resize(self, columns: int, rows: int) -> None:
        """Sends the size of the terminal. Errors of a broken connection are ignored: `frames` raises them."""
        size = json.dumps({"Width": columns, "Height": rows}).encode()
        with contextlib.suppress(*self._broken):
            self._socket.send_binary(bytes([RESIZE]) + size)

    def end_input(self) -> None:
        """Sends the end of the input, if the protocol supports it."""
        with contextlib.suppress(*self._broken):
            # The protocols were offered in a raw header, so the socket object does not know which one the server chose.
            if (self._socket.getheaders() or {}).get("sec-websocket-protocol") == "v5.channel.k8s.io":
                self._socket.send_binary(bytes([CLOSE, STDIN]))

    def close(self) -> None:
        """Closes the connection, which ends a command that waits for input."""
        with contextlib.suppress(*self._broken):
            self._socket.close(timeout=1)


class Output:
    """Standard output of a command as a readable file; keeps the end of standard error for error messages."""

    def __init__(self, stream: Stream) -> None:
        self._frames = stream.frames()
        self._rest = b""
        self.complaint = b""

    def read(self, size: int = -1) -> bytes:
        """Returns at most `size` bytes, or no bytes at the end of the output. Raises Unreachable."""
        while not self._rest:
            channel, data = next(self._frames, (STDOUT, b""))
            if channel == STDERR:
                self.complaint = (self.complaint + data)[-KEPT_BYTES:]
            elif not data:
                return b""
            else:
                self._rest = data
        size = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def attach(
    client: Client,
    pod: Pod,
    python: Sequence[str],
    command: Sequence[str],
    stdin: IO[bytes] | None,
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> int:
    """Runs a command connected to these files; returns its exit code. `python` is the interpreter in the pod.

    Raises Unreachable, EngineError.
    """
    # Imported here: a supervisor's pod lacks this module, and needs no terminal.
    from windlass.engines.base import Terminal

    with contextlib.ExitStack() as stack:
        with_tty = isinstance(stdin, Terminal)
        report = None if stdin is None or with_tty else Report(stderr)
        command = command if report is None else report.wrapped(python, command)
        stream = stack.enter_context(
            contextlib.closing(Stream(client, pod, command, stdin=stdin is not None, with_tty=with_tty))
        )
        if isinstance(stdin, Terminal):
            stack.enter_context(raw(stdin, stream.resize))
        code = copy(stream, stdin, stdout, stderr if report is None else report)
        return code if report is None else report.confirmed(code)


class Report:
    """Filter for standard error of a command, which removes the report of the exit code from its end."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._token = secrets.token_hex(8)
        self._mark = f"\0windlass {self._token} ".encode()
        self._held = b""
        """Data that may be the beginning of the report."""
        self._exit_code = b""
        """Exit code in the report; empty before the report has arrived."""

    def wrapped(self, python: Sequence[str], command: Sequence[str]) -> list[str]:
        """Returns the command line that runs `command` and reports its exit code."""
        return [*python, "-c", REPORTS, self._token, *command]

    def write(self, data: bytes) -> int:
        """Passes on the data without the report. Background processes of the command may write data after the
        report.
        """
        passed, mark, rest = (self._held + data).partition(self._mark)
        code, end, after = rest.partition(b"\n")
        if end:
            self._exit_code, passed, self._held = code, passed + after, b""
        elif mark:
            self._held = mark + rest
        else:
            at = passed.rfind(b"\0")
            is_beginning = at >= 0 and self._mark.startswith(passed[at:])
            passed, self._held = (passed[:at], passed[at:]) if is_beginning else (passed, b"")
        self._out.write(passed)
        return len(data)

    def flush(self) -> None:
        """Flushes the underlying file."""
        self._out.flush()

    def confirmed(self, code: int) -> int:
        """Returns the exit code reported by the API server; a success must also be reported by the command. Raises
        Unreachable.
        """
        self._out.write(b"" if self._held.startswith(self._mark) else self._held)
        if code == 0 and self._exit_code.isdigit():
            return int(self._exit_code)
        if code == 0:
            raise Unreachable("the connection to the command was lost before it reported its exit code", "try it again")
        return code


@contextlib.contextmanager
def raw(terminal: Terminal, resize: Callable[[int, int], None]) -> Iterator[None]:
    """Puts the terminal into raw mode, in which each key, including Ctrl-C, is sent at once; restores it afterwards.

    Calls `resize` with the number of columns and rows now and after each change.
    """
    fd = terminal.fileno()

    def tell(*_signal: object) -> None:
        resize(*os.get_terminal_size(fd))

    before, handler = termios.tcgetattr(fd), signal.signal(signal.SIGWINCH, tell)
    try:
        tty.setraw(fd)
        tell()
        yield
    finally:
        signal.signal(signal.SIGWINCH, handler)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def copy(stream: Stream, stdin: IO[bytes] | None, stdout: IO[bytes], stderr: IO[bytes] | Report) -> int:
    """Copies input and output until the command ends; returns its exit code. Raises Unreachable, EngineError."""
    if stdin is not None:
        threading.Thread(target=_feed, args=(stream, stdin), name="input", daemon=True).start()
    for channel, data in stream.frames():
        out: IO[bytes] | Report = stdout if channel == STDOUT else stderr
        out.write(data)
        out.flush()
    return stream.code()


def call(client: Client, pod: Pod, command: Sequence[str], seconds: float) -> tuple[int, bytes, bytes]:
    """Runs a command to its end; returns exit code, output and standard error. Raises EngineError."""
    with contextlib.closing(Stream(client, pod, command, silence_seconds=seconds)) as stream:
        output = Output(stream)
        data = b"".join(iter(output.read, b""))
        return stream.code(), data, output.complaint


def _feed(stream: Stream, source: IO[bytes]) -> None:
    read: Any = getattr(source, "read1", source.read)
    with contextlib.suppress(Refused, Unreachable, ValueError, OSError):
        while data := read(CHUNK_BYTES):
            stream.write(data)
        stream.end_input()


def _exit_code(data: bytes, what: str) -> int:
    """Returns the exit code in the final status of a command. Raises EngineError if the command did not run."""
    try:
        status = json.loads(data)
        if status.get("status") == "Success":
            return 0
        for cause in (status.get("details") or {}).get("causes", ()):
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise Unreachable(
            f"{what} has ended, and its status was cut off: {data[:100]!r}", "is its node healthy?"
        ) from error
    raise EngineError(f"{what} could not be run: {status.get('message', status)}", "is the program in the image?")
