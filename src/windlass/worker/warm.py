"""A process that has imported what scripts import, and forks node workers on request; private to its user.

One such process serves one interpreter, one environment and one set of installed packages. It runs no operation of any
library, has one thread, and never touches a GPU: a fork of it is as good as a new interpreter that has just finished
its imports. Whenever that cannot be promised it refuses, says why, and the caller starts cold.

The protocol, on a Unix socket in a folder that only the user may enter: one JSON line with the descriptors of the node
(`output`, and those of `keep`, in order) attached; one JSON line back.

| request | answer |
|---|---|
| `{"do": "fork", "spec": path, "script": path, "inherit": …}` | `pid`, or `refused` with `lasting` or `again` |
| `{"do": "show"}` | import_seconds, age_seconds, resident_bytes, forks |
| `{"do": "stop"}` | `{"stopped": true}` |

A forked worker does nothing before the caller has sent one byte more: a caller that gave up, and started cold, is not
to have two of them.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.worker.likeness import Likeness

ACCEPT_SECONDS = 2.0
"""How often an idle process looks whether it is still wanted: its socket's file may have been removed with its home."""
CALLER_SECONDS = 5.0
"""How long a caller may take to send its request."""
REQUEST_BYTES = 1 << 20
MAX_DESCRIPTORS = 16
DEFAULT_MODULES = {
    # DDP and the first optimizer import torch._dynamo, which takes as long as torch itself.
    # Loads its parts when they are first asked for; the Trainer's take as long as torch itself.
    "transformers": ("transformers", "torch._dynamo", "transformers.trainer"),
    "torch": ("torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch.optim"),
}
"""What is imported with a module, since nearly every script that imports it comes to need it."""


