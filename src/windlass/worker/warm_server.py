"""A process that has imported what scripts import, and forks node workers on request; private to its user.

One such process serves one interpreter, one list of modules and one set of installed packages, in every environment
in which its imports would have read the same. It runs no operation of any library, has one thread, and never touches a
GPU: a fork of it is as good as a new interpreter that has just finished its imports. Where that does not hold it
refuses with the reason, and the caller starts cold.

Modules that are not known to be safe are tried in a child first (`import_trial.py`), beside the run; what is safe is
imported by this process when it begins again, which it does while none of its forks lives.

The protocol, on a Unix socket in a folder that only the user may enter: one JSON line, `{"spec": path, "script": path,
"env": …,
"inherit": …}`, with the descriptors of the node (`output`, and those of `keep`, in order) attached; one JSON line back,
with `pid`, or with `refused` and `lasting` or `again`.

A forked worker does nothing before the caller has sent one byte more: a caller that gave up, and started cold, must
not get a second one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.worker.import_ahead import Part
    from windlass.worker.import_trial import Trial, Verdicts

TRIAL_LOOK_SECONDS = 0.05
"""How often the process looks at a trial."""
ACCEPT_SECONDS = 2.0
"""How often an idle process looks whether it is still wanted: its socket's file may have been removed with its home."""
CALLER_SECONDS = 5.0
"""How long a caller may take to send its request."""
REQUEST_BYTES = 1 << 20
MAX_DESCRIPTORS = 253
"""Of one request: Linux sends no more with one message (SCM_MAX_FD). A node has one of each rank that needs a port."""
TRIES = "its imports are tried beside it, for the next run"
CHANGED = "installed packages changed since they were imported"


