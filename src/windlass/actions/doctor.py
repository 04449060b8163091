"""Looks at this machine and says what would stand in a run's way, with the fix. Changes nothing but a probe file."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from windlass.actions.edge import Edge
from windlass.engines.checking import Check
from windlass.errors import StoreError
from windlass.runs.private import refuse_foreign

MIN_PYTHON: Final = (3, 11)
GIB: Final = 1 << 30
LOW_HOME_BYTES: Final = 2 * GIB
"""A checkpoint or two of a small model."""
NO_HOME_BYTES: Final = 64 << 20
LOW_SHM_BYTES: Final = GIB
"""Docker gives 64 MiB, with which torch's data loaders die of a bus error."""
LOW_MEMORY_BYTES: Final = 2 * GIB
LOW_FILES: Final = 4096
"""A run of 64 ranks holds a few hundred files; data loaders hold thousands."""
ASK_SECONDS: Final = 60.0
"""How long the script's interpreter may take to import torch; a cold file system needs half of it."""


def checks(edge: Edge) -> Iterator[Check]:
    """Everything worth looking at, one after the other; a check that breaks says so and the others go on."""
    looks: list[tuple[str, Callable[[Edge], Iterator[Check]]]] = [
        ("python", _python),
        ("home", _home),
        ("record", _record),
        ("cores", _cores),
        ("memory", _memory),
        ("shared memory", _shared_memory),
        ("open files", _open_files),
        ("loopback", _loopback),
        ("gpus", _gpus),
        ("script's python", _interpreter),
        ("mpirun", _mpirun),
        ("git", _git),
    ]
    for name, look in looks:
        try:
            yield from look(edge)
        except Exception as error:  # a machine of a kind nobody has thought of is what this command is for
            yield Check(name, "warn", f"could not be looked at: {type(error).__name__}: {error}")


def _python(_: Edge) -> Iterator[Check]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < MIN_PYTHON:
        yield Check("python", "fail", version, "install Python 3.11 or newer")
    else:
        yield Check("python", "ok", f"{version} at {sys.executable}")


def _home(edge: Edge) -> Iterator[Check]:
    home = edge.home
    there = home
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        # Where the folder is not there yet, its parent is tried: doctor makes nothing that it does not remove.
        with tempfile.NamedTemporaryFile(dir=there, prefix=".windlass-doctor-") as probe:
            probe.write(b"windlass")
            probe.flush()
    except OSError as error:
        fix = f"make {there} writable, or set WINDLASS_HOME to a folder that is"
        yield Check("home", "fail", f"{home} cannot be written: {error.strerror}", fix)
        return
    if there == home:
        try:
            refuse_foreign(home)
        except StoreError as error:
            yield Check("home", "fail", error.message, error.hint)
            return
    free = shutil.disk_usage(there).free
    found = f"{home}, {_size(free)} free"
    if free < NO_HOME_BYTES:
        yield Check("home", "fail", found, "free some space: windlass ps --all, windlass rm RUN")
    elif free < LOW_HOME_BYTES:
        yield Check("home", "warn", found, "checkpoints may not fit: set outputs: to a larger disk, or windlass rm RUN")
    else:
        yield Check("home", "ok", found)


def _record(edge: Edge) -> Iterator[Check]:
    import sqlite3

    version = sqlite3.sqlite_version
    with (
        tempfile.TemporaryDirectory(dir=edge.home if edge.home.is_dir() else None) as folder,
        contextlib.closing(sqlite3.connect(Path(folder) / "probe.db")) as database,
    ):
        mode = database.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if str(mode).lower() != "wal":
        fix = "set WINDLASS_HOME to a local disk: network file systems lack what several readers need"
        yield Check("record", "fail", f"SQLite {version} gets no WAL here ({mode})", fix)
        return
    path = edge.home / "record.db"
    if not path.exists():
        yield Check("record", "ok", f"SQLite {version}, WAL; no run yet")
        return
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        try:
            state = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            many = database.execute("SELECT count(*) FROM runs").fetchone()[0]
        except sqlite3.DatabaseError as error:
            state, many = str(error), 0
    if state == "ok":
        yield Check("record", "ok", f"SQLite {version}, WAL; {many} runs")
    else:
        yield Check("record", "fail", f"{path} is damaged: {state}", f"move it away: mv {path} {path}.damaged")


def _cores(_: Edge) -> Iterator[Check]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    there = os.cpu_count() or usable
    quota = _cpu_quota()
    found = f"{usable} of {there}" if usable < there else str(usable)
    if quota is not None and quota < usable:
        fix = f"plan for {max(1, int(quota))} ranks: more of them wait for one another"
        yield Check("cores", "warn", f"{found}, but this container may use {quota:g}", fix)
    else:
        yield Check("cores", "ok", found)


