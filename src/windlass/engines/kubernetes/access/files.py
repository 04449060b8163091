"""Copies files from and to a pod, with a program whose source is passed to the pod's interpreter."""

from __future__ import annotations

import contextlib
import json
import tarfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from windlass.engines.kubernetes.access import exec_stream
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.exec_stream import Output, Pod, Stream
from windlass.errors import EngineError, UsageError
from windlass.worker import tarpipe

OnProgress = Callable[[int], None]

SILENCE_SECONDS: Final = 120.0
"""Most seconds without any data while files are copied."""


class PodFiles:
    """Files of pods, addressed by absolute paths."""

    def __init__(self, client: Client, python: Sequence[str], hint: str) -> None:
        """`python` is the command of the interpreter in the pods; `hint` is added to errors about paths."""
        self._client = client
        self._python = python
        self._hint = hint

    def fetch(self, pod: Pod, path: str, local: Path, on_progress: OnProgress) -> tarpipe.Received:
        """Copies a path of a pod to this machine. Raises EngineError, OSError."""
        with self._stream(pod, "send", path) as stream:
            output = Output(stream)
            try:
                found = tarpipe.receive(output, str(local), Path(path).name, on_progress)
            except tarfile.TarError as error:
                _rest(output)
                raise self._failed(output, path, str(error)) from error
            _rest(output)  # The archive is complete, so a connection that breaks now does no harm.
            if stream.exit_code:
                raise self._failed(output, path, f"exit code {stream.exit_code}")
            return found

    def put(self, pod: Pod, local: Path, path: str, on_progress: OnProgress) -> tarpipe.Received:
        """Copies the local path `local` to a path in a pod. Raises EngineError, OSError."""
        program = ("receive", path, local.resolve().name)
        with self._stream(pod, *program, stdin=True) as stream:
            output = Output(stream)
            broken: list[Exception] = []

            def send() -> None:
                try:
                    tarpipe.send(str(local), _Counted(stream, output, on_progress))  # type: ignore[arg-type]
                    stream.end_input()
                except _Rejected:
                    stream.end_input()
                except (EngineError, OSError) as error:
                    broken.append(error)
                    stream.close()

            # A thread sends the data, since error messages of the receiver must be read at the same time.
            threading.Thread(target=send, name="sender", daemon=True).start()
            answer, error = _rest(output)
            if stream.exit_code:
                raise self._failed(output, path, f"exit code {stream.exit_code}")
            found = parsed(answer)
            if found is None:
                why = broken[0] if broken else error or "the receiver exited without confirming the copy"
                raise self._failed(output, path, str(why)) from error
            received = tarpipe.Received(str(found["path"]))
            received.files, received.bytes, received.left_out = found["files"], found["bytes"], found["left_out"]
            return received

    def _stream(self, pod: Pod, *words: str, stdin: bool = False) -> contextlib.closing[Stream]:
        """Starts the program that sends or receives, passed as source text: not every image contains Windlass."""
        command = [*self._python, "-c", Path(tarpipe.__file__).read_text(encoding="utf-8"), *words]
        return contextlib.closing(Stream(self._client, pod, command, stdin=stdin, silence_seconds=SILENCE_SECONDS))

    def _failed(self, output: Output, path: str, otherwise: str) -> EngineError:
        return EngineError(f"{path} cannot be copied: {last_line(output.complaint, otherwise)}", self._hint)


def require_claim(client: Client, name: str, of: str = "") -> None:
    """Raises UsageError if a claim does not exist: a pod that mounts it would wait forever."""
    if client.get_if_exists("v1", "PersistentVolumeClaim", name) is None:
        what = f"claim {name}{of} is gone, and its results with it" if of else f"there is no claim {name}"
        more = "" if of else "; the target names one of data sets in data:, and --claim another"
        raise UsageError(what, f"see: kubectl -n {client.namespace} get pvc{more}")


def _rest(output: Output) -> tuple[bytes, EngineError | None]:
    """Returns the remaining output, and the error of the connection if it broke.

    The exit code arrives last, and the connection may be closed before it.
    """
    pieces: list[bytes] = []
    try:
        pieces.extend(iter(output.read, b""))
    except EngineError as error:
        return b"".join(pieces), error
    return b"".join(pieces), None


def parsed(answer: bytes) -> Mapping[str, Any] | None:
    """Returns the JSON object that a program printed as its last line, or None if it is incomplete."""
    try:
        found = json.loads(answer.splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return found if isinstance(found, dict) else None


class _Rejected(Exception):
    """The receiver has reported an error."""


class _Counted:
    """Input of a command as a writable file, which reports the number of bytes sent, and stops if the receiver has
    failed.
    """

    def __init__(self, stream: Stream, answer: Output, on_progress: OnProgress) -> None:
        self._stream = stream
        self._answer = answer
        self._on_progress = on_progress
        self._bytes = 0

    def write(self, data: bytes) -> int:
        """Sends all data. Raises Unreachable, _Rejected."""
        for at in range(0, len(data), exec_stream.CHUNK_BYTES):
            if self._answer.complaint:
                raise _Rejected
            self._stream.write(bytes(data[at : at + exec_stream.CHUNK_BYTES]))
        self._bytes += len(data)
        self._on_progress(self._bytes)
        return len(data)


def last_line(stderr: bytes, otherwise: str) -> str:
    """Returns the last line of an output, or `otherwise` if it is empty."""
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else otherwise
