"""Checks this machine for conditions that make runs fail, each with a fix. Writes nothing but a temporary probe
file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from windlass.engines.checks import Check, Level
from windlass.errors import StoreError
from windlass.runs.context import Context
from windlass.runs.private import refuse_foreign

MIN_PYTHON: Final = (3, 11)
GIB: Final = 1 << 30
LOW_HOME_BYTES: Final = 2 * GIB
"""Space for a few checkpoints of a small model."""
NO_HOME_BYTES: Final = 64 << 20
LOW_SHM_BYTES: Final = GIB
"""Minimum free shared memory. Docker's default of 64 MiB makes torch's data loaders fail with a bus error."""
LOW_MEMORY_BYTES: Final = 2 * GIB
LOW_FILES: Final = 4096
"""Minimum limit of open files. A run of 64 ranks opens a few hundred; data loaders open thousands."""
ASK_SECONDS: Final = 60.0
"""Seconds to import torch in the script's interpreter. A cold file system may need half of this time."""
Result = tuple[Level, str, str]
"""Level of a check's result, the finding, and the fix."""


def checks(context: Context) -> Iterator[Check]:
    """Runs all checks one after the other. An exception is reported as a warning, and the next check runs."""
    for name, look in CHECKS.items():
        try:
            yield Check(name, *look(context))
        except Exception as error:  # `doctor` must also work on machines with unforeseen problems
            yield Check(name, "warn", f"could not be checked: {type(error).__name__}: {error}")


def _python(_: Context) -> Result:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < MIN_PYTHON:
        return "fail", version, "install Python 3.11 or newer"
    return "ok", f"{version} at {sys.executable}", ""


def _home(context: Context) -> Result:
    home = context.home
    there = home
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        # If the home does not exist yet, its parent is probed, so that `doctor` leaves no files behind.
        with tempfile.NamedTemporaryFile(dir=there, prefix=".windlass-doctor-") as probe:
            probe.write(b"windlass")
            probe.flush()
    except OSError as error:
        fix = f"make {there} writable, or set WINDLASS_HOME to a folder that is"
        return "fail", f"{home} cannot be written: {error.strerror}", fix
    if there == home:
        try:
            refuse_foreign(home)
        except StoreError as error:
            return "fail", error.message, error.hint
    free = shutil.disk_usage(there).free
    found = f"{home}, {_size(free)} free"
    if free < NO_HOME_BYTES:
        return "fail", found, "free some space: windlass ps --all, windlass rm RUN"
    if free < LOW_HOME_BYTES:
        return "warn", found, "checkpoints may not fit: set outputs: to a larger disk, or windlass rm RUN"
    return "ok", found, ""


def _record(context: Context) -> Result:
    import sqlite3

    from windlass.runs.store import SCHEMA_VERSION

    version = sqlite3.sqlite_version
    with (
        tempfile.TemporaryDirectory(dir=context.home if context.home.is_dir() else None) as folder,
        contextlib.closing(sqlite3.connect(Path(folder) / "probe.db")) as database,
    ):
        mode = database.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if str(mode).lower() != "wal":
        fix = "set WINDLASS_HOME to a local disk: network file systems lack what several readers need"
        return "fail", f"SQLite {version} gets no WAL here ({mode})", fix
    path = context.home / "record.db"
    if not path.exists():
        return "ok", f"SQLite {version}, WAL; no run yet", ""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        try:
            state = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            tables = database.execute("PRAGMA user_version").fetchone()[0]
            many = database.execute("SELECT count(*) FROM runs").fetchone()[0]
        except sqlite3.DatabaseError as error:
            state, many, tables = str(error), 0, SCHEMA_VERSION
    if state == "ok" and tables != SCHEMA_VERSION:
        found = f"{path} has tables of version {tables}, and this Windlass reads {SCHEMA_VERSION}"
        return "fail", found, "use the Windlass that wrote it, or set WINDLASS_HOME to another folder"
    if state == "ok":
        return "ok", f"SQLite {version}, WAL; {many} {'run' if many == 1 else 'runs'}", ""
    return "fail", f"{path} is damaged: {state}", f"move it away: mv {path} {path}.damaged"


def _cores(_: Context) -> Result:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    there = os.cpu_count() or usable
    quota = _cpu_quota()
    found = f"{usable} of {there}" if usable < there else str(usable)
    if quota is not None and quota < usable:
        fix = f"plan for {max(1, int(quota))} ranks: more of them wait for one another"
        return "warn", f"{found}, but this container may use {quota:g}", fix
    return "ok", found, ""


