"""Starts worker processes, and encodes the messages between them and the server."""

from __future__ import annotations

import json
import marshal
import os
import socket
import struct
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from windlass.serving.settings import Settings, gpu_names

HEAD = struct.Struct("!Q")
"""Header of a message: the number of bytes that follow, which are a value in the format of marshal. Unlike pickle,
marshal calls no code when it loads a value. Its format depends on the interpreter, which both processes share."""


def pack(value: Any) -> bytes:
    """Returns a message with a value made of lists, tuples, strings, bytes, numbers and None."""
    content = marshal.dumps(value)
    return HEAD.pack(len(content)) + content


def start(settings: Settings, number: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts the worker of a number from 0, and returns it with the server's end of its socket. Raises OSError.

    The process sees one GPU, if there are any. Unless OMP_NUM_THREADS is set, it gets its share of the cores as OpenMP
    threads.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    gpus = gpu_names()
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // settings.workers)))
    ours, theirs = socket.socketpair()
    with theirs:
        words = str(theirs.fileno()), json.dumps(asdict(settings.model)), str(os.getpid())
        command = [sys.executable, "-m", "windlass.serving.worker", *words]
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, pass_fds=(theirs.fileno(),))
        except OSError:
            ours.close()
            raise
    return process, ours
