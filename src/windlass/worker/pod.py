"""Main process of a pod: runs the node of each attempt in a child (`pod_node.py`), and waits between attempts.

After a failure, the pod waits for the next attempt (`pod_reuse.py`). If it has outputs to fetch, it waits until the
supervisor has received them (`outputs.py`). A pod that has no index in the attempt for which it was created is a spare,
and waits from the start.

If the pod starts its ranks without an external launcher, this process imports their modules in advance, and the ranks
are forks that need no imports. If the supervisor runs in the cluster, another child (`order_client.py`) receives its
requests for as long as the pod exists.

`pod_log.py` describes the output of the pod's processes.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from typing import Any, NoReturn

if __name__ == "__main__":  # runs as `python -I -S …/worker/pod.py` in a copied folder
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from windlass.worker import environ_watch, event_feed, import_ahead, output_size, pod_node, pod_reuse, process
from windlass.worker.masking import masked, secret_values
from windlass.worker.pod_log import PodLog
from windlass.worker.protocol import ATTEMPT, POD, STACKS_SIGNAL, NodeSpec, unpack

TOKEN_BYTES = 8
DELIVERY_SECONDS = 1.0
"""Seconds within which the last events must be sent when the pod ends. After that, the supervisor reads them from the
pod's log."""
FOR_EVER = float("inf")
PRELOAD = "WINDLASS_PRELOAD"
"""Environment variable that makes the pod fork several ranks from this process, even if it runs only one attempt."""
REPORT_BYTES = 1 << 20
REAP_MS = 1000
"""Milliseconds between two searches for exited orphans while a node runs."""


