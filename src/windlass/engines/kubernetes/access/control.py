"""Sends a supervisor's requests to pods, through exec or over the connections of their order clients."""

from __future__ import annotations

import base64
import inspect
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol

from windlass.engines.kubernetes.access import exec_stream
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.exec_stream import Pod
from windlass.engines.kubernetes.access.order_server import OrderServer
from windlass.engines.kubernetes.objects import layout
from windlass.errors import EngineError
from windlass.worker import order_protocol, pod_reuse

_FIRST_ENDED: Final = "import sys; open(sys.argv[1], 'w').close()"
_PROGRAM: Final = f"{layout.TRAVEL}/windlass/worker/pod_reuse.py"
_SENDERS: Final = 32
"""Most exec commands that run at once."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a pod: the arguments of `pod_reuse.carry_out`."""

    words: tuple[str, ...]

    @classmethod
    def signal(cls, attempt: int, number: signal.Signals) -> Request:
        """Returns a request to send a signal to the pod's first process, unless the pod runs a later attempt."""
        return cls(("signal", str(attempt), str(int(number))))

    @classmethod
    def first_ended(cls, attempt: int) -> Request:
        """Returns a request to record that the attempt's first pod has succeeded, and that its name will no longer
        resolve.
        """
        return cls(("first-ended", str(attempt)))

    @classmethod
    def order(cls, attempt: int, spec: bytes) -> Request:
        """Returns a request to start the next attempt; `spec` is the node spec, as `protocol.pack` encodes it."""
        return cls(("order", base64.b64encode(spec).decode(), str(attempt)))

    @classmethod
    def leave(cls) -> Request:
        """Returns a request to end the pod, since no attempt follows."""
        return cls(("leave",))

    @classmethod
    def hold(cls) -> Request:
        """Returns a request to keep the pod alive until its outputs are collected."""
        return cls(("hold",))

    @classmethod
    def push_outputs(cls, pod: str, attempt: int, folder: str) -> Request:
        """Returns a request to send the files of a folder to the supervisor, which must run in the cluster."""
        return cls(("push-outputs", pod, str(attempt), folder))

    @property
    def num_bytes(self) -> int:
        """Size of the request in bytes."""
        return sum(map(len, self.words))


class PodControl(Protocol):
    """Interface for sending requests to the pods of a run."""

    @property
    def max_bytes(self) -> int:
        """Largest size of a request, in bytes."""

    @property
    def events(self) -> OrderServer | None:
        """Server to which the pods send their events; None if the supervisor must follow their logs instead."""

    def call_all(
        self, requests: Sequence[tuple[Pod, Request]], seconds: float
    ) -> Iterator[tuple[int, int | EngineError]]:
        """Sends requests to pods; yields the number of each request with its exit code, or with an error, as answers
        arrive.

        `seconds` is the time limit of each request.
        """


class ExecControl:
    """Pod control through exec, for a supervisor outside the cluster."""

    events = None
    max_bytes = 16 << 10
    """Largest size of a request, in bytes. Requests are part of URLs, and servers limit the length of URLs."""

    def __init__(self, client: Client, python: str) -> None:
        """`python` is the interpreter in the pods."""
        self._client = client
        self._python = python

    def call_all(
        self, requests: Sequence[tuple[Pod, Request]], seconds: float
    ) -> Iterator[tuple[int, int | EngineError]]:
        """Sends each request to its pod; yields its number and the exit code, or the error, as each answer arrives."""

        def call(pod: Pod, request: Request) -> int | EngineError:
            try:
                return exec_stream.call(self._client, pod, self.command(request), seconds)[0]
            except EngineError as error:
                return error

        with ThreadPoolExecutor(max(1, min(_SENDERS, len(requests)))) as pool:
            numbers = {pool.submit(call, *one): number for number, one in enumerate(requests)}
            for future in as_completed(numbers):
                yield numbers[future], future.result()

    def command(self, request: Request) -> list[str]:
        """Returns the command line that carries out a request."""
        what, *of = request.words
        if what == "signal":
            return [self._python, "-c", signalling(), layout.WORK, *of]
        if what == "first-ended":
            return [self._python, "-c", _FIRST_ENDED, f"{layout.WORK}/{pod_reuse.FIRST_ENDED}{of[0]}"]
        return [self._python, "-I", "-S", _PROGRAM, layout.WORK, *request.words]


class ConnectionControl:
    """Pod control over the connections of an order server, for a supervisor in the cluster."""

    max_bytes = order_protocol.MAX_ORDER_BYTES

    def __init__(self, server: OrderServer) -> None:
        self.events: OrderServer = server

    def call_all(
        self, requests: Sequence[tuple[Pod, Request]], seconds: float
    ) -> Iterator[tuple[int, int | EngineError]]:
        """Sends each request to its pod; yields its number and the exit code, or the error, as each answer arrives."""
        return self.events.call_all([(pod["metadata"]["name"], request.words) for pod, request in requests], seconds)


@cache
def signalling() -> str:
    """Returns a program that is equivalent to `pod_reuse.signal_first`, which may not be unpacked in the pod yet."""
    function = inspect.getsource(pod_reuse.signal_first)
    wanted = ("NEXT", "SIGNALLED", "STILL_ENDING_SECONDS", "PAUSE_SECONDS")
    names = "\n".join(f"{name} = {getattr(pod_reuse, name)!r}" for name in wanted)
    return f"import os, sys, time\n{names}\n{function}\nsignal_first(sys.argv[1], *map(int, sys.argv[2:]))\n"