def _cpu_quota() -> float | None:
    """Cores that the control group allows; None where it sets no limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def _memory(_: Edge) -> Iterator[Check]:
    fields = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _colon, rest = line.partition(":")
            fields[name] = int(rest.split()[0]) * 1024
    if "MemTotal" not in fields:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        yield Check("memory", "ok", _size(pages))
        return
    total, free = fields["MemTotal"], fields.get("MemAvailable", fields["MemTotal"])
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        total, free = min(total, limit), min(free, max(0, limit - used))
    found = f"{_size(free)} free of {_size(total)}"
    if free < LOW_MEMORY_BYTES:
        yield Check("memory", "warn", found, "end what else uses it: a rank that imports torch takes about 0.3 GiB")
    else:
        yield Check("memory", "ok", found)


def _shared_memory(_: Edge) -> Iterator[Check]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        yield Check("shared memory", "warn", "no /dev/shm", "data loaders with workers need it: use num_workers=0")
        return
    free = shutil.disk_usage(folder).free
    found = f"{_size(free)} free in {folder}"
    if not os.access(folder, os.W_OK):
        yield Check("shared memory", "warn", f"{folder} cannot be written", "mount it with mode 1777")
    elif free < LOW_SHM_BYTES:
        fix = "data loaders may die of a bus error: start the container with --shm-size=8g"
        yield Check("shared memory", "warn", found, fix)
    else:
        yield Check("shared memory", "ok", found)


def _open_files(_: Edge) -> Iterator[Check]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LOW_FILES:
        shown = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} at most"
        yield Check("open files", "ok", shown)
    else:
        most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
        yield Check("open files", "warn", f"{soft:,} at most", f"data loaders may need more: ulimit -n {most}")


def _loopback(_: Edge) -> Iterator[Check]:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            with socket.create_connection(listener.getsockname(), timeout=5):
                pass
        except OSError as error:
            fix = "ranks meet there: bring the interface lo up"
            yield Check("loopback", "fail", f"127.0.0.1 cannot be reached: {error}", fix)
            return
    try:
        address = socket.gethostbyname("localhost")
    except OSError as error:
        yield Check("loopback", "warn", f"localhost has no address: {error}", "add 127.0.0.1 localhost to /etc/hosts")
        return
    if address.startswith("127."):
        yield Check("loopback", "ok", f"localhost is {address}")
    else:
        yield Check("loopback", "warn", f"localhost is {address}", "write 127.0.0.1 localhost into /etc/hosts")


def _gpus(_: Edge) -> Iterator[Check]:
    from windlass.engines.local.facts import find_gpus

    gpus = find_gpus()
    if not gpus and shutil.which("nvidia-smi"):
        yield Check("gpus", "warn", "nvidia-smi is there, but answers with no GPU", "see what it says: nvidia-smi")
        return
    kinds = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    yield Check("gpus", "ok", ", ".join(kinds) or "none: ranks compute on the cores")


def _interpreter(edge: Edge) -> Iterator[Check]:
    """The interpreter that a script without `python:` gets, and the torch in it."""
    from windlass.engines.local.facts import find_python

    name = "script's python"
    python = find_python(None, edge.cwd, edge.environ)
    if not os.access(python, os.X_OK):
        fix = "activate an environment that is there, or set python: in the job"
        yield Check(name, "fail", f"no interpreter at {python}", fix)
        return
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
        yield Check(name, "warn", f"{python} took longer than {ASK_SECONDS:.0f} s to import torch", "try again, warm")
        return
    except OSError as error:
        yield Check(name, "fail", f"{python} cannot be started: {error.strerror}", "set python: in the job")
        return
    lines = answer.stdout.splitlines()
    if answer.returncode != 0 or len(lines) < 2:
        last = (answer.stderr.strip().splitlines() or ["it said nothing"])[-1]
        yield Check(name, "warn", f"{python}: {last}", "import torch in it by hand to see more")
        return
    version, torch = lines[0], lines[-1].split()
    if torch[0] == "no":
        fix = f"install it there, if your script needs it: {python} -m pip install torch"
        yield Check(name, "warn", f"{version} at {python}, without torch", fix)
        return
    cuda = "no CUDA" if torch[1] == "none" else f"CUDA {torch[1]}, {torch[2]} usable"
    yield Check(name, "ok", f"{version} at {python}, torch {torch[0]} ({cuda})")


def _mpirun(edge: Edge) -> Iterator[Check]:
    path = shutil.which("mpirun", path=edge.environ.get("PATH"))
    if path is None:
        yield Check("mpirun", "ok", "not installed: only launcher: mpi needs it")
        return
    yield Check("mpirun", "ok", f"{_first_line([path, '--version'])} at {path}")


def _git(edge: Edge) -> Iterator[Check]:
    path = shutil.which("git", path=edge.environ.get("PATH"))
    if path is None:
        yield Check("git", "ok", "not installed: ignore files are read without it")
        return
    yield Check("git", "ok", _first_line([path, "--version"]))


def _first_line(command: list[str]) -> str:
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not answer ({type(error).__name__})"
    return (answer.stdout.strip().splitlines() or ["says nothing"])[0]


def _size(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / (1 << 20):.0f} MiB"