class Pod:
    """Runs attempts, one at a time, until the pod gets no further attempt."""

    def __init__(
        self, folder: str, log: PodLog, client: list[process.Identity], imports: pod_node.Imports | None
    ) -> None:
        """`folder` is for the files of an attempt; the files of `pod_reuse.py` are next to it. `client` is the order
        client's process.
        """
        self.folder = folder
        self.base = os.path.dirname(folder)
        self.log = log
        self.client = client
        self.imports = imports
        self._node: int | None = 0
        """Process id of the node. 0 before an attempt has started its node, None between attempts."""
        self._is_ending = False
        """Whether a sender other than the supervisor has signalled the node, which means that the pod is being
        deleted."""
        self._expected: set[int] = set()
        """Signals that the supervisor has announced and that have not arrived."""
        self._must_exit = False
        self._keeps_outputs = False
        """Whether the pod waits until the supervisor has received the outputs."""
        self._code_since = time.time()
        """Unix seconds at which the code was unpacked. Files in the code folder that change later are results."""
        self._is_deleted = False
        """Whether the pod is being deleted, and waits in its grace period until its outputs are transferred."""

    def run(self, nodes: str | None) -> int:
        """Runs the attempt of the file `nodes`, or waits for one, and runs all later attempts. Returns the last exit
        code.
        """
        for number in pod_reuse.HANDLED_SIGNALS:
            signal.signal(number, self._take_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, pod_reuse.HANDLED_SIGNALS)
        if nodes is not None:
            code, reuse_wait_seconds = self._run_attempt(nodes)
        else:
            self._node, code, reuse_wait_seconds = None, 0, FOR_EVER
        while (
            reuse_wait_seconds
            and (path := pod_reuse.wait(self.base, reuse_wait_seconds, lambda: self._must_exit)) is not None
        ):
            if self._is_deleted:
                break
            code, reuse_wait_seconds = self._run_attempt(self._take_order(path))
        return code

    def _take_signal(self, number: int, _frame: object) -> None:
        """Forwards a signal to the node. Without a node, the signal ends the pod.

        A signal of the supervisor that arrives between attempts is ignored: it was sent before the supervisor knew that
        the attempt had ended.
        """
        if self._node:
            # The supervisor writes a mark for each signal before it sends the signal.
            self._is_ending |= not pod_reuse.clear_mark(self.base, number) and number != STACKS_SIGNAL
            process.send(self._node, number)
        elif number != STACKS_SIGNAL:
            if self._node == 0:
                raise SystemExit(128 + number)
            if pod_reuse.clear_mark(self.base, number) or number in self._expected:
                self._expected.discard(number)
                return
            # If one pod of a Job is lost, the Job controller deletes the others, but the supervisor may still fetch
            # their outputs.
            if self._keeps_outputs and not pod_reuse.is_released(self.base):
                self._is_deleted = True
                pod_reuse.refuse_orders(self.base)
            else:
                self._must_exit = True

    def _update_marks(self) -> bool:
        """Returns whether the pod is being deleted. Marks that remain belong to signals that have not arrived."""
        pod_reuse.block()
        self._expected = pod_reuse.clear_marks(self.base)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, pod_reuse.HANDLED_SIGNALS)
        return self._is_ending

    def _take_order(self, path: str) -> str:
        """Accepts the next attempt, and returns the path of its node specs."""
        with gzip.open(path) as file:
            number = int(json.load(file)["attempt"])
        nodes = os.path.join(self.base, pod_reuse.taken(number))
        pod_reuse.clear_marks(self.base)
        self._node = 0  # later signals are for the new attempt
        os.rename(path, nodes)
        self.log.put(ATTEMPT, b"%d\n" % number)
        return nodes

    def _run_attempt(self, nodes: str) -> tuple[int, float]:
        """Runs one attempt. Returns the exit code, and for how many seconds the pod then waits for the next attempt."""
        shutil.rmtree(self.folder, ignore_errors=True)  # removes files of the previous attempt
        spec = _spec(self.folder, nodes, _place(), self._code_since)
        log = self.log
        log.begin(spec.attempt, os.urandom(TOKEN_BYTES).hex())
        log.feed = event_feed.FeedWriter(self.base, spec.attempt, log.token) if self.client else None
        pid, code, lines = self._run_node(spec)
        if lines is None:
            if code < 0:
                log.line(f"the process of the node was killed by {signal.Signals(-code).name}")
            pod_node.report_failure(log)
            return (128 - code if code < 0 else code), 0.0
        log.lines = lines
        is_ending = self._update_marks()
        self._keeps_outputs = not is_ending and _has_outputs(spec)
        reuse_wait_seconds = spec.reuse_wait_seconds if code and not is_ending else 0.0
        # If this pod fails, the Job controller deletes the other pods, so this pod waits until the supervisor can fetch
        # their outputs.
        is_awaited = bool(code and spec.outputs_max and len(spec.ranks) < spec.world_size and not is_ending)
        if self._keeps_outputs or is_awaited:
            others = spec.grace_seconds if is_awaited else 0.0  # ranks of other nodes may save for this long
            reuse_wait_seconds = max(reuse_wait_seconds, pod_reuse.OUTPUTS_SECONDS + others)
        if reuse_wait_seconds:
            log.put(ATTEMPT, b"over %s\n" % log.token.encode())
        if log.feed is not None:
            log.feed.close(event_feed.OVER if reuse_wait_seconds else event_feed.END)
            log.feed = None
            if not reuse_wait_seconds:
                self._await_delivery()
        # The node is reaped last: its exit takes as long as a fork, and the supervisor starts the next attempt
        # meanwhile.
        with contextlib.suppress(ChildProcessError):  # it was reaped with the orphans
            os.waitpid(pid, 0)
        return code, reuse_wait_seconds

    def _run_node(self, spec: NodeSpec) -> tuple[int, int, dict[str, int] | None]:
        """Runs the node in a child until its ranks have ended. Returns the child's process id, exit code, and number of
        log lines by tag (None if the child exited before its ranks).
        """
        read, write = os.pipe()
        self._is_ending = False
        pod_reuse.block()
        try:
            self._node = pid = pod_node.start(spec, self.base, self.log, self.imports, write)
        finally:
            os.close(write)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, pod_reuse.HANDLED_SIGNALS)
        try:
            code, report = self._await_node(read)
        finally:
            os.close(read)
        self._node = None
        if not report:
            return pid, code, None
        found = json.loads(report)
        return pid, found["code"], found["lines"]

    def _await_node(self, source: int) -> tuple[int, bytes]:
        """Waits until the node reports on the pipe `source` that its ranks have ended. Returns 0 and the report.

        If the node was killed, returns its exit code and no report.
        """
        report, poll = b"", select.poll()
        poll.register(source, select.POLLIN)
        while not report.endswith(b"\n"):
            is_ready = bool(poll.poll(REAP_MS))
            data = os.read(source, REPORT_BYTES) if is_ready else b""
            report += data
            if not data and (code := self._collect(wait=is_ready)) is not None:
                while poll.poll(0) and (data := os.read(source, REPORT_BYTES)):
                    report += data  # written after the last poll
                return (0, report) if report.endswith(b"\n") else (code, b"")
        return 0, report

    def _collect(self, *, wait: bool) -> int | None:
        """Reaps exited children. Returns the exit code of the node if it is among them, else None; with `wait`, waits
        for the node.

        The children include all orphans of the container, whose new parent is PID 1, and the order client.
        """
        while (found := os.waitpid(-1, 0 if wait else os.WNOHANG))[0]:
            if found[0] == self._node:
                return os.waitstatus_to_exitcode(found[1])
        return None

    def _await_delivery(self) -> None:
        """Waits until the order client has sent the last events. The order client would be killed when this process
        exits.
        """
        give_up = time.monotonic() + DELIVERY_SECONDS
        while time.monotonic() < give_up and any(_is_running(pid, ticks) for pid, ticks in self.client):
            time.sleep(pod_reuse.PAUSE_SECONDS)


