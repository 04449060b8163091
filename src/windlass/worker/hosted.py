"""A node whose ranks a foreign launcher asks for: mpirun, or an agent of torchrun.

    node ── starts ──▶ launcher ── starts ──▶ guest, one a rank ── asks ──▶ node ── starts ──▶ rank

The launcher decides when a rank begins and what it finds in its environment (under MPI: how to reach its peers). The
rank itself is a child of the node, started like any other, so its log, exit code, signals, grace, progress and blame
are the same. A guest ends as its rank did. That of a rank that failed does so only when all ranks of the node have
ended: until then the launcher sees nothing to act upon, and a rank that saves a last checkpoint is not cut off by it.

What the launcher prints goes where the node's own words go, `node-K.out`, and is quoted where it tells why.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import signal
import socket
import sys
import time
from typing import Any

from windlass.worker import leftovers, process, remote
from windlass.worker.capture import Echo
from windlass.worker.node import Node, failure
from windlass.worker.start import STDOUT, ColdStart, Start
from windlass.worker.traces import exception_line, traceback_of

SECOND_THOUGHT_SECONDS = 0.5
"""A launcher that ends its ranks has seen one fail, which is then heard of here too: that rank is the cause."""
END_SECONDS = 3.0
"""How long a launcher may take to end after its ranks failed or were stopped; less than the supervisor's patience."""
QUOTED_BYTES = 16 << 10
SAID_CHARS = 300


