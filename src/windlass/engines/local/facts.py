"""Reads the facts of this machine that a local plan depends on, without changing anything."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.code.imports import script_imports
from windlass.code.saves import saves_at_end
from windlass.engines import netns, ports
from windlass.engines.interpreter import find_python
from windlass.engines.sources import absolute, data_paths, missing_data
from windlass.errors import EngineError
from windlass.storage.address import STORES
from windlass.worker.devices import VISIBLE, num_visible
from windlass.worker.process import read_text

if TYPE_CHECKING:
    from windlass.spec.job import Job

LAUNCHERS = ("mpirun", "torchrun")
NETWORK_TOOLS = ("ip", "tc")
NETWORK_CAPABILITIES = {"NET_ADMIN": 12, "SYS_ADMIN": 21}
"""Bit numbers of capabilities, see capabilities(7)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that a local plan depends on."""

    home: str
    """Folder of the records."""
    code_dir: str
    """Absolute path of the job's folder, the working directory of scripts."""
    code_dir_found: bool
    python: str
    """Absolute path of the script's interpreter."""
    python_found: bool
    python_is_ours: bool
    """Whether the script's environment is that of Windlass, so that scripts can import `windlass.train` without
    PYTHONPATH."""
    own_python: str
    """Interpreter that runs Windlass."""
    package_root: str
    """Folder that contains the package `windlass`."""
    script_found: bool
    program: str | None
    """Absolute path of the program of a job that runs no Python script; None if it was not found."""
    script_imports: tuple[str, ...]
    """Top-level names of the modules imported by the script and by the files next to it."""
    num_cpus: int
    """Number of cores that this process may use."""
    gpus: tuple[str, ...]
    """Names of the GPUs, in index order."""
    is_root: bool
    launchers: Mapping[str, str | None]
    """Path of each launcher; None if it is not installed."""
    environ: frozenset[str]
    """Names of the environment variables that the ranks inherit. Values are never stored."""
    bad_data: Mapping[str, str] = field(default_factory=dict)
    """Why the source of a data set (a path or `file://`) cannot be read, by the data set's name."""
    busy_ports: frozenset[int] = field(default_factory=frozenset)
    """Ports named by the job that are in use."""
    missing_network_tools: frozenset[str] = frozenset()
    """Programs among `ip` and `tc` that are not installed."""
    missing_capabilities: frozenset[str] = frozenset()
    """Capabilities that this process lacks for creating networks."""
    is_open_mpi: bool = False
    """Whether `mpirun` is Open MPI's; read only for jobs that need it."""
    metadata_endpoint: str | None = None
    """Metadata endpoint of this EC2 instance; None on other machines, or if its use is disabled."""
    has_data_extra: bool = True
    """Whether the extra `data` is installed; read only for jobs that need it."""
    has_obstore: bool = True
    """Whether the script's interpreter has obstore; read only for jobs that need it."""
    bad_outputs: tuple[str, str] | None = None
    """Why outputs cannot be written to their folder or uploaded to their store, and what to try; None if no problem is
    known."""
    is_program_file: bool = False
    """Whether the code folder contains a file, executable or not, with the program's name."""
    python_version: tuple[int, int] | None = None
    """Major and minor version of the script's interpreter; None if the file name does not contain it."""
    num_visible_gpus: int | None = None
    """Number of GPUs in the shell's `CUDA_VISIBLE_DEVICES`; None if it is not set."""
    base: str = ""
    """Absolute path of the folder to which paths in the job are relative."""
    data_paths: Mapping[str, str] = field(default_factory=dict)
    """Absolute paths of the data sets that are read in place, by name."""
    saves_at_end: str = ""
    """Place of the first save in the script, if it is after all loops; empty if the script saves earlier, or if
    unknown."""
    outputs_dir: str | None = None
    """Absolute path of the folder in `outputs`; None if outputs stay with the run or go to a store."""


def read_facts(job: Job, *, base: Path, home: Path, environ: Mapping[str, str]) -> Facts:
    """Reads the facts for a plan of `job`, whose paths are relative to `base`."""
    code_dir = (base / job.code_path).absolute()
    python = find_python(job.python, base, environ)
    return Facts(
        home=str(home),
        code_dir=str(code_dir),
        code_dir_found=os.path.isdir(code_dir),  # noqa: PTH112 - Path's own raises for too long a name
        python=str(python),
        python_found=_is_program(python),
        python_is_ours=_same_environment(python),
        own_python=sys.executable,
        package_root=str(Path(__file__).parents[3]),
        script_found=_script_found(job, code_dir),
        program=_find_program(job.script_argv[0], code_dir, environ) if job.script_kind == "program" else None,
        script_imports=script_imports(job, code_dir),
        saves_at_end=saves_at_end(job, code_dir),
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        gpus=find_gpus(),
        is_root=os.geteuid() == 0,
        launchers={name: shutil.which(name, path=environ.get("PATH")) for name in LAUNCHERS},
        environ=frozenset(environ),
        bad_data=dict(missing_data(job, base)),
        busy_ports=frozenset(port for port in [job.local.port] if port and is_busy(port)),
        missing_network_tools=_missing_tools(environ) if job.local.netns else frozenset(),
        missing_capabilities=_missing_capabilities() if job.local.netns else frozenset(),
        is_open_mpi=job.launcher == "mpi" and _is_open_mpi(environ),
        metadata_endpoint=find_metadata(environ),
        has_data_extra=not (job.outputs.scheme or any(data.is_staged for data in job.data))
        or find_spec("obstore") is not None,
        has_obstore=not any(job.obstore_addresses()) or _may_have(python, "obstore", environ),
        bad_outputs=_bad_outputs(job, base, home),
        is_program_file=job.script_kind == "program" and _is_file(code_dir / job.script_argv[0]),
        python_version=_version(python),
        num_visible_gpus=num_visible(environ[VISIBLE]) if VISIBLE in environ else None,
        base=str(base.absolute()),
        data_paths=data_paths(job, base),
        outputs_dir=absolute(job.outputs.to, base) if job.outputs.to and not job.outputs.scheme else None,
    )