class WarmProcess:
    """Imports once, forks often."""

    def __init__(self, socket_path: str, modules: list[str], idle_seconds: float, max_resident_bytes: int) -> None:
        self.socket_path = socket_path
        self.modules = modules
        self.idle_seconds = idle_seconds
        self.max_resident_bytes = max_resident_bytes
        self.started_at = time.monotonic()
        self.import_seconds = 0.0
        self.forks = 0
        self.unsafe = ""
        """Why nothing may ever be forked from here; empty where all is well."""
        self.stale = False
        """Whether another process, started now, would do."""
        self.files: dict[str, tuple[int, int]] = {}
        self.looked_for = ""
        self.socket_identity = _identity(socket_path)

    # -- warming ------------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Import the modules, and find out whether a fork is then as good as a new interpreter."""
        from windlass.worker.forksafe import fingerprint

        began = time.time_ns()
        self.likeness, self.unsafe = self.import_modules()
        self.files = fingerprint()
        if any(changed > began for changed, _ in self.files.values()):
            self.stale = True  # something was installed meanwhile: one part of it may be old, another new
        self.import_seconds = time.monotonic() - self.started_at
        gc.collect()
        with open(self._path("ready"), "w"):
            pass
        gc.freeze()  # a collection in the forked ranks must not touch, and so copy, every page of the imports

    def import_modules(self) -> tuple[Likeness, str]:
        """What forks have to undo, and why none may be made."""
        return import_ahead(self.modules)

    def refusal(self, request: dict[str, Any]) -> dict[str, Any]:
        """Why no fork can run this script as the node of this spec; empty where one can."""
        from windlass.worker.forksafe import shadowed

        # The nodes of one attempt ask within milliseconds.
        if refused := self.outdated(os.path.dirname(request["spec"])):
            return refused
        hidden = shadowed(request["script"])
        return {"refused": f"{hidden} would be imported in place of a module already imported"} if hidden else {}

    def outdated(self, occasion: str) -> dict[str, Any]:
        """Why nothing can be forked any more; files are looked at once for each occasion."""
        from windlass.worker.forksafe import fingerprint, why_unsafe

        self.unsafe = self.unsafe or why_unsafe()
        if self.unsafe:
            return {"refused": self.unsafe, "lasting": True}
        if occasion != self.looked_for:
            self.stale = self.stale or fingerprint(self.files) != self.files
            self.looked_for = occasion
        return {"refused": "installed packages changed since they were imported", "again": True} if self.stale else {}

    # -- serving ------------------------------------------------------------------------------------------------------

    def serve(self, listener: socket.socket) -> None:
        """Answer until told to stop, idle for too long, unsafe, stale, too large, or the socket's file is gone."""
        listener.settimeout(min(ACCEPT_SECONDS, self.idle_seconds))
        idle_since = time.monotonic()
        while not (self.unsafe or self.stale or resident_bytes() > self.max_resident_bytes):
            try:
                client, _ = listener.accept()
            except socket.timeout:  # noqa: UP041 - they are two before Python 3.10
                if time.monotonic() - idle_since >= self.idle_seconds or not self._owns_socket():
                    break
                continue
            idle_since = time.monotonic()
            if self._hear(client, listener):
                break
        # No caller comes in any more; those who have come already are told.
        self._withdraw()
        listener.setblocking(False)
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._hear(client, listener, ending=True)

    def _withdraw(self) -> None:
        """Let nobody find us any more."""
        if self._owns_socket():
            for kind in ("sock", "ready", "json"):
                try:
                    os.unlink(self._path(kind))
                except OSError:
                    pass

    def _path(self, kind: str) -> str:
        return f"{os.path.splitext(self.socket_path)[0]}.{kind}"

    def _owns_socket(self) -> bool:
        try:
            return _identity(self.socket_path) == self.socket_identity
        except OSError:
            return False

    def _hear(self, client: socket.socket, listener: socket.socket, *, ending: bool = False) -> bool:
        """Answer one caller; gives whether it wants us to end."""
        with client:
            client.settimeout(CALLER_SECONDS)
            try:
                if _peer_uid(client) != os.getuid():
                    return False
                request, descriptors = _receive(client)
                try:
                    return self._answer(client, listener, request, descriptors, ending)
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                return False  # a caller that died or spoke nonsense; the next one is not to suffer

    def _answer(
        self, client: socket.socket, listener: socket.socket, request: dict[str, Any], descriptors: list[int],
        ending: bool,
    ) -> bool:  # fmt: skip
        if request["do"] == "fork":
            refused = self.refusal(request)
            if ending and not refused:
                refused = {"refused": "the warm process was about to end", "again": True}
            if refused:
                if self.unsafe or self.stale:
                    self._withdraw()  # first: a caller that is told to try again is not to find us again
                _send(client, refused)
            else:
                self._fork(client, listener, request, descriptors)
        elif request["do"] == "show":
            _send(client, self.describe())
        elif request["do"] == "stop":
            _send(client, {"stopped": True})
            return True
        return False

    def describe(self) -> dict[str, Any]:
        """What `windlass warm ls` shows of a process that is ready."""
        return {
            "import_seconds": round(self.import_seconds, 3),
            "age_seconds": round(time.monotonic() - self.started_at, 1),
            "resident_bytes": resident_bytes(),
            "forks": self.forks,
        }

    def _fork(
        self, client: socket.socket, listener: socket.socket, request: dict[str, Any], descriptors: list[int]
    ) -> None:
        pid = os.fork()
        if pid:
            self.forks += 1
            _send(client, {"pid": pid})
            os.utime(self._path("ready"))
            return
        code = 1
        try:
            listener.close()
            client.settimeout(None)
            if client.recv(1):
                code = self.become(client, request, descriptors)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(code)

    def become(self, client: socket.socket, request: dict[str, Any], descriptors: list[int]) -> int:
        """In the fork: become the node worker that a new interpreter would have been, and run its ranks by forking."""
        from windlass.worker.likeness import take_on
        from windlass.worker.main import run_node
        from windlass.worker.start import WarmStart

        client.close()
        os.setsid()
        output, *kept = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        take_on(request["inherit"])
        for descriptor in kept:
            os.set_inheritable(descriptor, False)
        # What is kept open besides the first (the node's lock, the reserved port) is held by its mere number.
        return run_node(request["spec"], kept[0] if kept else None, WarmStart(self.likeness))