class Guest:
    """One process that the launcher has started, and its connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.heard = b""
        self.pid = 0
        self.rank: int | None = None
        """The rank it asked for."""
        self.told = False
        """Whether it was told how to end."""

    def tell(self, exit_code: int) -> None:
        """Have it end as its rank did."""
        self.told = True
        try:
            self.connection.sendall(json.dumps({"exit_code": exit_code}).encode() + b"\n")
        except OSError:
            pass  # the launcher has killed it


class HostedNode(Node):
    """Runs a launcher, and the ranks that it asks for, until all have ended."""

    def __init__(self, spec: dict[str, Any], wake: int | None, start: Start, echo: Echo | None = None) -> None:
        super().__init__(spec, wake, start, echo)
        self.launch: dict[str, Any] = spec["launch"]
        self.launcher_pid = 0
        self.launcher_code: int | None = None
        self.guests: list[Guest] = []
        self.own_failures: list[dict[str, Any]] = []
        """Those that are of no rank's making."""
        self.act_at: float | None = None
        """When to take the launcher at its word that the ranks are to end."""
        self.dismissed = False
        """Whether the guests were told to end."""
        self.patience_ends_at = float("inf")

    # -- life ---------------------------------------------------------------------------------------------------------

    def _start_ranks(self) -> list[dict[str, Any]]:
        self._listen()
        environ = {**os.environ, **self.spec["env"], **self.launch["env"]}
        try:
            if "networks" in self.launch:
                environ["PATH"] = f"{self._make_remote_shell()}{os.pathsep}{environ.get('PATH', os.defpath)}"
            spec_path = self.launch.get("guest_of", self.spec["path"])
            self.launcher_pid = ColdStart()([*self.launch["argv"], spec_path], "/", environ, STDOUT)
        except OSError as error:
            text = f"could not start: {self.launch['argv'][0]}: {error.strerror or error}"
            return [failure(self.spec["ranks"][0]["rank"], 127, time.time(), text)]
        return []

    def _make_remote_shell(self) -> str:
        """Put `remote.SHELL` where the launcher finds it, which takes its name for words: give the folder."""
        folder: str = os.path.splitext(self.spec["path"])[0] + ".bin"
        os.makedirs(folder, exist_ok=True)
        words = [sys.executable, "-I", "-S", remote.__file__, self.spec["path"]]
        path = os.path.join(folder, remote.SHELL)
        with open(path, "w") as file:
            file.write(f'#!/bin/sh\nexec {" ".join(map(shlex.quote, words))} "$@"\n')
        os.chmod(path, 0o700)
        return folder

    def _live(self) -> bool:
        return super()._live() or self._launcher_lives()

    def _launcher_lives(self) -> bool:
        return self.launcher_pid != 0 and self.launcher_code is None

    def _children(self) -> set[int]:
        return super()._children() | {self.launcher_pid}

    def _patience(self) -> float | None:
        due = [moment for moment in (self.act_at, self.patience_ends_at) if moment not in (None, float("inf"))]
        others = super()._patience()
        waits = [max(0.0, moment - time.monotonic()) for moment in due if moment is not None]
        return min([*waits, *([] if others is None else [others])], default=None)

    def _reap(self) -> None:
        super()._reap()
        if self.ended_by == "itself":
            for guest in self.guests:
                if not guest.told and self._outcome(guest) == 0:
                    guest.tell(0)
        if self._launcher_lives():
            pid, status = os.waitpid(self.launcher_pid, os.WNOHANG)
            if pid:
                self.launcher_code = os.waitstatus_to_exitcode(status)
                self._launcher_ended()
        if self.act_at is not None and time.monotonic() >= self.act_at:
            self.act_at = None
            self._obey_launcher()
        if not self.dismissed and not super()._live() and (self._is_complete() or self.ended_by != "itself"):
            self._dismiss()
        if self._serves_nobody():
            process.send(self.launcher_pid, signal.SIGTERM)
        if time.monotonic() >= self.patience_ends_at and self._launcher_lives():
            self.patience_ends_at = float("inf")
            self._say("warning", message=f"{self.launch['name']} did not end by itself and was killed")
            process.send_group(self.launcher_pid, signal.SIGKILL)

    def _serves_nobody(self) -> bool:
        """Whether the launcher is a server, which no guest's end ends, and the one of another node has left it."""
        serves = self.launch.get("serves", False) and self.dismissed and self._launcher_lives()
        return serves and not process.children(self.launcher_pid)

    def _is_complete(self) -> bool:
        """Whether all ranks have been asked for."""
        return len(self.ranks) == len(self.spec["ranks"])

    def _outcome(self, guest: Guest) -> int | None:
        """How the guest's rank has ended; None while it has not, or never began."""
        found = next((rank for rank in self.ranks if rank.number == guest.rank), None)
        return None if found is None or found.exit_code is None else found.outcome()

    def _drain_to_the_end(self) -> None:
        super()._drain_to_the_end()
        for guest in self.guests:
            guest.connection.close()
        leftovers.remove(self._leftovers_path())

    def _kill_all(self) -> None:
        super()._kill_all()
        self.patience_ends_at = min(self.patience_ends_at, time.monotonic() + END_SECONDS)

    # -- the launcher -------------------------------------------------------------------------------------------------

    def _launcher_ended(self) -> None:
        if super()._live() or not self._is_complete():
            self.act_at = time.monotonic() + (SECOND_THOUGHT_SECONDS if super()._live() else 0.0)
        elif self.launcher_code != 0 and self.ended_by == "itself" and not self.launch.get("serves"):
            self._say("warning", message=f"all ranks ended well, but {self._how_launcher_ended()}")

    def _obey_launcher(self) -> None:
        """The launcher ends the ranks, or has ended without them, and no rank has failed: then that is the failure."""
        if self.ended_by != "itself" or self.dismissed:
            return
        live = [rank.number for rank in self.ranks if rank.exit_code is None]
        missing = [spec["rank"] for spec in self.spec["ranks"][len(self.ranks) :]]
        if not live and not missing:
            return
        rank = min(live or missing)
        when = "while ranks were running" if live else "before all ranks were started"
        code = self.launcher_code if self.launcher_code is not None and self.launcher_code > 0 else 1
        self.own_failures.append(failure(rank, code, time.time(), f"{self._quote()}\n{self._how_launcher_ended(when)}"))
        self._say("failing", rank=rank)
        self._end_others(by="failure")

    def _leftovers_path(self) -> str:
        base: str = os.path.splitext(self.spec["path"])[0]
        return base + ".leftovers"

    def _how_launcher_ended(self, when: str = "") -> str:
        code = self.launcher_code
        how = (
            "ended the ranks"
            if code is None
            else f"ended with exit code {code}"
            if code >= 0
            else f"was killed by signal {-code}"
        )
        said = exception_line(traceback_of(self._quote()))
        said = said or " ".join(line.strip() for line in self._quote().splitlines() if line.strip(" -*="))
        words = [self.launch["name"], how, when]
        return " ".join(word for word in words if word) + (f": {said[:SAID_CHARS]}" if said else "")

    def _quote(self) -> str:
        """The end of what the launcher has printed."""
        path = os.path.splitext(self.spec["path"])[0] + ".out"
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - QUOTED_BYTES))
                return file.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def _dismiss(self) -> None:
        """All ranks are dead: the guests may end, and the launcher after them."""
        self.dismissed = True
        for guest in self.guests:
            if not guest.told:
                code = self._outcome(guest)
                guest.tell(-signal.SIGTERM if code is None else code)
        if self._launcher_lives():
            if not self._is_complete():
                process.send(self.launcher_pid, signal.SIGTERM)
            patience = self.launch["end_seconds"] if self.ended_by == "itself" else END_SECONDS
            self.patience_ends_at = min(self.patience_ends_at, time.monotonic() + patience)

    def _failures(self) -> list[dict[str, Any]]:
        blamed = {found["rank"] for found in self.own_failures}
        return self.own_failures + [found for found in super()._failures() if found["rank"] not in blamed]

    # -- guests -------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        folder, name = os.path.split(self.spec["path"])
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.getcwd()
        os.chdir(folder)  # see guest.py
        try:
            self.listener.bind(os.path.splitext(name)[0] + ".sock")
        finally:
            os.chdir(before)
        self.listener.listen(len(self.spec["ranks"]))
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, self._welcome)

    def _welcome(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return
        connection.setblocking(False)
        guest = Guest(connection)
        self.guests.append(guest)
        self.selector.register(connection, selectors.EVENT_READ, lambda: self._hear(guest))

    def _hear(self, guest: Guest) -> None:
        try:
            data = guest.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.selector.unregister(guest.connection)
            guest.connection.close()
            self.guests.remove(guest)
            if not guest.told:
                self._doubt()
            return
        *lines, guest.heard = (guest.heard + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "environ" in message:
                guest.pid = message["pid"]
                self._admit(guest, message["environ"])
            else:
                self._doubt()

    def _doubt(self) -> None:
        """A guest was told to end, or is gone, though its rank goes on."""
        if self.act_at is None and self.ended_by == "itself" and not self.dismissed:
            self.act_at = time.monotonic() + SECOND_THOUGHT_SECONDS

    def _admit(self, guest: Guest, environ: dict[str, str]) -> None:
        """Start the rank that the guest stands for, unless ranks are being ended."""
        if self.ended_by != "itself":
            return
        spec = self.spec["ranks"][int(environ[self.launch["index"]])]
        if self.launch.get("serves"):  # a session knows what the launcher has put into it, and nothing of this pod's
            environ = {**environ, **os.environ}
        leftovers.note(self._leftovers_path(), environ)
        for name in (
            *self.launch["env"],
            "PWD",
            *(("PATH",) if "networks" in self.launch else ()),
        ):  # those are the launcher's own
            if name in os.environ:
                environ[name] = os.environ[name]
            else:
                environ.pop(name, None)
        try:
            self._start_rank(spec, environ, guest.pid if "networks" in self.launch else 0)
            guest.rank = spec["rank"]
        except OSError as error:
            text = f"could not start: {spec['argv'][0]}: {error.strerror or error}"
            self.own_failures.append(failure(spec["rank"], 127, time.time(), text))
            self._say("failing", rank=spec["rank"])
            self._end_others(by="failure")
