"""Checks that this process is safe to fork: a fork must be like a new interpreter that has done the same imports.

Checks for threads, child processes, open files, shared memory, native signal handlers, GPU contexts, variables of a
single rank, and packages that changed on disk. Finally, a trial fork computes with the imported libraries.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import resource
import signal
import sys
import time
from typing import Any

from windlass.worker import blas_threads, process
from windlass.worker.environ_watch import EnvironWatch

OVERWRITTEN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGPIPE)
"""Signals whose handlers a node worker replaces. In ranks, the handlers that imports have set are restored."""
THREAD_PATIENCE_SECONDS = 0.5
"""Seconds within which threads started by imports must end."""
TRIAL_SECONDS = 10
LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


class Imports:
    """Side effects of imports on this process. Create the object before the imports, and close it after them."""

    def __init__(self, initial: dict[str, str]) -> None:
        """`initial` is the environment with which this process was started."""
        self.environ = dict(os.environ)
        self.state = process_state()
        self.descriptors = _descriptors()
        self.shared = _shared_memory()
        self.children = children()
        self.watch = EnvironWatch(initial)
        self.watch.record_start_code()
        self.watch.open()

    def close(self) -> None:
        """Stops watching the environment."""
        self.watch.close()

    def variables_changed(self) -> dict[str, str | None]:
        """Returns the environment variables that the imports have set. The value of removed variables is None."""
        now = dict(os.environ)
        gone: dict[str, str | None] = {name: None for name in self.environ if name not in now}
        return {**gone, **{name: value for name, value in now.items() if self.environ.get(name) != value}}

    def why_unsafe(self) -> str:
        """Returns why a fork would differ from a new interpreter; empty if it would not."""
        if self.watch.rank_variable:
            return f"an import reads {self.watch.rank_variable}, which differs between ranks"
        if reason := why_unsafe(THREAD_PATIENCE_SECONDS):
            return reason
        if children() - self.children:  # checked before the first fork, after which node workers are children too
            return "the imports left a process running, which would not be a child of the ranks"
        if changed := [name for name, value in process_state().items() if value != self.state[name]]:
            return f"the imports changed the {changed[0]} of their process"
        if opened := [path for number, path in _descriptors().items() if number not in self.descriptors]:
            return f"the imports left {opened[0]} open, which ranks would share"
        if shared := _shared_memory() - self.shared:
            return f"the imports made shared memory ({min(shared)}), which ranks would share"
        if any(signal.getsignal(number) is None for number in OVERWRITTEN_SIGNALS):
            return "the imports set a native signal handler"
        blas_threads.set_threads(self.watch.initial)  # forking has ended the BLAS threads of this process, too
        return _trial() or why_unsafe(THREAD_PATIENCE_SECONDS)


def why_unsafe(patience_seconds: float = 0.0) -> str:
    """Checks only what may change at any time: threads, CUDA, tracers. Returns the reason, empty if a fork is safe."""
    give_up = time.monotonic() + patience_seconds
    while (threads := _threads()) > 1 and time.monotonic() < give_up:
        time.sleep(0.01)
    if threads > 1:
        extra = threads - 1
        return f"the imports left {extra} extra thread{'s' if extra > 1 else ''}, which a fork would lose"
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    has_device = any(path.startswith("/dev/nvidia") for path in _descriptors().values())
    if has_device or (cuda is not None and cuda.is_initialized()):
        return "the imports initialised CUDA, which does not survive a fork"
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return "a tracer or profiler is active"
    return ""


def _trial() -> str:
    """Forks once and computes in the child, to find libraries that do not work after a fork. Returns the reason, or
    empty.
    """
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(TRIAL_SECONDS)
            null = os.open(os.devnull, os.O_RDWR)
            for number in (1, 2):
                os.dup2(null, number)
            os._exit(0 if _computes() else 1)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return "" if status == 0 else "in a trial fork the imported libraries could not compute"


def _computes() -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "ones"):
        if torch.cuda._is_in_bad_fork():
            return False
        weights = torch.ones(8, 8, requires_grad=True)
        (weights @ weights).sum().backward()
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "ones"):
        numpy.ones((8, 8)) @ numpy.ones((8, 8))
    return True


def process_state() -> dict[str, Any]:
    """Returns the process settings that children inherit and imports can change, as JSON data for
    `fork_reset.inherit`.
    """
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "umask": mask,
        "limits": {str(number): list(resource.getrlimit(number)) for number in LIMITS},
        "niceness": os.nice(0),
        "CPU affinity": sorted(os.sched_getaffinity(0)),
        "signal mask": sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "working folder": os.getcwd(),
    }


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def children() -> set[str]:
    """Returns the process ids of this process's children."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return set(file.read().split())
    except OSError:
        return set()  # this kernel lacks the file


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _shared_memory() -> set[str]:
    """Returns the mappings that a fork would share with its parent instead of copying."""
    with open("/proc/self/maps", "rb") as file:  # paths may contain any bytes
        lines = [os.fsdecode(line).split(None, 5) for line in file]
    return {(line[5].strip() if len(line) > 5 else "anonymous") for line in lines if line[1].startswith("rw-s")}