def _has_outputs(spec: NodeSpec) -> bool:
    """Whether the node has outputs that the supervisor will fetch."""
    most = spec.outputs_max
    return bool(most) and output_size.measure(spec.env["WINDLASS_OUTPUT_DIR"]).is_within(most)


def _is_running(pid: int, ticks: int) -> bool:
    found = process.stat(pid)
    return found is not None and found.start_ticks == ticks and found.state != "Z"


# -- the process ------------------------------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    """Runs the pod with the arguments `FOLDER NODES`, where NODES is the file of node specs. Returns 0 if all ranks
    succeeded.

    With `FOLDER NODES STATE`, the pod continues after `_execute`, which has written its state to descriptor STATE.
    """
    log = PodLog(os.dup(1))
    try:
        folder, nodes, *state = argv
        if state:
            with open(int(state[0])) as file:
                return _continue(folder, nodes, json.load(file), log)
        signal.signal(signal.SIGTERM, _leave)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # a SIGTERM may have arrived while blocked
        return _begin(folder, nodes, log)
    except SystemExit:
        pod_node.report_failure(log)
        raise
    except Exception as error:
        log.line(traceback.format_exc().rstrip())
        pod_node.report_failure(log, f"{type(error).__name__}: {error}")
        return 1


def _leave(_number: int, _frame: object) -> None:
    """Exits on SIGTERM, because PID 1 of a container ignores signals without a handler."""
    raise SystemExit(128 + signal.SIGTERM)


def _begin(folder: str, nodes: str, log: PodLog) -> int:
    """Runs the pod from the attempt for which it was created."""
    spec, is_spare = _first_spec(nodes)
    client = _start_order_client(folder, spec.attempt, log)
    if is_spare:
        log.line("spare pod: waiting to replace a lost pod")
    shares_imports = PRELOAD in os.environ and len(spec.ranks) > 1
    if spec.warm and spec.launch is None and (spec.reuse_wait_seconds or is_spare or shares_imports):
        _execute(folder, nodes, log, client, spec)
    return Pod(folder, log, client, None).run(None if is_spare else nodes)


def _continue(folder: str, nodes: str, state: dict[str, Any], log: PodLog) -> int:
    """Runs the pod after `_execute`, in an interpreter that imports modules in advance if the state names any."""
    client = [(pid, ticks) for pid, ticks in state["client"]]
    imports = None
    if state["modules"]:
        imports = _import_ahead(os.path.dirname(folder), state, log)
        if imports is None:
            _execute(folder, nodes, log, client)
    _, is_spare = _first_spec(nodes)
    return Pod(folder, log, client, imports).run(None if is_spare else nodes)


def _execute(
    folder: str, nodes: str, log: PodLog, client: list[process.Identity], spec: NodeSpec | None = None
) -> NoReturn:
    """Replaces this process by a new interpreter. With `spec`, the new interpreter imports the modules that the ranks
    will import.
    """
    modules = spec.warm if spec is not None else ()
    env = {**os.environ, **(spec.env if spec is not None else {})}
    state = {"modules": modules, "client": client, "env": dict(os.environ)}
    file = os.memfd_create("state")
    os.write(file, json.dumps(state).encode())
    os.lseek(file, 0, os.SEEK_SET)
    os.set_inheritable(file, True)
    pod_reuse.block()  # imports must not see Windlass's signal handlers
    for descriptor in (1, 2):
        os.dup2(log.descriptor, descriptor)
    arguments = [os.path.abspath(__file__), folder, nodes, str(file)]
    # An interpreter that imports in advance needs the import path of the ranks, and space for their command lines.
    options = [*arguments, process.PADDING] if modules else ["-I", "-S", *arguments]
    os.execve(sys.executable, [sys.executable, *options], environ_watch.lasting(env) if modules else env)


def _import_ahead(base: str, state: dict[str, Any], log: PodLog) -> pod_node.Imports | None:
    """Imports the modules in advance. Returns None if ranks cannot be forked from this process afterwards."""
    with open(os.path.join(base, "imports.out"), "w+b", buffering=0) as said:
        for descriptor in (1, 2):
            os.dup2(said.fileno(), descriptor)
        reset, why_unsafe = import_ahead.import_ahead(import_ahead.parts_of(state["modules"]))
        said.seek(0)
        log.put(POD, masked(said.read(), secret_values(state["env"])))
    os.environ.clear()
    os.environ.update(state["env"])
    return None if why_unsafe else pod_node.Imports(reset)


def _start_order_client(folder: str, attempt: int, log: PodLog) -> list[process.Identity]:
    """Starts the order client, which receives the requests of a supervisor in the cluster, if there is one.

    Removes the order client's variables from the environment, because ranks do not need them.
    """
    env = dict(os.environ)
    if not os.environ.pop("WINDLASS_SUPERVISOR", ""):
        return []
    from windlass.worker import order_client  # imported here because most pods do not need it

    os.environ.pop(order_client.KEY_FILE, None)
    name = os.environ.get("WINDLASS_POD_NAME", "")
    words = [sys.executable, "-I", "-S", order_client.__file__, os.path.dirname(folder), name, str(attempt)]
    null = subprocess.DEVNULL
    try:
        popen = subprocess.Popen(
            words, cwd="/", env=env, stdin=null, stdout=null, stderr=null, preexec_fn=process.Birth()
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.line(f"requests of the supervisor cannot be received: {error}")
        return []
    popen.returncode = 0  # Popen must not reap the process: `_collect` does
    found = process.stat(popen.pid)
    return [] if found is None else [(found.pid, found.start_ticks)]


# -- which node -------------------------------------------------------------------------------------------------------


def _place() -> int:
    """Returns the index of this pod in the attempt, which the owner object has assigned."""
    index = os.environ.get("JOB_COMPLETION_INDEX")
    if index:
        return int(index)
    first = os.environ.get("WINDLASS_FIRST_PLACE", "0")  # added because some operators number each replica type from 0
    number = os.environ.get("WINDLASS_POD_NAME", "").rpartition("-worker-")[2]
    return int(first) + (int(number) if number.isdigit() else 0)


def _first_spec(nodes: str) -> tuple[NodeSpec, bool]:
    """Returns the spec of this pod's node and False. For a spare, returns the first spec in the file and True."""
    try:
        return _read(nodes, _place()), False
    except KeyError:
        with open(nodes, "rb") as file:
            specs = unpack(file.read())[1]
        return specs[min(specs)], True


