"""Node process of a pod: a child of the pod's main process (`pod.py`) that runs one attempt."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from windlass.worker import fork_safety, pod_reuse, process, resume
from windlass.worker.external_launcher import LaunchedNode
from windlass.worker.masking import masked
from windlass.worker.node import Node
from windlass.worker.pod_log import PodLog
from windlass.worker.protocol import NODE_TAG, POD, STACKS_SIGNAL, NodeSpec, WorkerFailed
from windlass.worker.rank_start import ColdStart, Start, WarmStart
from windlass.worker.root_cause import first_cause

if TYPE_CHECKING:
    from windlass.worker.fork_reset import ForkReset

NAME_SECONDS = 600.0
"""Seconds within which the name of the first pod must resolve. The name exists once the pod has an address, after its
image pull."""
NAME_PAUSE_SECONDS = 0.2
STORE_SECONDS = 2.0
"""Seconds that forked ranks on other nodes wait until rank 0 listens. A script may connect to another address, or
later."""
STORE_PAUSES = (0.005, 0.1)
"""Shortest and longest pause between attempts to connect to rank 0, in seconds. 1,000 pods may try at once."""
LOG_SECONDS = 5.0
OF_OPERATORS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that the operator of a PyTorchJob sets in the pod; removed, because ranks get those of the
job's launcher."""
QUOTED_BYTES = 64 << 10
FAILURE_FILE = "WINDLASS_FAILURE_FILE"
"""Environment variable with the path of the file from which the platform reads why the container failed."""


class Imports:
    """Modules imported in the pod's main process, from which ranks can be forked."""

    def __init__(self, reset: ForkReset) -> None:
        self.reset = reset

    def start(self, spec: NodeSpec) -> Start:
        """Returns how this node starts its ranks: by forking if forks equal new interpreters, else as new processes."""
        other = self.reset.watch.differs({**os.environ, **spec.env})
        if other or spec.launch is not None or fork_safety.why_unsafe() or fork_safety.shadowed(spec.script):
            return ColdStart()
        first, port = spec.env.get("MASTER_ADDR", ""), spec.env.get("MASTER_PORT")
        if spec.ranks[0].rank and "torch" in sys.modules and port is not None:
            return WarmStart(self.reset, partial(_wait_for_store, first, int(port)))
        return WarmStart(self.reset)


def start(spec: NodeSpec, base: str, log: PodLog, imports: Imports | None, report_to: int) -> int:
    """Starts the node as a child of this process, and returns its process id. Raises OSError.

    After its ranks have ended, the node writes a line of JSON to descriptor `report_to` and exits. The line contains
    the exit code, which is 0 if all ranks succeeded, and the number of log lines. The caller must have blocked the
    signals.
    """
    birth = process.Birth()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        birth()
        for number in pod_reuse.HANDLED_SIGNALS:
            # these handlers serve until the node installs its own
            signal.signal(number, signal.SIG_IGN if number == STACKS_SIGNAL else _leave)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, pod_reuse.HANDLED_SIGNALS)
        code = _run(spec, base, log, imports)
        os.write(report_to, json.dumps({"code": code, "lines": log.lines}).encode() + b"\n")
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException as error:
        log.line(traceback.format_exc().rstrip())
        report_failure(log, f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _run(spec: NodeSpec, base: str, log: PodLog, imports: Imports | None) -> int:
    """Runs the node and returns its exit code."""
    output = spec.path("out")
    with open(output, "wb", buffering=0) as file:  # receives output of a launcher, and tracebacks of this process
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for name in OF_OPERATORS:
        os.environ.pop(name, None)
    make_folders(spec.env)
    _wait_for_name(spec, base, log)
    if spec.launch is not None and spec.launch.port is not None:
        for peer in spec.launch.peers:
            _wait_for_port(peer, spec.launch.port, log)
    [spec] = resume.add_resume_arguments([spec])  # each pod searches for the checkpoint by itself
    how = imports.start(spec) if imports is not None else ColdStart()
    node = (LaunchedNode if spec.launch is not None else Node)(spec, None, how, log.put, log.budget)
    code = node.run()
    if code and (path := os.environ.get(FAILURE_FILE)):
        _explain(path, node)
    with open(output, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - QUOTED_BYTES))
        log.put(POD, masked(file.read(), node.secrets))
    log.count()
    return code


