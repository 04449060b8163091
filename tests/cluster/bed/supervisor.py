"""The first process of a bed: starts the programs it is told to, keeps them going, and takes all with it when it ends.

It runs inside the bed's namespaces and imports nothing of ours. Orders come as one JSON line each over a socket:
`start` (name; argv, env and log where it is new), `stop` (name, signal: the program stays down), `signal` and `list`.
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
"""Before a program that ended by itself is started again: long enough not to spin, short enough not to be noticed."""
CLIENT_SECONDS = 60
"""For one that has connected to send its order: a busy machine may suspend it in between."""
TO_DEFAULT = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM)


@dataclass
class Service:
    """A program, and whether it is to run."""

    argv: list[str]
    env: dict[str, str]
    log: str
    pid: int = 0
    wanted: bool = True
    due: float = 0.0

    def start(self) -> None:
        """Start the program, its output at the end of its log."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, self.log, flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        # Set to their defaults, for this process may have been started with some of them ignored.
        self.pid = os.posix_spawn(
            self.argv[0], self.argv, self.env, file_actions=actions, setsigdef=TO_DEFAULT, setsid=True
        )


class Supervisor:
    """The programs by name, and what to do with an order."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out one order and say how it went."""
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
        """Collect what ended; note when to start it again."""
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
        """Start again what ended by itself."""
        for service in self.services.values():
            if service.wanted and not service.pid and time.monotonic() >= service.due:
                service.start()


def main(path: str) -> None:
    """Listen at `path` until killed."""
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
    """Take one order; a sender of rubbish, or one that goes away, harms no other."""
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
