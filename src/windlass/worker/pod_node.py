"""The node process of a pod: one attempt, in a child of the pod's first process (`pod.py`), which waits for its end."""

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
"""How long the name of the first pod may take to be known: until it has an address, which may wait for an image."""
NAME_PAUSE_SECONDS = 0.2
STORE_SECONDS = 2.0
"""How long forks of another node than the first wait for rank 0; a script may meet elsewhere, or later."""
STORE_PAUSES = (0.005, 0.1)
"""Between two looks for it: first, and at most. A thousand pods may look at once."""
LOG_SECONDS = 5.0
OF_OPERATORS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that the operator of a PyTorchJob sets in the pod; ranks have those of their job's launcher, or none."""
QUOTED_BYTES = 64 << 10
FAILURE_FILE = "WINDLASS_FAILURE_FILE"
"""Variable: where the platform of this container reads why it has failed."""


class Imports:
    """What the first process of the pod has imported for its ranks, which are then its forks."""

    def __init__(self, reset: ForkReset) -> None:
        self.reset = reset

    def start(self, spec: NodeSpec) -> Start:
        """How this node starts its ranks: by forks where they are as good as new interpreters."""
        other = self.reset.watch.differs({**os.environ, **spec.env})
        if other or spec.launch is not None or fork_safety.why_unsafe() or fork_safety.shadowed(spec.script):
            return ColdStart()
        first, port = spec.env.get("MASTER_ADDR", ""), spec.env.get("MASTER_PORT")
        if spec.ranks[0].rank and "torch" in sys.modules and port is not None:
            return WarmStart(self.reset, partial(_wait_for_store, first, int(port)))
        return WarmStart(self.reset)


def start(spec: NodeSpec, base: str, log: PodLog, imports: Imports | None, told: int) -> int:
    """Start the node as a child of this process; gives its pid. Raises OSError.

    Once it has ended its ranks, it writes a line of JSON to descriptor `told`: its exit code, 0 if all of them have
    succeeded, and how many lines of the log were written. Then it exits. Signals must be blocked.
    """
    birth = process.Birth()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        birth()
        for number in pod_reuse.HANDLED_SIGNALS:
            signal.signal(number, signal.SIG_IGN if number == STACKS_SIGNAL else _leave)  # until there are ranks
        signal.pthread_sigmask(signal.SIG_UNBLOCK, pod_reuse.HANDLED_SIGNALS)
        code = _run(spec, base, log, imports)
        os.write(told, json.dumps({"code": code, "lines": log.lines}).encode() + b"\n")
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
    """Run the node; gives the exit code."""
    output = spec.path("out")
    with open(output, "wb", buffering=0) as file:  # of a launcher, and tracebacks of this process
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for name in OF_OPERATORS:
        os.environ.pop(name, None)
    make_folders(spec.env)
    _wait_for_name(spec, base, log)
    if spec.launch is not None and spec.launch.port is not None:
        for peer in spec.launch.peers:
            _wait_for_port(peer, spec.launch.port, log)
    [spec] = resume.add_resume_arguments([spec])  # each pod finds the checkpoint by itself
    how = imports.start(spec) if imports is not None else ColdStart()
    node = (LaunchedNode if spec.launch is not None else Node)(spec, None, how, log.put)
    code = node.run()
    if code and (path := os.environ.get(FAILURE_FILE)):
        _explain(path, node)
    with open(output, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - QUOTED_BYTES))
        log.put(POD, masked(file.read(), node.secrets))
    log.count()
    return code


def _explain(path: str, node: Node) -> None:
    """Write why the node has failed to the file that its platform shows to the user."""
    found = first_cause(node.failures())
    if found is None:
        return
    try:
        with open(path, "w") as file:
            file.write(f"rank {found.rank}: {found.summary}\n")
    except OSError as error:
        print(f"{path} cannot be written: {error}", file=sys.stderr, flush=True)


def report_failure(log: PodLog, message: str = "") -> None:
    """Report that the worker ends without having ended its ranks, where its platform delivers the log seconds late.

    Without a `message`, it was told to end, or the reason is known otherwise.
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
    """Make the folders of output and checkpoints. Raises OSError for that of output.

    A network file system may fail for a while to look at the folder of checkpoints: the ranks repeat that themselves,
    and name what stays.
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
    """Wait until the first pod's name is known, which is made when the pod has an address. Raises OSError.

    Its name goes with its end. Where it needed no rendezvous and has ended already, there is nothing to wait for.
    """
    first = spec.env.get("MASTER_ADDR") or spec.env["WINDLASS_MASTER_ADDR"]
    first_ended = os.path.join(base, f"{pod_reuse.FIRST_ENDED}{spec.attempt}")

    def look() -> None:
        if not os.path.exists(first_ended):
            socket.getaddrinfo(first.encode(), None)  # for a string, the codec of other names would be imported

    _wait(look, f"the name {first}", "is not known", log)


def _wait_for_port(name: str, port: int, log: PodLog) -> None:
    """Wait until another pod lets the launcher of this one in. Raises OSError."""

    def look() -> None:
        socket.create_connection((name, port), LOG_SECONDS).close()

    _wait(look, f"port {port} of {name}", "is closed", log)


def _wait_for_store(host: str, port: int) -> None:
    """Wait for a moment until rank 0 listens: torch that is refused tries again after a quarter of a second or more.

    Forks have nothing to import, so those of different nodes come to that point within milliseconds of each other.
    """
    give_up, (pause, most) = time.monotonic() + STORE_SECONDS, STORE_PAUSES
    with contextlib.suppress(OSError):  # without an address the ranks fail by themselves
        found = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)  # once, for the sake of the DNS
        address = str(found[0][4][0])
        while time.monotonic() < give_up:
            try:
                socket.create_connection((address, port), STORE_SECONDS).close()
                return
            except OSError:
                time.sleep(pause)
                pause = min(most, pause * 1.2)


def _wait(look: Callable[[], object], what: str, trouble: str, log: PodLog) -> None:
    """Wait until `look` raises no OSError any more, and log that at intervals. Raises OSError when it is too late."""
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