def _cpu_quota() -> float | None:
    """Returns the cores that the control group allows; None without a limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def _memory(_: Context) -> Result:
    fields = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _colon, rest = line.partition(":")
            fields[name] = int(rest.split()[0]) * 1024
    if "MemTotal" not in fields:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return "ok", _size(pages), ""
    total, free = fields["MemTotal"], fields.get("MemAvailable", fields["MemTotal"])
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        total, free = min(total, limit), min(free, max(0, limit - used))
    found = f"{_size(free)} free of {_size(total)}"
    if free < LOW_MEMORY_BYTES:
        return "warn", found, "end what else uses it: a rank that imports torch takes about 0.3 GiB"
    return "ok", found, ""


def _shared_memory(_: Context) -> Result:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return "warn", "no /dev/shm", "data loaders with workers need it: use num_workers=0"
    free = shutil.disk_usage(folder).free
    found = f"{_size(free)} free in {folder}"
    if not os.access(folder, os.W_OK):
        return "warn", f"{folder} cannot be written", "mount it with mode 1777"
    if free < LOW_SHM_BYTES:
        fix = "data loaders may die of a bus error: start the container with --shm-size=8g"
        return "warn", found, fix
    return "ok", found, ""


def _open_files(_: Context) -> Result:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LOW_FILES:
        shown = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} at most"
        return "ok", shown, ""
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    return "warn", f"{soft:,} at most", f"data loaders may need more: ulimit -n {most}"


def _loopback(_: Context) -> Result:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            with socket.create_connection(listener.getsockname(), timeout=5):
                pass
        except OSError as error:
            fix = "ranks meet there: bring the interface lo up"
            return "fail", f"127.0.0.1 cannot be reached: {error}", fix
    try:
        address = socket.gethostbyname("localhost")
    except OSError as error:
        return "warn", f"localhost has no address: {error}", "add 127.0.0.1 localhost to /etc/hosts"
    if address.startswith("127."):
        return "ok", f"localhost is {address}", ""
    return "warn", f"localhost is {address}", "write 127.0.0.1 localhost into /etc/hosts"


def _gpus(_: Context) -> Result:
    from windlass.engines.local.facts import find_gpus

    gpus = find_gpus()
    if not gpus and shutil.which("nvidia-smi"):
        return "warn", "nvidia-smi is installed but reports no GPU", "run it to see the error: nvidia-smi"
    kinds = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    return "ok", ", ".join(kinds) or "none: ranks compute on the cores", ""


def _interpreter(context: Context) -> Result:
    """Checks the interpreter that runs scripts of jobs without `python:`, and its torch."""
    from windlass.engines.interpreter import find_python

    python = find_python(None, context.cwd, context.environ)
    if not os.access(python, os.X_OK):
        fix = "activate an existing environment, or set python: in the job"
        return "fail", f"no interpreter at {python}", fix
    code = (
        "import sys\n"
        "print('.'.join(map(str, sys.version_info[:3])))\n"
        "try:\n import torch\nexcept ImportError as error:\n print('no', error)\n"
        "else:\n print(torch.__version__, torch.version.cuda or 'none', torch.cuda.device_count())\n"
    )
    command = [str(python), "-c", code]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False, cwd="/", stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "warn", f"{python} took longer than {ASK_SECONDS:.0f} s to import torch", "try again"
    except OSError as error:
        return "fail", f"{python} cannot be started: {error.strerror}", "set python: in the job"
    lines = answer.stdout.splitlines()
    if answer.returncode != 0 or len(lines) < 2:
        last = (answer.stderr.strip().splitlines() or ["no output"])[-1]
        return "warn", f"{python}: {last}", "import torch in it by hand to see more"
    version, torch = lines[0], lines[-1].split()
    if torch[0] == "no":
        fix = f"install it there, if your script needs it: {python} -m pip install torch"
        return "warn", f"{version} at {python}, without torch", fix
    cuda = "no CUDA" if torch[1] == "none" else f"CUDA {torch[1]}, {torch[2]} usable"
    return "ok", f"{version} at {python}, torch {torch[0]} ({cuda})", ""


def _version(name: str, context: Context, without: str) -> Result:
    """Reports the version of an optional program; `without` names the consequence if it is not installed."""
    path = shutil.which(name, path=context.environ.get("PATH"))
    if path is None:
        return "ok", f"not installed: {without}", ""
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "ok", f"{path} does not answer ({type(error).__name__})", ""
    return "ok", f"{(answer.stdout.strip().splitlines() or ['no output'])[0]} at {path}", ""


def _size(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / (1 << 20):.0f} MiB"


CHECKS: Final[Mapping[str, Callable[[Context], Result]]] = {
    "python": _python,
    "home": _home,
    "record": _record,
    "cores": _cores,
    "memory": _memory,
    "shared memory": _shared_memory,
    "open files": _open_files,
    "loopback": _loopback,
    "gpus": _gpus,
    "script's python": _interpreter,
    "mpirun": lambda context: _version("mpirun", context, "only launcher: mpi needs it"),
    "git": lambda context: _version("git", context, "ignore files are read without it"),
}