def find_metadata(environ: Mapping[str, str], dmi: Path = Path("/sys/class/dmi/id")) -> str | None:
    """Returns the endpoint of the instance metadata, from the same variables as AWS's tools; None outside EC2."""
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return None
    if endpoint := environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        return endpoint.rstrip("/")
    if not any("Amazon" in read_text(dmi / name) for name in ("sys_vendor", "bios_vendor", "board_vendor")):
        return None
    is_v6 = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "").lower() == "ipv6"
    return "http://[fd00:ec2::254]" if is_v6 else "http://169.254.169.254"


@functools.cache
def find_gpus() -> tuple[str, ...]:
    """Returns the names of this machine's NVIDIA GPUs, from the driver; empty without a driver."""
    if not Path("/proc/driver/nvidia").exists() or not shutil.which("nvidia-smi"):
        return ()
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(answer.stdout.split("\n")[:-1]) if answer.returncode == 0 else ()


def _bad_outputs(job: Job, base: Path, home: Path) -> tuple[str, str] | None:
    """Computes `Facts.bad_outputs`; for a missing folder, checks the nearest existing parent."""
    if job.outputs.to is None:
        return None
    where = job.outputs.to.removeprefix("file://")
    if job.outputs.scheme and not where.startswith("/"):
        if job.outputs.scheme not in STORES:
            return None
        from windlass.storage.reach import refusal

        refused = refusal(job.outputs.to, home)
        return (refused.message, refused.hint) if refused is not None else None
    path = Path(absolute(where, base))
    there = next(one for one in (path, *path.parents) if os.path.lexists(one))
    hint = "set outputs: to a folder that can be written"
    if not os.path.isdir(there):  # noqa: PTH112 - as above
        return f"{there} is no folder", hint
    return None if os.access(there, os.W_OK | os.X_OK) else (f"{there} cannot be written", hint)


def _version(python: Path) -> tuple[int, int] | None:
    """Returns the version in the file name of the interpreter, such as `python3.12`, because planning starts no
    interpreter.
    """
    found = re.fullmatch(r"python(\d)\.(\d+)", Path(os.path.realpath(python)).name)
    return (int(found[1]), int(found[2])) if found is not None else None


def _same_environment(python: Path) -> bool:
    """Whether `python` belongs to the environment that runs Windlass, possibly under another name."""
    return python.parent.resolve() == Path(sys.executable).parent.resolve() and _is_program(python)


def _script_found(job: Job, code_dir: Path) -> bool:
    return job.script_kind != "script" or _is_file(code_dir / job.script_argv[0])


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - Path's own raises for too long a name


def _is_program(path: Path) -> bool:
    return _is_file(path) and os.access(path, os.X_OK)


def _find_program(name: str, code_dir: Path, environ: Mapping[str, str]) -> str | None:
    here = code_dir / name
    if _is_program(here):
        return str(here)
    return None if "/" in name else shutil.which(name, path=environ.get("PATH"))


def is_busy(port: int) -> bool:
    """Whether another run or another program uses a port of this machine."""
    try:
        with ports.claim(port), ports.reserve(port):
            return False
    except EngineError:
        return True


def _is_open_mpi(environ: Mapping[str, str]) -> bool:
    path = shutil.which("mpirun", path=environ.get("PATH"))
    return path is not None and b"Open MPI" in _ask([path, "--version"])


def _may_have(python: Path, package: str, environ: Mapping[str, str]) -> bool:
    """Whether an interpreter may have a package; False only if its usual package folders lack it.

    Reads files only: planning must not run the interpreter that a job file names.
    """
    if not _is_program(python):
        return False
    with python.open("rb") as file:
        is_script = file.read(2) == b"#!"
    if is_script or "PYTHONPATH" in environ:
        return True  # a script may start any interpreter, and PYTHONPATH may name any folder
    prefixes = [python.parent.parent]
    if not (prefixes[0] / "pyvenv.cfg").is_file():
        prefixes = [python.resolve().parent.parent, Path("/usr/local"), Path(environ.get("HOME", "/"), ".local")]
    elif b"include-system-site-packages = false" not in (prefixes[0] / "pyvenv.cfg").read_bytes():
        return True
    folders = [folder for one in prefixes for folder in one.glob("lib*/python3*/*-packages")]
    return not folders or any((folder / package).is_dir() or _leads_on(folder) for folder in folders)


def _leads_on(folder: Path) -> bool:
    """Whether a `.pth` file adds folders to `sys.path`."""
    lines = [line for path in folder.glob("*.pth") for line in path.read_text(errors="replace").splitlines()]
    return any(line.strip() and not line.startswith(("import ", "import\t", "#")) for line in lines)


def _ask(command: list[str]) -> bytes:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False, cwd="/").stdout
    except (OSError, subprocess.TimeoutExpired):
        return b""


def _missing_tools(environ: Mapping[str, str]) -> frozenset[str]:
    path = netns.search_path(environ.get("PATH"))
    return frozenset(name for name in NETWORK_TOOLS if shutil.which(name, path=path) is None)


def _missing_capabilities() -> frozenset[str]:
    """Returns the `NETWORK_CAPABILITIES` that this process lacks; all of them on systems other than Linux."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return frozenset(NETWORK_CAPABILITIES)
    held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return frozenset(name for name, bit in NETWORK_CAPABILITIES.items() if not held >> bit & 1)
