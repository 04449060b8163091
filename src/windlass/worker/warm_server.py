"""Warm process of one user: imports the modules of scripts in advance, and forks node workers on request.

One warm process serves one interpreter, one list of modules and one set of installed packages, in every environment in
which its imports would have the same result. It only imports the libraries, has one thread, and never uses a GPU, so
its forks are like new interpreters after their imports. If a fork would differ, the process refuses the request with a
reason, and the caller starts a new interpreter.

Modules that are not known to be safe are first tried in a child (`import_trial.py`) while the run continues. The warm
process restarts itself to import the safe modules, once none of its forks is alive.

The protocol uses a Unix socket in a folder that only the user can access. The request is one line of JSON, `{"spec":
path, "script": path, "env": …, "inherit": …}`, with the descriptors of the node attached (`output`, and those of
`keep`, in order). The response is one line of JSON with `pid`, or with `refused` and `lasting` or `again`.

A forked worker waits for one more byte, because a caller that has given up and started a new interpreter must not get a
second worker.
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
"""Seconds between two checks of a running import trial."""
ACCEPT_SECONDS = 2.0
"""Seconds between two checks of an idle process that its socket file still exists. The home folder may have been
removed."""
CALLER_SECONDS = 5.0
"""Time limit for a caller to send its request."""
REQUEST_BYTES = 1 << 20
MAX_DESCRIPTORS = 253
"""Maximum number of descriptors per request, which is Linux's limit (SCM_MAX_FD). A node sends one per rank with a
port."""
TRIES = "its imports are being tried for the next run"
CHANGED = "installed packages changed since they were imported"


class WarmProcess:
    """Process that imports once and forks often."""

    def __init__(self, settings: dict[str, Any], listener: socket.socket) -> None:
        """`settings` are parsed from the command line. `listener` is already listening."""
        self.settings = settings
        self.listener = listener
        self.socket_path: str = settings["socket"]
        self.command = [sys.executable, os.path.abspath(__file__), str(listener.fileno()), *sys.argv[2:]]
        self.environ = dict(os.environ)
        self.started_at = time.monotonic()
        self.import_seconds = 0.0
        self.forks = 0
        self.unsafe = ""
        """Reason why this process must never fork again; empty if it may fork."""
        self.stale = ""
        """Reason why a new process must replace this one; empty if it need not be replaced."""
        self.files: dict[str, tuple[int, int]] = {}
        self.checked_for = ""
        self.untried: list[Part] = []
        self.trial: Trial | None = None
        self.must_restart = False
        """Whether this process must restart after all trials, to import more modules."""
        self.socket_identity = _identity(self.socket_path)

    # -- warming ------------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Imports the modules that are known to be safe, and checks whether this process is then safe to fork."""
        from windlass.worker.fork_safety import package_fingerprint
        from windlass.worker.import_ahead import import_ahead, is_sure, parts_of
        from windlass.worker.import_trial import Verdicts

        began = time.time_ns()
        self.verdicts: Verdicts = Verdicts(self.settings["tried"])
        reasons = self.verdicts.reasons
        parts = parts_of(self.settings["modules"])
        self.untried = [(name, part) for name, part in parts if not is_sure(part) and part not in reasons]
        # A run must not wait for imports that its script does not need, so other modules are imported only after all
        # trials.
        sure = [(name, part) for name, part in parts if is_sure(part) and not (self.untried and part != name)]
        self.parts = [(name, part) for name, part in parts if (name, part) in sure or reasons.get(part) == ""]
        self.must_restart = bool(self.untried and len(sure) < sum(is_sure(part) for _, part in parts))
        self.left_out = [reasons[part] for _, part in parts if not is_sure(part) and reasons.get(part)]
        self.reset, self.unsafe = import_ahead(self.parts)
        if self.unsafe:
            self.verdicts.forget()
        self.files = package_fingerprint()
        if any(changed > began for changed, _ in self.files.values()):
            self.stale = CHANGED  # a package was installed during the imports, which may have read old and new files
        self.import_seconds = time.monotonic() - self.started_at
        self._write_ready()

    def _write_ready(self) -> None:
        """Writes the imported modules and the number of forks for `windlass warm ls`."""
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
        """Returns why no fork can run the requested script as a node; empty if a fork can."""
        from windlass.worker.fork_safety import shadowed

        # The nodes of one attempt send their requests within milliseconds, and share one check of the files.
        if refused := self.outdated(os.path.dirname(request["spec"])):
            return refused
        if not self.parts:
            if self.untried or self.must_restart:
                return {"refused": TRIES}
            return {"refused": self.left_out[0], "lasting": True}
        if name := self.reset.watch.differs(request["env"]):
            self.stale = f"{name} has changed since the imports"
            return {"refused": self.stale, "again": True}
        hidden = shadowed(request["script"])
        return {"refused": f"{hidden} would be imported in place of a module already imported"} if hidden else {}

    def outdated(self, occasion: str) -> dict[str, Any]:
        """Returns why this process can no longer fork; empty if it can. Checks the files once for each `occasion`."""
        from windlass.worker.fork_safety import package_fingerprint, why_unsafe

        self.unsafe = self.unsafe or why_unsafe()
        if self.unsafe:
            return {"refused": self.unsafe, "lasting": True}
        if occasion != self.checked_for and not self.stale:
            self.stale = CHANGED if package_fingerprint(self.files) != self.files else ""
            self.checked_for = occasion
        return {"refused": self.stale, "again": True} if self.stale else {}

    # -- trying -------------------------------------------------------------------------------------------------------

    def try_next(self) -> None:
        """Starts the next import trial, or takes the result of the running trial. Restarts this process after the last
        trial.
        """
        from windlass.worker.fork_safety import children
        from windlass.worker.import_ahead import attempt
        from windlass.worker.import_trial import Trial

        if time.monotonic() - self.started_at < self.settings["trial_delay_seconds"]:
            return
        if self.trial is None and self.untried:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise the kernel would discard the trial's exit status
            parts = self.untried[:1]
            self.trial = Trial(lambda: attempt(parts), self.settings["import_seconds"], self.listener.fileno())
        elif self.trial is not None:
            self._judge(self.trial)
        if self.must_restart and not self.untried and not children():
            self._restart()

    def _judge(self, trial: Trial) -> None:
        try:
            if (reason := trial.verdict()) is None:
                return
        except InterruptedError:
            self.untried.clear()  # this process gives up its trials; the next one repeats them
            self.must_restart = False
            self.stale = "" if self.parts else "the trial of its imports was killed"
        else:
            _, part = self.untried.pop(0)
            self.verdicts.add({part: f"{part}: {reason}" if reason else ""})
            self.must_restart = self.must_restart or not reason
            self.left_out += [self.verdicts.reasons[part]] if reason else []
        self.trial = None
        if not self.untried:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if self._owns_socket():
            self._write_ready()

    def _restart(self) -> None:
        """Restarts this process to import all safe modules, with the same pid and the same socket."""
        if not self._owns_socket():
            return
        path = self._path("json")
        try:
            with open(path) as file:
                about = json.load(file)
            with open(f"{path}.new", "w") as file:
                json.dump({**about, "started_at": time.time()}, file)
            # atomic, because readers of a partial file would consider this process dead
            os.replace(f"{path}.new", path)
            os.unlink(self._path("ready"))
        except (OSError, ValueError):
            return  # the process is being stopped, or its description is not written yet
        self.listener.set_inheritable(True)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.execve(self.command[0], self.command, self.environ)

    # -- serving ------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Serves requests until the process is idle for too long, unsafe, stale or too large, or its socket file is
        gone.
        """
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
            except socket.timeout:  # noqa: UP041 - two separate exceptions before Python 3.10
                idles = self.trial is None and time.monotonic() - idle_since >= idle_seconds
                if idles or not self._owns_socket():
                    break
                continue
            idle_since = time.monotonic()
            self._serve_caller(client)
        if self.trial is not None:
            self.trial.stop()
        # New callers no longer find the socket, but callers already connected still get a response.
        self._withdraw()
        self.listener.setblocking(False)
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self._serve_caller(client)

    def _withdraw(self) -> None:
        """Removes the files with which callers find this process."""
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
                            self._withdraw()  # removed first, because a caller that retries must not find this process
                        _send(client, refused)
                    else:
                        self._fork(client, request, descriptors)
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
            except Exception:
                pass  # a dead caller or an invalid request must not end this process

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
                code = self.run_worker(client, request, descriptors)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(code)

    def run_worker(self, client: socket.socket, request: dict[str, Any], descriptors: list[int]) -> int:
        """Makes the fork a node worker like one in a new interpreter, and runs the node; its ranks are forks too."""
        from windlass.worker.fork_reset import inherit
        from windlass.worker.rank_start import WarmStart
        from windlass.worker.run import run_node

        client.close()
        os.setsid()
        output, *kept = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        inherit(request["inherit"])
        for descriptor in kept:
            os.set_inheritable(descriptor, False)
        # The other descriptors (the node's lock, reserved ports) only need to stay open.
        return run_node(request["spec"], kept[0] if kept else None, WarmStart(self.reset))


def _identity(path: str) -> tuple[int, int]:
    """Returns inode and mtime of a file. The inode alone is not enough, because a recreated socket may get the same
    inode.
    """
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
        if flags & socket.MSG_CTRUNC:  # without the last descriptor, the node's lock, the node would count as lost
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
    """Runs the warm process with the arguments `LISTENER_FD SETTINGS_JSON [PADDING]`.

    The socket listens before the imports begin, so callers can connect at once and get their response after the
    imports. The padding reserves space for the command lines of ranks, see `process.rename`.
    """
    listener = socket.socket(fileno=int(argv[0]))
    listener.set_inheritable(False)
    settings = json.loads(argv[1])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warm = WarmProcess(settings, listener)
    warm.warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the node workers
    warm.serve()
    return 0


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    os._exit(main(sys.argv[1:]))