class WarmProcess:
    """Imports once, forks often."""

    def __init__(self, settings: dict[str, Any], listener: socket.socket) -> None:
        """`settings` are those of the command line; the socket listens already."""
        self.settings = settings
        self.listener = listener
        self.socket_path: str = settings["socket"]
        self.command = [sys.executable, os.path.abspath(__file__), str(listener.fileno()), *sys.argv[2:]]
        self.environ = dict(os.environ)
        self.started_at = time.monotonic()
        self.import_seconds = 0.0
        self.forks = 0
        self.unsafe = ""
        """Why nothing may ever be forked from here; empty where all is well."""
        self.stale = ""
        """Why another process, started now, would do; empty where this one does."""
        self.files: dict[str, tuple[int, int]] = {}
        self.looked_for = ""
        self.untried: list[Part] = []
        self.trial: Trial | None = None
        self.begins_again = False
        """Whether there is more to import than this process has, once all is tried."""
        self.socket_identity = _identity(self.socket_path)

    # -- warming ------------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Import what is known to be safe, and find out whether a fork is then as good as a new interpreter."""
        from windlass.worker.fork_safety import package_fingerprint
        from windlass.worker.import_ahead import import_ahead, is_sure, parts_of
        from windlass.worker.import_trial import Verdicts

        began = time.time_ns()
        self.verdicts: Verdicts = Verdicts(self.settings["tried"])
        reasons = self.verdicts.reasons
        parts = parts_of(self.settings["modules"])
        self.untried = [(name, part) for name, part in parts if not is_sure(part) and part not in reasons]
        # Until the rest is tried, a run waits for no more than its script would import by itself.
        sure = [(name, part) for name, part in parts if is_sure(part) and not (self.untried and part != name)]
        self.parts = [(name, part) for name, part in parts if (name, part) in sure or reasons.get(part) == ""]
        self.begins_again = bool(self.untried and len(sure) < sum(is_sure(part) for _, part in parts))
        self.left_out = [reasons[part] for _, part in parts if not is_sure(part) and reasons.get(part)]
        self.reset, self.unsafe = import_ahead(self.parts)
        if self.unsafe:
            self.verdicts.forget()
        self.files = package_fingerprint()
        if any(changed > began for changed, _ in self.files.values()):
            self.stale = CHANGED  # something was installed meanwhile: one part of it may be old, another new
        self.import_seconds = time.monotonic() - self.started_at
        self._write_ready()

    def _write_ready(self) -> None:
        """Report what was imported and the number of forks to `windlass warm ls`."""
        path = self._path("ready")
        about = {
            "import_seconds": round(self.import_seconds, 3),
            "forks": self.forks,
            "imported": [part for name, part in self.parts if part == name],
            "left_out": self.left_out,
            "trying": [part for _, part in self.untried],
            "reads_all": self.reset.watch.whole,
        }
        with open(f"{path}.new", "w") as file:
            json.dump(about, file)
        os.replace(f"{path}.new", path)

    def refusal(self, request: dict[str, Any]) -> dict[str, Any]:
        """Why no fork can run this script as the node of this spec; empty where one can."""
        from windlass.worker.fork_safety import shadowed

        # The nodes of one attempt ask within milliseconds.
        if refused := self.outdated(os.path.dirname(request["spec"])):
            return refused
        if not self.parts:
            if self.untried or self.begins_again:
                return {"refused": TRIES}
            return {"refused": self.left_out[0], "lasting": True}
        if name := self.reset.watch.differs(request["env"]):
            self.stale = f"{name} is not what it was for the imports"
            return {"refused": self.stale, "again": True}
        hidden = shadowed(request["script"])
        return {"refused": f"{hidden} would be imported in place of a module already imported"} if hidden else {}

    def outdated(self, occasion: str) -> dict[str, Any]:
        """Why nothing can be forked any more; files are looked at once for each occasion."""
        from windlass.worker.fork_safety import package_fingerprint, why_unsafe

        self.unsafe = self.unsafe or why_unsafe()
        if self.unsafe:
            return {"refused": self.unsafe, "lasting": True}
        if occasion != self.looked_for and not self.stale:
            self.stale = CHANGED if package_fingerprint(self.files) != self.files else ""
            self.looked_for = occasion
        return {"refused": self.stale, "again": True} if self.stale else {}

    # -- trying -------------------------------------------------------------------------------------------------------

    def try_next(self) -> None:
        """Begin the next trial, or take the verdict of the one that runs; begin again once all have one."""
        from windlass.worker.fork_safety import children
        from windlass.worker.import_ahead import attempt
        from windlass.worker.import_trial import Trial

        if time.monotonic() - self.started_at < self.settings["trial_delay_seconds"]:
            return
        if self.trial is None and self.untried:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # how it ends must be known
            parts = self.untried[:1]
            self.trial = Trial(lambda: attempt(parts), self.settings["import_seconds"], self.listener.fileno())
        elif self.trial is not None:
            self._judge(self.trial)
        if self.begins_again and not self.untried and not children():
            self._begin_again()

    def _judge(self, trial: Trial) -> None:
        try:
            if (reason := trial.verdict()) is None:
                return
        except InterruptedError:
            self.untried.clear()  # by this process; the next one tries again
            self.begins_again = False
            self.stale = "" if self.parts else "the trial of its imports was killed"
        else:
            _, part = self.untried.pop(0)
            self.verdicts.add({part: f"{part}: {reason}" if reason else ""})
            self.begins_again = self.begins_again or not reason
            self.left_out += [self.verdicts.reasons[part]] if reason else []
        self.trial = None
        if not self.untried:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if self._owns_socket():
            self._write_ready()

    def _begin_again(self) -> None:
        """Become a new process that imports all that is safe, under the same pid and with the same socket."""
        if not self._owns_socket():
            return
        path = self._path("json")
        try:
            with open(path) as file:
                about = json.load(file)
            with open(f"{path}.new", "w") as file:
                json.dump({**about, "started_at": time.time()}, file)
            os.replace(f"{path}.new", path)  # at once: who reads half of it would take this process for dead
            os.unlink(self._path("ready"))
        except (OSError, ValueError):
            return  # it is being stopped, or its starter has not written yet
        self.listener.set_inheritable(True)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.execve(self.command[0], self.command, self.environ)

    # -- serving ------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer until idle for too long, unsafe, stale, too large, or the socket's file is gone."""
        from windlass.worker.process import resident_bytes

        idle_seconds: float = self.settings["idle_seconds"]
        idle_since = time.monotonic()
        while True:
            if not (self.unsafe or self.stale):
                self.try_next()
            if self.unsafe or self.stale or resident_bytes() > self.settings["max_resident_bytes"]:
                break
            self.listener.settimeout(min(TRIAL_LOOK_SECONDS if self.untried else ACCEPT_SECONDS, idle_seconds))
            try:
                client, _ = self.listener.accept()
            except socket.timeout:  # noqa: UP041 - they are two before Python 3.10
                idles = self.trial is None and time.monotonic() - idle_since >= idle_seconds
                if idles or not self._owns_socket():
                    break
                continue
            idle_since = time.monotonic()
            self._serve_caller(client)
        if self.trial is not None:
            self.trial.stop()
        # No caller finds the socket any more; those that are connected already get an answer.
        self._withdraw()
        self.listener.setblocking(False)
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self._serve_caller(client)

    def _withdraw(self) -> None:
        """Remove the files by which callers find this process."""
        if self._owns_socket():
            for kind in ("sock", "ready", "json"):
                with contextlib.suppress(OSError):
                    os.unlink(self._path(kind))

    def _path(self, kind: str) -> str:
        return f"{os.path.splitext(self.socket_path)[0]}.{kind}"

    def _owns_socket(self) -> bool:
        try:
            return _identity(self.socket_path) == self.socket_identity
        except OSError:
            return False

    def _serve_caller(self, client: socket.socket) -> None:
        with client:
            client.settimeout(CALLER_SECONDS)
            try:
                if _peer_uid(client) != os.getuid():
                    return
                request, descriptors = _receive(client)
                try:
                    if refused := self.refusal(request):
                        if self.unsafe or self.stale:
                            self._withdraw()  # first: a caller that tries again must not find this process
                        _send(client, refused)
                    else:
                        self._fork(client, request, descriptors)
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
            except Exception:
                pass  # a caller that died or sent something else; the next one must be served

    def _fork(self, client: socket.socket, request: dict[str, Any], descriptors: list[int]) -> None:
        pid = os.fork()
        if pid:
            self.forks += 1
            _send(client, {"pid": pid})
            if self._owns_socket():
                self._write_ready()
            return
        code = 1
        try:
            self.listener.close()
            client.settimeout(None)
            if client.recv(1):
                code = self.become(client, request, descriptors)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(code)

    def become(self, client: socket.socket, request: dict[str, Any], descriptors: list[int]) -> int:
        """In the fork: become the node worker that a new interpreter would have been, and run its ranks by forking."""
        from windlass.worker.fork_reset import inherit
        from windlass.worker.node import run_node
        from windlass.worker.rank_start import WarmStart

        client.close()
        os.setsid()
        output, *kept = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        inherit(request["inherit"])
        for descriptor in kept:
            os.set_inheritable(descriptor, False)
        # What is kept open besides the first (the node's lock, the reserved port) is held by its mere number.
        return run_node(request["spec"], kept[0] if kept else None, WarmStart(self.reset))