def _explain(path: str, node: Node) -> None:
    """Writes why the node failed to the file that the platform shows to the user."""
    found = first_cause(node.failures())
    if found is None:
        return
    try:
        with open(path, "w") as file:
            file.write(f"rank {found.rank}: {found.summary}\n")
    except OSError as error:
        print(f"{path} cannot be written: {error}", file=sys.stderr, flush=True)


def report_failure(log: PodLog, message: str = "") -> None:
    """Reports that the worker exits before its ranks have ended. Only needed on platforms that deliver logs seconds
    late.

    Without a `message`, the worker was asked to end, or the reason is reported elsewhere.
    """
    path = os.environ.get(FAILURE_FILE)
    if not path:
        return
    event = WorkerFailed(time.time(), message)
    log.put(NODE_TAG, json.dumps(event.to_json()).encode() + b"\n")
    if message:
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(message)


def make_folders(env: Mapping[str, str]) -> None:
    """Creates the output and checkpoint folders. Raises OSError if the output folder cannot be created.

    Errors of the checkpoint folder are only printed, because a network file system may fail temporarily: ranks retry
    and report persistent errors.
    """
    os.makedirs(env["WINDLASS_OUTPUT_DIR"], exist_ok=True)
    checkpoints = env["WINDLASS_CHECKPOINT_DIR"]
    if "://" in checkpoints:
        return
    try:
        os.makedirs(checkpoints, exist_ok=True)
    except OSError as error:
        print(f"the folder of checkpoints cannot be made: {error}", file=sys.stderr, flush=True)


def _wait_for_name(spec: NodeSpec, base: str, log: PodLog) -> None:
    """Waits until the name of the first pod can be resolved, which requires that the pod has an address. Raises
    OSError.

    The name disappears when the pod ends, so there is no wait if the first pod has already succeeded without a
    rendezvous.
    """
    first = spec.env.get("MASTER_ADDR") or spec.env["WINDLASS_MASTER_ADDR"]
    first_ended = os.path.join(base, f"{pod_reuse.FIRST_ENDED}{spec.attempt}")

    def look() -> None:
        if not os.path.exists(first_ended):
            socket.getaddrinfo(first.encode(), None)  # bytes, because a string would import the IDNA codec

    _wait(look, f"the name {first}", "is not known", log)


def _wait_for_port(name: str, port: int, log: PodLog) -> None:
    """Waits until the launcher of this pod can connect to another pod. Raises OSError."""

    def look() -> None:
        socket.create_connection((name, port), LOG_SECONDS).close()

    _wait(look, f"port {port} of {name}", "is closed", log)


def _wait_for_store(host: str, port: int) -> None:
    """Waits briefly until rank 0 listens. If torch's first connection were refused, it would pause for a quarter of a
    second.

    Forked ranks of different nodes arrive within milliseconds.
    """
    give_up, (pause, most) = time.monotonic() + STORE_SECONDS, STORE_PAUSES
    # Without an address, the ranks fail by themselves.
    with contextlib.suppress(OSError):
        # Resolved once, to spare the DNS server.
        found = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)
        address = str(found[0][4][0])
        while time.monotonic() < give_up:
            try:
                socket.create_connection((address, port), STORE_SECONDS).close()
                return
            except OSError:
                time.sleep(pause)
                pause = min(most, pause * 1.2)


def _wait(look: Callable[[], object], what: str, trouble: str, log: PodLog) -> None:
    """Calls `look` until it no longer raises OSError, and logs at intervals. Raises OSError after `NAME_SECONDS`."""
    begun = logged_at = time.monotonic()
    while True:
        try:
            look()
            return
        except OSError as error:
            now = time.monotonic()
            if now - begun > NAME_SECONDS:
                raise OSError(f"{what} {trouble} after {NAME_SECONDS:.0f} s: {error.strerror}") from error
            if now - logged_at > LOG_SECONDS:
                logged_at = now
                log.line(f"waiting for {what}, {now - begun:.0f} s so far: {error.strerror}")
        time.sleep(NAME_PAUSE_SECONDS)
