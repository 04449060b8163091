"""The first process of a test cluster: starts programs on request, restarts them, and ends all of them with itself.

It runs inside the test cluster's namespaces and imports nothing of Windlass. Orders are JSON lines over a socket:
`start` (name; argv, env and log if it is new), `stop` (name, signal: the program stays down), `signal` and `list`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

PAUSE_SECONDS = 0.5
"""Seconds until a program that ended by itself is restarted: avoids a busy loop, and is short enough not to matter."""
CLIENT_SECONDS = 60
"""Seconds that a client has to send its order after connecting: a busy machine may suspend it meanwhile."""
TO_DEFAULT = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM)


@dataclass
class Service:
    """A program, and whether it should run."""

    argv: list[str]
    env: dict[str, str]
    log: str
    pid: int = 0
    wanted: bool = True
    due: float = 0.0

    def start(self) -> None:
        """Starts the program; its output is appended to its log."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, self.log, flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # Signals are reset to their defaults, since this process may have been started with some ignored.
        self.pid = os.posix_spawn(
            self.argv[0], self.argv, self.env, file_actions=actions, setsigdef=TO_DEFAULT, setsid=True
        )


class Supervisor:
    """The programs by name, and the handling of orders."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carries out one order and returns the result."""
        if order["do"] == "list":
            return {name: service.pid for name, service in self.services.items()}
        name = order["name"]
        if order["do"] == "start":
            return {"pid": self._start(name, order)}
        service = self.services[name]
        if order["do"] == "stop":
            service.wanted = False
        if service.pid:
            os.kill(service.pid, order["signal"])
        return {"pid": service.pid}

    def _start(self, name: str, order: dict[str, Any]) -> int:
        if name not in self.services or "argv" in order:
            running = self.services[name].pid if name in self.services else 0
            self.services[name] = Service(order["argv"], order["env"], order["log"], running)
        service = self.services[name]
        service.wanted = True
        if not service.pid:
            service.start()
        return service.pid

    def reap(self) -> None:
        """Reaps ended processes and schedules their restarts."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for service in self.services.values():
                if service.pid == pid:
                    service.pid, service.due = 0, time.monotonic() + PAUSE_SECONDS

    def revive(self) -> None:
        """Restarts programs that ended by themselves."""
        for service in self.services.values():
            if service.wanted and not service.pid and time.monotonic() >= service.due:
                service.start()


def main(path: str) -> None:
    """Listens at `path` until killed."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    wake, waker = socket.socketpair()
    for end in (wake, waker):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    supervisor = Supervisor()
    with selectors.DefaultSelector() as selector:
        selector.register(wake, selectors.EVENT_READ)
        selector.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(timeout=PAUSE_SECONDS):
                if key.fileobj is wake:
                    wake.recv(4096)
                else:
                    answer(server, supervisor)
            supervisor.reap()
            supervisor.revive()


def answer(server: socket.socket, supervisor: Supervisor) -> None:
    """Handles one order; invalid input or a closed connection does not affect other clients."""
    connection, _ = server.accept()
    with connection:
        connection.settimeout(CLIENT_SECONDS)
        try:
            order = json.loads(connection.makefile().readline())
            supervisor.reap()
            reply = supervisor.obey(order)
        except (OSError, ValueError, KeyError) as problem:
            reply = {"error": repr(problem)}
        try:
            connection.sendall(json.dumps(reply).encode() + b"\n")
        except OSError:
            return


if __name__ == "__main__":
    main(sys.argv[1])