def _identity(path: str) -> tuple[int, int]:
    """Which file this is. Its number alone is not enough: that of a removed socket is given to the next one made."""
    line = os.stat(path)
    return line.st_ino, line.st_mtime_ns


def _peer_uid(client: socket.socket) -> int:
    size = struct.calcsize("3i")
    credentials = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(credentials[1])


def _receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, descriptors, flags, _ = socket.recv_fds(client, 65536, MAX_DESCRIPTORS)
    try:
        while not data.endswith(b"\n"):
            more = client.recv(65536)
            if not more or len(data) > REQUEST_BYTES:
                raise ValueError("a request is one line")
            data += more
        if flags & socket.MSG_CTRUNC:  # the last is the node's lock: without it the node would count as lost
            _send(client, {"refused": "not all of its open files could be given to the warm process"})
            raise ValueError("descriptors are missing")
        return json.loads(data), list(descriptors)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _send(client: socket.socket, answer: dict[str, Any]) -> None:
    client.sendall(json.dumps(answer).encode() + b"\n")


def main(argv: list[str]) -> int:
    """`LISTENER_FD SETTINGS_JSON [PADDING]`: warm up, then serve the socket that is already listening.

    The socket listens before the imports begin, so a caller may connect at once and is answered when they are done.
    The padding gives ranks room for a command line of their own.
    """
    listener = socket.socket(fileno=int(argv[0]))
    listener.set_inheritable(False)
    settings = json.loads(argv[1])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warm = WarmProcess(settings, listener)
    warm.warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # node workers are reaped by the kernel
    warm.serve()
    return 0


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    os._exit(main(sys.argv[1:]))
