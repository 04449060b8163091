"""A process that has imported all that commands need, and does each as a fork of itself; private to its user.

It is a warm process as those of ranks are (`worker/warm.py`), with their protocol, in their folder: `windlass warm ls`
shows it, `windlass warm stop` ends it. A fork takes the caller's place, or keeps a run on a cluster:

| request | descriptors | then |
|---|---|---|
| `{"do": "fork", "argv": […], "inherit": …}` | input, output, errors, working folder | numbers of signals come, a byte each; the exit code goes back |
| `{"do": "fork", "keep": [home, run], "inherit": …}` | the run's lock, its log | nothing |

A caller that dies takes its command with it.
"""  # noqa: E501

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Final

from windlass.cli.entry import TO_GROUP
from windlass.engines.ahead import READ_AT_START, name_here
from windlass.worker import process
from windlass.worker.likeness import Likeness, take_on
from windlass.worker.warm import WarmProcess, import_all
from windlass.worker.warm import main as serve

OF_ITS_OWN: Final = ("HOME", "PATH")
"""Of the environment, besides what is read once. The rest may have secrets, and each caller brings its own."""
LIBRARIES: Final = ("kubernetes.client.rest", "kubernetes.config.kube_config", "kubernetes.stream.ws_client")
NOT_OURS: Final = ("windlass.train", "windlass.worker", "windlass.engines.fake", "windlass.engines.fakerank")
"""What runs beside ranks, or in tests."""


def begin(home: str) -> None:
    """Have such a process from now on, for commands like this one. Where it cannot be had, the next is as slow."""
    from windlass.engines.local.warm import WarmPool

    kept = {name: value for name, value in os.environ.items() if name.startswith(READ_AT_START) or name in OF_ITS_OWN}
    with contextlib.suppress(OSError):
        # -P: the folder where it is started is not one to import from.
        command = [sys.executable, "-P", "-m", "windlass.cli.ahead"]
        WarmPool(Path(home)).begin(name_here(), command, ["windlass"], kept)


class WarmCommands(WarmProcess):
    """Does commands of `windlass`, each in a fork."""

    def import_modules(self) -> tuple[Likeness, str]:
        """See `WarmProcess`: all of Windlass that a command may come to need, and the libraries below it."""
        from windlass.worker.forksafe import Imports

        imports = Imports()
        broken = import_all([*_ours(), *LIBRARIES])
        _rehearse()
        imports.close()
        return Likeness(imports), broken or imports.why_unsafe()

    def refusal(self, request: dict[str, Any]) -> dict[str, Any]:
        """See `WarmProcess`."""
        return self.outdated(str(self.forks))

    def become(self, client: socket.socket, request: dict[str, Any], descriptors: list[int]) -> int:
        """In the fork: be the process that the caller would have become, or started."""
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if "keep" in request:
            client.close()
            return self._keep(request, *descriptors)
        code = self._command(client, request, *descriptors)
        with contextlib.suppress(OSError):
            client.sendall(b"%d" % code)
        return code

    def _command(self, client: socket.socket, request: dict[str, Any], *descriptors: int) -> int:
        *streams, folder = descriptors
        os.fchdir(folder)
        os.close(folder)
        self._take_place(request, ["windlass", *request["argv"]], streams)
        threading.Thread(target=_hear, args=(client,), daemon=True).start()
        return _do(request["argv"])

    def _keep(self, request: dict[str, Any], lock: int, log: int) -> int:
        from windlass.engines.keeping.keeper import main
        from windlass.engines.kubernetes.engine import KEEPER
        from windlass.engines.kubernetes.ground import ClusterGround

        home, run_id = request["keep"]
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDONLY)
        self._take_place(request, [sys.executable, str(KEEPER), home, run_id, str(lock)], [null, os.dup(log), log])
        return main([home, run_id, str(lock)], ClusterGround)

    def _take_place(self, request: dict[str, Any], argv: list[str], streams: list[int]) -> None:
        """Take on what the caller has, and would have given to a process that it starts."""
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        take_on(request["inherit"])
        sys.argv = argv
        self.likeness.undo(argv)
        for number in request["inherit"]["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        process.rename(argv)


def _ours() -> list[str]:
    """The modules of Windlass that commands may import."""
    import pkgutil

    import windlass

    found = (one.name for one in pkgutil.walk_packages(windlass.__path__, "windlass.", onerror=lambda _: None))
    return [name for name in found if not name.startswith(NOT_OURS) and not name.endswith(("__main__", "cli.ahead"))]


def _rehearse() -> None:
    """Have made what libraries make when it is first asked for: validators of the job file and of targets."""
    from windlass.spec.job import Job
    from windlass.spec.targets import KubernetesTarget

    Job(name="a", run="a.py")
    KubernetesTarget(name="a", context="a", image="a")


def _hear(client: socket.socket) -> None:
    """Take the caller's signals for our own; without a caller there is no command."""
    while True:
        try:
            numbers = client.recv(16)
        except OSError:
            numbers = b""
        if not numbers:
            os.kill(os.getpid(), signal.SIGKILL)  # as the caller was: what a killed command leaves is known how to mend
        for number in numbers:
            if number in TO_GROUP:
                os.killpg(0, number)
            else:
                os.kill(os.getpid(), number)


def _do(arguments: list[str]) -> int:
    """The command, to its very end; gives the exit code."""
    import atexit

    from windlass.cli.main import main

    code = 0
    try:
        main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    ending: Any = (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush)  # type: ignore[attr-defined]
    for step in ending:
        try:
            step()
        except BrokenPipeError:
            code = code or 120  # as an interpreter that could not flush
    return code


if __name__ == "__main__":
    os._exit(serve(sys.argv[1:], WarmCommands))
