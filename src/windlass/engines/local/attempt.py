"""One attempt of a run on this machine: starts the node workers, reads what they say, and knows which still live.

Everything about an attempt is in its folder, so a second supervisor can take it up where the first one died:
`node-K.json` (the spec), `node-K.events` (what it says), `node-K.lock` (held while it lives), the logs of its ranks.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import windlass.worker
from windlass.engines.keeping.told import Told
from windlass.engines.local import ports
from windlass.engines.local.warm import Refused, WarmPool
from windlass.plan.launch import fill_in
from windlass.plan.placement import attempt_environment
from windlass.runs.wish import read_wish
from windlass.worker import leftovers, process, resume

WORKER = Path(windlass.worker.__file__).with_name("__main__.py")


class Node(Told):
    """One node worker."""

    def __init__(self, number: int, ranks: tuple[int, ...], folder: Path) -> None:
        super().__init__(number, ranks, folder)
        self.popen: subprocess.Popen[bytes] | None = None
        """The worker as our child; None for one that another supervisor started."""

    def lives(self) -> bool:
        """Whether the worker's process still exists: it, and nobody else, holds the lock."""
        if self.popen is not None and self.popen.poll() is not None:
            return False
        try:
            lock = os.open(self.path("lock"), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    @property
    def exit_code(self) -> int:
        """How the worker ended, which died without a word: killed, unless its own exit code says otherwise."""
        return (self.popen.returncode if self.popen is not None else None) or -signal.SIGKILL

    def know(self, pid: int) -> None:
        """Take note of a worker that is not our child, at once: a stop may have to reach it before it says a word."""
        found = process.stat(pid)
        self.pid, self.start_ticks, self.boot = pid, found.start_ticks if found else 0, process.boot_id()

    def send(self, number: signal.Signals) -> None:
        """Signal the worker, if it is still the process that it was."""
        if self.popen is not None:
            self.popen.send_signal(number)
        elif self.pid is not None and process.is_same(self.pid, self.start_ticks, self.boot):
            process.send(self.pid, number)

    def sweep(self) -> None:
        """SIGKILL whatever of the node's session outlived its worker."""
        session = self.popen.pid if self.popen is not None else self.pid
        if session is None or (self.boot and self.boot != process.boot_id()):
            return
        leader = process.stat(session)
        if leader is None or self.popen is not None or leader.start_ticks == self.start_ticks:
            process.kill_session(session)
            leftovers.remove(str(self.path("leftovers")))


class Attempt:
    """All nodes of one attempt."""

    is_past_deadline = False
    """Only the supervisor has a time limit here."""
    is_taken_back = False
    """Nobody can: processes of one's own machine are no grant."""

    def __init__(self, folder: Path, nodes: Sequence[Node]) -> None:
        self.folder = folder
        self.nodes = tuple(nodes)
        self.refusals: list[str] = []
        """Why nodes that were to start warm did not."""

    @classmethod
    def start(
        cls,
        folder: Path,
        number: int,
        requests: Sequence[Mapping[str, Any]],
        master: tuple[str, socket.socket],
        wake: int,
        pool: WarmPool,
        *,
        is_free: bool = False,
    ) -> Attempt:
        """Write the specs and start the workers; each writes a byte to `wake` whenever it says something.

        `master` is the address where the ranks meet and the socket that holds its port. Workers whose request names
        modules to have warm are forked from `pool` where that is safe. Where the port `is_free`, nothing holds it from
        now on: a program that binds it without SO_REUSEADDR could not. Raises OSError.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        address, holder = master
        port = holder.getsockname()[1]
        env = attempt_environment(number, address, port)
        if is_free:
            holder.close()
        requests = _go_on(folder, number, requests)
        attempt = cls(folder, [_node(folder, request) for request in requests])
        with contextlib.closing(ports.reserve(None)) as rendezvous:  # where the agents of a launcher meet
            for node, request in zip(attempt.nodes, requests, strict=True):
                spec = {**request, "folder": str(folder), "path": str(node.path("json"))}
                spec |= {"events": str(node.path("events")), "env": {**env, **request["env"]}}
                if "launch" in spec:
                    spec["launch"] = fill_in(spec, rendezvous.getsockname()[1], _address(spec))
                if not is_free and "network" not in spec:
                    spec["held_port"] = port
                node.path("json").write_text(json.dumps(spec))
                # The ports outlive a supervisor that is killed: the first node keeps them too.
                held = [rendezvous] if is_free else [holder, rendezvous]
                kept = [one.fileno() for one in held] if node is attempt.nodes[0] else []
                refused = _start_worker(node, spec, [wake, *kept], pool)
                if refused and refused not in attempt.refusals:
                    attempt.refusals.append(refused)
        return attempt

    @classmethod
    def adopt(cls, folder: Path, requests: Sequence[Mapping[str, Any]]) -> Attempt:
        """The attempt that another supervisor has started."""
        return cls(folder, [_node(folder, request) for request in requests])

    @property
    def over(self) -> bool:
        """Whether all nodes have ended."""
        return all(node.over for node in self.nodes)

    def live_nodes(self) -> list[Node]:
        """Nodes that have not ended."""
        return [node for node in self.nodes if not node.over]

    def send(self, number: signal.Signals) -> None:
        """Signal every live worker."""
        for node in self.live_nodes():
            node.send(number)

    def kill(self) -> None:
        """SIGKILL every live worker with all its processes."""
        for node in self.live_nodes():
            node.send(signal.SIGKILL)
            node.sweep()

    def close(self) -> None:
        """Collect the workers that are our children."""
        for node in self.nodes:
            if node.popen is not None:
                node.popen.wait()
            node.path("reserve").unlink(missing_ok=True)  # of a worker that was killed

    def last_sign_of_life(self) -> float:
        """When any of its files was last written, in unix seconds; 0 where there is none."""
        written = [0.0]
        for path in self.folder.glob("*.*"):
            if path.suffix in (".events", ".log", ".idx", ".json"):
                with contextlib.suppress(OSError):
                    written.append(path.stat().st_mtime)
        return max(written)

    def failures(self) -> list[dict[str, Any]]:
        """Of all nodes, what `blame` needs."""
        return [failure for node in self.nodes for failure in node.failures]


def _address(spec: Mapping[str, Any]) -> str:
    """Where the other nodes reach this one: in its own network, if it has one."""
    network = spec.get("network")
    return str(network["hosts"][network["host"]] if network else spec["env"]["MASTER_ADDR"])


def _go_on(folder: Path, number: int, requests: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The requests with what makes a script go on that saves for itself. Raises OSError."""
    specs = folder.parent.glob("attempt-*/node-*.json")
    since = min((path.stat().st_mtime for path in specs), default=time.time())
    try:
        changed, found = resume.go_on(requests, since, number)
    except ValueError as error:
        raise OSError(str(error)) from error
    except (ArithmeticError, LookupError, RuntimeError, TypeError) as error:  # a defect: the run fails, and is not lost
        raise OSError(f"checkpoint.find: internal error: {type(error).__name__}: {error}") from error
    return [{**changed[0], "found": found, "since": since}, *changed[1:]]


def _node(folder: Path, request: Mapping[str, Any]) -> Node:
    return Node(request["node"], tuple(rank["rank"] for rank in request["ranks"]), folder)


def _start_worker(node: Node, spec: Mapping[str, Any], kept: Sequence[int], pool: WarmPool) -> str:
    """Start one worker, which holds the descriptors of `kept`; gives why it could not be warm, if it was to be."""
    lock = os.open(node.path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    out = os.open(node.path("out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        answer = _fork_worker(node, spec, out, [*kept, lock], pool) if spec["warm"] else None
        if isinstance(answer, int):
            node.know(answer)
            return ""
        # -I -S: the worker needs the standard library alone, and is not to trip over what the user has installed.
        command = [spec["worker_python"], "-I", "-S", str(WORKER), str(node.path("json")), str(kept[0])]
        node.popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, pass_fds=[*kept, lock]
        )
        return answer.why if answer is not None else ""
    finally:
        os.close(lock)  # the worker holds it on
        os.close(out)


def _fork_worker(node: Node, spec: Mapping[str, Any], out: int, kept: Sequence[int], pool: WarmPool) -> int | Refused:
    return pool.fork(
        python=spec["worker_python"],
        modules=spec["warm"],
        script=spec["script"],
        spec=node.path("json"),
        env={**os.environ, **spec["env"]},
        output=out,
        keep=kept,
        gave_up=lambda: read_wish(node.folder.parent) is not None,
    )