def import_ahead(modules: list[str]) -> tuple[Likeness, str]:
    """Import as a script would that has not begun, in a process that has done nothing else.

    Gives what forks have to undo, and why none may be made, which is empty where all is well.
    """
    from windlass.worker.forksafe import Imports
    from windlass.worker.likeness import Likeness

    # What the forks need of us, while this folder can still be imported from.
    for name in ("main", "start"):
        importlib.import_module(f"windlass.worker.{name}")
    rank = importlib.import_module("windlass.worker.rank")
    _without_own_folders()
    sys.argv = [""]
    # An import that keeps `__main__` is to keep the one that will be the script's.
    rank.prepare_main(rank.NOWHERE)
    held = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # else the import of NumPy starts a thread
    try:
        imports = Imports()
        broken = import_all(modules)
        imports.close()
        sys.stdout.flush()
        sys.stderr.flush()  # or every fork would write what is left in it
        _flush_c_streams()
        return Likeness(imports), broken or imports.why_unsafe()
    finally:
        if held is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = held


def import_all(modules: list[str]) -> str:
    """Import them. One that is not there is left to the script, which will say it better; gives which one broke."""
    for name in modules:
        for part in DEFAULT_MODULES.get(name, (name,)):
            before = set(sys.modules)
            try:
                importlib.import_module(part)
            except ModuleNotFoundError as error:
                if part.startswith(f"{error.name}.") or part == error.name:
                    break
                return f"{part} could not be imported ahead ({error})"
            except BaseException as error:
                if part != name and set(sys.modules) == before:
                    break  # a part that this build does not have
                return f"{part} could not be imported ahead ({type(error).__name__}: {error})"
    return ""


def _flush_c_streams() -> None:
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None:
        ctypes.CDLL(None).fflush(None)


def resident_bytes() -> int:
    """Memory of this process that is in RAM, shared pages included."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _identity(path: str) -> tuple[int, int]:
    """Which file this is. Its number alone is not enough: that of a removed socket is given to the next one made."""
    line = os.stat(path)
    return line.st_ino, line.st_mtime_ns


def _peer_uid(client: socket.socket) -> int:
    size = struct.calcsize("3i")
    credentials = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(credentials[1])


def _receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, descriptors, _, _ = socket.recv_fds(client, 65536, MAX_DESCRIPTORS)
    try:
        while not data.endswith(b"\n"):
            more = client.recv(65536)
            if not more or len(data) > REQUEST_BYTES:
                raise ValueError("a request is one line")
            data += more
        return json.loads(data), list(descriptors)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _send(client: socket.socket, answer: dict[str, Any]) -> None:
    client.sendall(json.dumps(answer).encode() + b"\n")


def _without_own_folders() -> None:
    """Leave in `sys.path` what a rank will have, and for its script's folder a place that is nowhere."""
    from windlass.worker.rank import NOWHERE

    del sys.path[0]  # the package's; what follows it is this file's, unless the interpreter was told to add no folder
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = NOWHERE


def main(argv: list[str], kind: type[WarmProcess] = WarmProcess) -> int:
    """`LISTENER_FD SETTINGS_JSON [PADDING]`: warm up, then serve the socket that is already listening.

    The socket listens before the imports begin, so a caller may connect at once and is answered when they are done.
    The padding gives ranks room for a command line of their own.
    """
    listener = socket.socket(fileno=int(argv[0]))
    listener.set_inheritable(False)
    settings = json.loads(argv[1])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warm = kind(settings["socket"], settings["modules"], settings["idle_seconds"], settings["max_resident_bytes"])
    warm.warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # node workers are reaped by the kernel
    warm.serve(listener)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    os._exit(main(sys.argv[1:]))
