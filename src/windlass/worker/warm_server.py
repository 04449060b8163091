"""A process that has imported what scripts import, and forks node workers on request; private to its user.

One such process serves one interpreter, one environment and one set of installed packages. It runs no operation of any
library, has one thread, and never touches a GPU: a fork of it is as good as a new interpreter that has just finished
its imports. Where that does not hold it refuses with the reason, and the caller starts cold.

The protocol, on a Unix socket in a folder that only the user may enter: one JSON line, `{"spec": path, "script": path,
"inherit": …}`, with the descriptors of the node (`output`, and those of `keep`, in order) attached; one JSON line back,
with `pid`, or with `refused` and `lasting` or `again`.

A forked worker does nothing before the caller has sent one byte more: a caller that gave up, and started cold, must
not get a second one.
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
    from windlass.worker.fork_reset import ForkReset

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
        from windlass.worker.fork_safety import package_fingerprint

        began = time.time_ns()
        self.reset, self.unsafe = import_ahead(self.modules)
        self.files = package_fingerprint()
        if any(changed > began for changed, _ in self.files.values()):
            self.stale = True  # something was installed meanwhile: one part of it may be old, another new
        self.import_seconds = time.monotonic() - self.started_at
        gc.collect()
        self._write_ready()
        gc.freeze()  # a collection in the forked ranks must not touch, and so copy, every page of the imports

    def _write_ready(self) -> None:
        """Report the time of the imports and the number of forks to `windlass warm ls`."""
        path = self._path("ready")
        with open(f"{path}.new", "w") as file:
            json.dump({"import_seconds": round(self.import_seconds, 3), "forks": self.forks}, file)
        os.replace(f"{path}.new", path)

    def refusal(self, request: dict[str, Any]) -> dict[str, Any]:
        """Why no fork can run this script as the node of this spec; empty where one can."""
        from windlass.worker.fork_safety import shadowed

        # The nodes of one attempt ask within milliseconds.
        if refused := self.outdated(os.path.dirname(request["spec"])):
            return refused
        hidden = shadowed(request["script"])
        return {"refused": f"{hidden} would be imported in place of a module already imported"} if hidden else {}

    def outdated(self, occasion: str) -> dict[str, Any]:
        """Why nothing can be forked any more; files are looked at once for each occasion."""
        from windlass.worker.fork_safety import package_fingerprint, why_unsafe

        self.unsafe = self.unsafe or why_unsafe()
        if self.unsafe:
            return {"refused": self.unsafe, "lasting": True}
        if occasion != self.looked_for:
            self.stale = self.stale or package_fingerprint(self.files) != self.files
            self.looked_for = occasion
        return {"refused": "installed packages changed since they were imported", "again": True} if self.stale else {}

    # -- serving ------------------------------------------------------------------------------------------------------

    def serve(self, listener: socket.socket) -> None:
        """Answer until idle for too long, unsafe, stale, too large, or the socket's file is gone."""
        from windlass.worker.process import resident_bytes

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
            self._serve_caller(client, listener)
        # No caller finds the socket any more; those that are connected already get an answer.
        self._withdraw()
        listener.setblocking(False)
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._serve_caller(client, listener)

    def _withdraw(self) -> None:
        """Remove the files by which callers find this process."""
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

    def _serve_caller(self, client: socket.socket, listener: socket.socket) -> None:
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
                        self._fork(client, listener, request, descriptors)
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                pass  # a caller that died or sent something else; the next one must be served

    def _fork(
        self, client: socket.socket, listener: socket.socket, request: dict[str, Any], descriptors: list[int]
    ) -> None:
        pid = os.fork()
        if pid:
            self.forks += 1
            _send(client, {"pid": pid})
            if self._owns_socket():
                self._write_ready()
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
        from windlass.worker.fork_reset import inherit
        from windlass.worker.main import run_node
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


def import_ahead(modules: list[str]) -> tuple[ForkReset, str]:
    """Import as a script would that has not begun, in a process that has done nothing else.

    Gives what forks have to undo, and why none may be made, which is empty where all is well.
    """
    from windlass.worker.fork_reset import ForkReset
    from windlass.worker.fork_safety import Imports

    # What the forks need of us, while this folder can still be imported from.
    for name in ("main", "rank_start"):
        importlib.import_module(f"windlass.worker.{name}")
    rank = importlib.import_module("windlass.worker.rank")
    _without_own_folders()
    sys.argv = [""]
    # A module that keeps `__main__` must keep the one that will be the script's.
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
        return ForkReset(imports), broken or imports.why_unsafe()
    finally:
        if held is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = held


def import_all(modules: list[str]) -> str:
    """Import them; gives which one failed. One that is not installed is left to the script's own import error."""
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

    del sys.path[0]  # the package's; what follows it is this file's, unless the interpreter adds none (`-P`)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = NOWHERE


def main(argv: list[str]) -> int:
    """`LISTENER_FD SETTINGS_JSON [PADDING]`: warm up, then serve the socket that is already listening.

    The socket listens before the imports begin, so a caller may connect at once and is answered when they are done.
    The padding gives ranks room for a command line of their own.
    """
    listener = socket.socket(fileno=int(argv[0]))
    listener.set_inheritable(False)
    settings = json.loads(argv[1])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warm = WarmProcess(
        settings["socket"], settings["modules"], settings["idle_seconds"], settings["max_resident_bytes"]
    )
    warm.warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # node workers are reaped by the kernel
    warm.serve(listener)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    os._exit(main(sys.argv[1:]))