# -- packages on disk -------------------------------------------------------------------------------------------------


def package_fingerprint(known: dict[str, tuple[int, int]] | None = None) -> dict[str, tuple[int, int]]:
    """Returns mtime and size of all imported or loaded files, and of the folders where packages are installed.

    If `known` is given, checks the paths in `known` instead.
    """
    paths = set(known) if known is not None else {*_imported_files(), *process.mapped("/"), *package_folders()}
    found = {}
    for path in paths:
        try:
            line = os.stat(path)
            found[path] = (line.st_mtime_ns, line.st_size)
        except OSError:
            found[path] = (0, 0)
    return found


def _imported_files() -> set[str]:
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {path for path in files if isinstance(path, str)}


def package_folders() -> list[str]:
    """Returns the package folders of this interpreter. Installing, upgrading or removing a package changes one of them.

    `bin` is left out: it contains no packages, but is in `sys.path` of programs started from there.
    """
    found = [path for path in sys.path if os.path.isdir(path) and _is_installed(path)]
    return [path for path in found if os.path.basename(path) != "bin"]


def _is_installed(path: str) -> bool:
    real = os.path.realpath(path)
    return any(real.startswith(os.path.realpath(prefix) + os.sep) for prefix in (sys.prefix, sys.base_prefix))


# -- files that would be imported instead -----------------------------------------------------------------------------


def shadowed(script: str) -> str:
    """Returns a file next to the script or in `PYTHONPATH` that would be imported instead of an imported module; empty
    if none.
    """
    folders = [] if getattr(sys.flags, "safe_path", False) else [os.path.dirname(os.path.realpath(script))]
    for path in sys.path:
        if os.path.isdir(path):
            if _is_installed(path):
                break
            folders.append(path)
    for number, folder in enumerate(folders):
        try:
            names = {name.split(".")[0] for name in os.listdir(folder)}
        except OSError:
            continue
        for name in sorted(names - {"__main__"}):  # iterating over all modules would copy their memory pages
            if name in sys.modules and (found := _would_be_found(name, folder, folders[: number + 1])):
                return found
    return ""


def _would_be_found(name: str, folder: str, earlier: list[str]) -> str:
    own = getattr(sys.modules[name], "__spec__", None)
    if own is None or own.origin in ("built-in", "frozen"):
        return ""  # such modules are found before any folder is searched
    importlib.machinery.PathFinder.invalidate_caches()
    found = importlib.machinery.PathFinder.find_spec(name, [folder])
    if found is None or found.loader is None or found.origin is None:
        return ""
    origin = os.path.realpath(own.origin) if own.origin else ""
    if os.path.realpath(found.origin) == origin or any(origin.startswith(os.path.realpath(f) + "/") for f in earlier):
        return ""
    return found.origin
