"""A node whose ranks are requested by an external launcher, Open MPI's mpirun.

    node ── starts ──▶ launcher ── starts ──▶ proxy, one per rank ── requests ──▶ node ── starts ──▶ rank

The launcher decides when a rank starts and sets its environment, which under MPI includes how to reach its peers. The
rank itself is a child of the node and is started like any other rank, so its log, signals, exit code and root cause are
handled the same way. A proxy exits with the exit code of its rank. The proxy of a failed rank exits only when all ranks
of the node have ended: if it exited earlier, the launcher would kill ranks that are saving a last checkpoint.

The launcher's output is copied to the node's output, `node-K.out`. While ranks run, lines that are not messages of Open
MPI are also added to the log of the first rank, because processes created by `MPI_Comm_spawn` are children of the
launcher and print through it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shlex
import signal
import socket
import sys
import time

from windlass.worker import cleanup, process, rsh_agent
from windlass.worker.byte_budget import ByteBudget
from windlass.worker.capture import READ_BYTES, Echo
from windlass.worker.masking import Mask, masked
from windlass.worker.node import Node
from windlass.worker.protocol import NodeSpec, RankFailure
from windlass.worker.rank_start import STDOUT, ColdStart, Start
from windlass.worker.ranks import TAIL_CHARS
from windlass.worker.tracebacks import exception_line, traceback_of

LAUNCHER_DELAY_SECONDS = 0.5
"""Seconds in which a failed rank can be found as the cause, after the launcher or a proxy has ended while ranks run."""
END_SECONDS = 3.0
"""Seconds that a launcher may take to exit after its ranks failed or were stopped; less than the supervisor's own
limit."""
WORLD_SIZE = "OMPI_COMM_WORLD_SIZE"
"""Environment variable in which Open MPI passes the number of ranks."""
OWN_FRAME, OWN_PREFIX = b"-" * 74, re.compile(rb"\[[\w.-]+:\d+\] ")
"""How Open MPI marks its own messages: a frame of dashes, or a prefix such as `[host:123] `."""
QUOTED_BYTES = 16 << 10
ERROR_CHARS = 300


class RankProxy:
    """Process that the launcher started in place of a rank, and its connection to the node."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.partial = b""
        self.pid = 0
        self.rank: int | None = None
        """Rank that the proxy has requested."""
        self.is_released = False
        """Whether the exit code of the rank was sent to the proxy."""

    def release(self, exit_code: int) -> None:
        """Makes the proxy exit with the exit code of its rank."""
        self.is_released = True
        with contextlib.suppress(OSError):  # raised if the launcher has killed the proxy
            self.connection.sendall(json.dumps({"exit_code": exit_code}).encode() + b"\n")


