"""A worker process: loads the model once, then answers the batches that the server sends over a socket."""

from __future__ import annotations

import ctypes
import json
import marshal
import os
import signal
import socket
import sys
import time
import traceback

from windlass.serving import models
from windlass.serving.predictor import ModelError, Predictor, Request, reason_of
from windlass.serving.process import HEAD, pack
from windlass.serving.settings import Model

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves the socket whose number is the first argument, with the model that the second describes as JSON."""
    server = socket.socket(fileno=int(sys.argv[1]))
    server.set_inheritable(False)
    kept = os.dup(server.fileno())  # never closed, so that the server sees the end of the socket only after the exit
    _close_in_children(server.fileno(), kept)
    _end_with(int(sys.argv[3]))
    started = time.perf_counter()
    try:
        model = models.load(Model(**json.loads(sys.argv[2])))
    except BaseException as error:
        if not isinstance(error, ModelError):
            traceback.print_exc()
        server.sendall(pack(["failed", reason_of(error)]))
        sys.exit(1)
    server.sendall(pack(["ready", time.perf_counter() - started]))
    _serve(server, model)


def _close_in_children(*numbers: int) -> None:
    """Closes the socket in processes that the model forks: they must neither keep the socket open after the end of this
    process nor answer over it.
    """
    opened = list(numbers)

    def close() -> None:
        while opened:  # only once: in children of children, these numbers may belong to other files
            os.close(opened.pop())

    os.register_at_fork(after_in_child=close)


def _end_with(parent: int) -> None:
    """Makes the kernel kill this process when the server dies, even by SIGKILL while the model computes.

    SIGINT and SIGTERM, which the whole process group may receive, are ignored: the server ends its workers after the
    last response.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _serve(server: socket.socket, model: Predictor) -> None:
    with server.makefile("rb", buffering=1 << 16) as requests:
        while head := requests.read(HEAD.size):
            batch = marshal.loads(requests.read(*HEAD.unpack(head)))
            started = time.perf_counter()
            answers = model.answer([Request(*one) for one in batch])
            server.sendall(pack([time.perf_counter() - started, [tuple(one) for one in answers]]))


if __name__ == "__main__":
    main()