def _read(nodes: str, place: int) -> NodeSpec:
    """Reads the spec of the node with this index. Raises KeyError if there is none."""
    with open(nodes, "rb") as file:
        return _importing(unpack(file.read(), place)[1][place])


def _importing(spec: NodeSpec) -> NodeSpec:
    """Appends Windlass's modules to the PYTHONPATH of the image, unless the job sets PYTHONPATH."""
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    of_image = os.environ.get("PYTHONPATH")
    if not of_image or spec.env.get("PYTHONPATH") != ours:
        return spec
    return spec.replace(env={**spec.env, "PYTHONPATH": f"{of_image}:{ours}"})


def _spec(folder: str, nodes: str, place: int, code_since: float) -> NodeSpec:
    """Reads the spec of this node and writes it to `folder`, with the node's other files. `code_since` is the Unix time
    at which the code was unpacked.
    """
    spec = _read(nodes, place).replace(folder=folder)
    if spec.collect is not None:
        spec = spec.replace(collect=spec.collect.replace(since=code_since))
    os.makedirs(folder, exist_ok=True)
    if spec.launch is not None:
        # A launcher of several nodes passes one path to all pods, so the file names must not depend on the node.
        spec = spec.replace(launch=spec.launch.replace(proxy_spec=os.path.join(folder, "node.json")))
        os.symlink(os.path.basename(spec.path("sock")), os.path.join(folder, "node.sock"))
    spec.write()
    return spec


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