class LaunchedNode(Node):
    """Node that runs a launcher and the ranks requested by it, until all have ended."""

    def __init__(
        self,
        spec: NodeSpec,
        wake: int | None,
        start: Start,
        echo: Echo | None = None,
        budget: ByteBudget | None = None,
    ) -> None:
        super().__init__(spec, wake, start, echo, budget)
        assert spec.launch is not None
        self.launch = spec.launch
        self.cleanup_path = spec.path("leftovers")
        self.launcher_pid = 0
        self.launcher_code: int | None = None
        self.launcher_output = -1
        """Descriptor of the pipe with the launcher's output; −1 once it is closed."""
        self.launcher_mask = Mask(self.secrets)
        self.launcher_line = b""
        """Incomplete last line of the launcher's output."""
        self.is_in_frame = False
        """Whether the launcher's output is inside a framed message of Open MPI."""
        self.proxies: list[RankProxy] = []
        self.starters: set[int] = set()
        """Ids of the parent processes of proxies: Open MPI's daemons, which may outlive the sshd session that started
        them."""
        self.fail_at = float("inf")
        """Monotonic time at which the attempt fails because the launcher is ending the ranks; infinity while it is
        not."""
        self.are_released = False
        """Whether all proxies have received their exit codes."""
        self.kill_launcher_at = float("inf")

    # -- life ---------------------------------------------------------------------------------------------------------

    def _start_ranks(self) -> None:
        self._listen()
        environ = {**os.environ, **self.spec.env, **self.launch.env}
        try:
            if self.launch.networks:
                environ["PATH"] = f"{self._make_rsh_agent()}{os.pathsep}{environ.get('PATH', os.defpath)}"
            spec_path = self.launch.proxy_spec or self.spec.path("json")
            self.launcher_output, write = os.pipe()
            os.set_blocking(self.launcher_output, False)
            self.selector.register(self.launcher_output, selectors.EVENT_READ, self._read_launcher)
            try:
                self.launcher_pid = ColdStart()([*self.launch.argv, spec_path], "/", environ, write)
            finally:
                os.close(write)
        except OSError as error:
            self._fail_to_start(self.spec.ranks[0].rank, error, self.launch.argv[0])

    def _make_rsh_agent(self) -> str:
        """Writes the script `rsh_agent.SHELL`, which mpirun finds in PATH, and returns the folder of the script."""
        folder = self.spec.path("bin")
        os.makedirs(folder, exist_ok=True)
        words = [sys.executable, "-I", "-S", rsh_agent.__file__, self.spec.path("json")]
        path = os.path.join(folder, rsh_agent.SHELL)
        with open(path, "w") as file:
            file.write(f'#!/bin/sh\nexec {" ".join(map(shlex.quote, words))} "$@"\n')
        os.chmod(path, 0o700)
        return folder

    def _is_live(self) -> bool:
        return super()._is_live() or self._launcher_lives()

    def _launcher_lives(self) -> bool:
        return self.launcher_pid != 0 and self.launcher_code is None

    def _children(self) -> set[int]:
        return super()._children() | {self.launcher_pid}

    def _due(self) -> list[float]:
        kill_at = self.kill_launcher_at if self._launcher_lives() else float("inf")
        return [*super()._due(), min(kill_at, self.fail_at) - time.monotonic()]

    def _reap(self) -> None:
        super()._reap()
        if not self.ranks.are_ending:
            for proxy in self.proxies:
                if not proxy.is_released and self._outcome(proxy) == 0:
                    proxy.release(0)
        if self._launcher_lives():
            pid, status = os.waitpid(self.launcher_pid, os.WNOHANG)
            if pid:
                self.launcher_code = os.waitstatus_to_exitcode(status)
                self._launcher_ended()
        if time.monotonic() >= self.fail_at:
            self.fail_at = float("inf")
            self._fail_by_launcher()
        if not self.are_released and not self.ranks.live and (self._is_complete() or self.ranks.are_ending):
            self._release_all()
        if self._is_idle_server():
            process.send(self.launcher_pid, signal.SIGTERM)
        if time.monotonic() >= self.kill_launcher_at and self._launcher_lives():
            self.kill_launcher_at = float("inf")
            self._warn(f"{self.launch.name} did not end by itself and was killed")
            process.send_group(self.launcher_pid, signal.SIGKILL)

    def _is_idle_server(self) -> bool:
        """Whether the launcher is a server that mpirun on node 0 no longer uses, so that a signal may end it.

        If mpirun's daemon ended earlier, mpirun would kill the ranks that still run on other nodes.
        """
        serves = self.launch.serves and self.are_released and self._launcher_lives()
        return serves and not process.children(self.launcher_pid) and not any(map(process.stat, self.starters))

    def _is_complete(self) -> bool:
        """Whether the launcher has requested every rank of the node."""
        return len(self.ranks) == len(self.spec.ranks)

    def _outcome(self, proxy: RankProxy) -> int | None:
        """Returns the exit code of the proxy's rank; None if the rank is running or was never started."""
        found = next((rank for rank in self.ranks if rank.number == proxy.rank), None)
        return None if found is None or found.is_live else found.outcome()

    def _drain_to_the_end(self) -> None:
        self._read_launcher()
        super()._drain_to_the_end()
        for proxy in self.proxies:
            proxy.connection.close()
        cleanup.remove(self.cleanup_path)

    def _kill_all(self) -> None:
        super()._kill_all()
        self.kill_launcher_at = min(self.kill_launcher_at, time.monotonic() + END_SECONDS)

    # -- the launcher -------------------------------------------------------------------------------------------------

    def _read_launcher(self) -> None:
        """Copies the launcher's output, with secrets masked, to the node's output, and lines of other processes to the
        log of the first rank.
        """
        data = b""
        if self.launcher_output >= 0:
            with contextlib.suppress(BlockingIOError):
                data = os.read(self.launcher_output, READ_BYTES)
                if data:
                    data = self.launcher_mask.feed(data)
                else:
                    data = self.launcher_mask.end()
                    self.selector.unregister(self.launcher_output)
                    os.close(self.launcher_output)
                    self.launcher_output = -1
        self._write(data)
        *lines, self.launcher_line = (self.launcher_line + data).split(b"\n")
        of_children = b"".join(line + b"\n" for line in lines if not self._is_of_launcher(line))
        if of_children and self._is_complete() and not (self.are_released or self.ranks.are_ending):
            min(self.ranks, key=lambda rank: rank.number).capture.add(of_children, time.time_ns())

    def _write(self, data: bytes) -> None:
        """Writes to the node's output, and drops data that cannot be written. The error says nothing about the disk of
        the ranks' logs, because the output may be on another one.
        """
        if not self.reserve.has_ample_space():
            return  # the remaining disk space is reserved for the node's last events
        left = memoryview(data)
        with contextlib.suppress(OSError):
            while left:
                left = left[os.write(STDOUT, left) :]

    def _is_of_launcher(self, line: bytes) -> bool:
        """Whether Open MPI itself has printed a line: its messages are framed by lines of dashes, or have a prefix."""
        if line.rstrip() == OWN_FRAME:
            self.is_in_frame = not self.is_in_frame
            return True
        return self.is_in_frame or OWN_PREFIX.match(line) is not None

    def _launcher_ended(self) -> None:
        if self.ranks.live or not self._is_complete():
            self.fail_at = time.monotonic() + (LAUNCHER_DELAY_SECONDS if self.ranks.live else 0.0)
        elif self.launcher_code != 0 and not self.ranks.are_ending and not self.launch.serves:
            self._warn(f"all ranks succeeded, but {self._how_launcher_ended()}")

    def _fail_by_launcher(self) -> None:
        """Fails the attempt because the launcher has killed ranks or exited before they ended, unless a rank failed
        first.
        """
        if self.ranks.are_ending or self.are_released:
            return
        live = {rank.number for rank in self.ranks.live}
        missing = {spec.rank for spec in self.spec.ranks} - {rank.number for rank in self.ranks}
        if not live and not missing:
            return
        rank = min(live or missing)
        when = "while ranks were running" if live else "before all ranks were started"
        code = self.launcher_code if self.launcher_code is not None and self.launcher_code > 0 else 1
        output = f"{self._quote()}\n{self._how_launcher_ended(when)}"
        self.fail(RankFailure(rank, code, time.time(), output[-TAIL_CHARS:], of_launcher=True))

    def _how_launcher_ended(self, when: str = "") -> str:
        code, output = self.launcher_code, self._quote()
        how = "ended the ranks" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code}"
        error = exception_line(traceback_of(output))
        error = error or " ".join(line.strip() for line in output.splitlines() if line.strip(" -*="))
        sentence = " ".join(filter(None, (self.launch.name, how, when)))
        return f"{sentence}: {error[:ERROR_CHARS]}" if error else sentence

    def _quote(self) -> str:
        """Returns the end of the launcher's output, with secrets masked."""
        self._read_launcher()
        try:
            with open(self.spec.path("out"), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - QUOTED_BYTES))
                return masked(file.read(), self.secrets).decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def _release_all(self) -> None:
        """Makes the proxies exit after all ranks have ended. The launcher must exit after them."""
        self.are_released = True
        for proxy in self.proxies:
            if not proxy.is_released:
                code = self._outcome(proxy)
                proxy.release(-signal.SIGTERM if code is None else code)
        if self._launcher_lives():
            if not self._is_complete():
                process.send(self.launcher_pid, signal.SIGTERM)
            patience = END_SECONDS
            # a server must serve until the ranks of all nodes have ended
            if not self.ranks.are_ending:
                patience = float("inf") if self.launch.serves else self.launch.end_seconds
            self.kill_launcher_at = min(self.kill_launcher_at, time.monotonic() + patience)

    # -- proxies ------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        folder, name = os.path.split(self.spec.path("sock"))
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.getcwd()
        os.chdir(folder)  # socket paths are limited to 107 bytes
        try:
            self.listener.bind(name)
        finally:
            os.chdir(before)
        self.listener.listen(len(self.spec.ranks))
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return
        connection.setblocking(False)
        proxy = RankProxy(connection)
        self.proxies.append(proxy)
        self.selector.register(connection, selectors.EVENT_READ, lambda: self._read(proxy))

    def _read(self, proxy: RankProxy) -> None:
        try:
            data = proxy.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.selector.unregister(proxy.connection)
            proxy.connection.close()
            self.proxies.remove(proxy)
            if not proxy.is_released:
                self._proxy_ended()
            return
        *lines, proxy.partial = (proxy.partial + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "environ" in message:
                proxy.pid, started = message["pid"], process.stat(message["pid"])
                if started is not None and started.parent != os.getpid():
                    self.starters.add(started.parent)
                self._start_for(proxy, message["environ"])
            else:
                self._proxy_ended()

    def _proxy_ended(self) -> None:
        """Handles a proxy that ends or gets a signal while its rank is running, which means that the launcher is ending
        the ranks.
        """
        if not self.ranks.are_ending and not self.are_released:
            self.fail_at = min(self.fail_at, time.monotonic() + LAUNCHER_DELAY_SECONDS)

    def _start_for(self, proxy: RankProxy, environ: dict[str, str]) -> None:
        """Starts the rank of a proxy, unless ranks are being ended."""
        if self.ranks.are_ending:
            return
        size = environ.get(WORLD_SIZE, "")
        # a job must not train in a smaller world and succeed
        if size.isdigit() and int(size) != self.spec.world_size:
            words = f"{self.launch.name} started a world of {size} ranks, and the job has {self.spec.world_size}"
            self.fail(RankFailure(self.spec.ranks[0].rank, 1, time.time(), words, of_launcher=True))
            return
        spec = self.spec.ranks[int(environ[self.launch.index])]
        if self.launch.serves:  # an ssh session lacks the pod's variables
            environ = {**environ, **os.environ}
        cleanup.note(self.cleanup_path, environ)
        # Variables set only for the launcher are reset or removed.
        for name in (*self.launch.env, "PWD", *(("PATH",) if self.launch.networks else ())):
            if name in os.environ:
                environ[name] = os.environ[name]
            else:
                environ.pop(name, None)
        if self._start_rank(spec, environ, proxy.pid if self.launch.networks else 0):
            proxy.rank = spec.rank
