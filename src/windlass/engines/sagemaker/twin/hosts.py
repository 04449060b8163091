"""Starts the hosts of a job once, signals them, and reads how they ended. Each host is a process of `host.py`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from windlass.engines import netns
from windlass.engines.sagemaker.layout import OPT
from windlass.engines.sagemaker.service import Request
from windlass.engines.sagemaker.twin import layout
from windlass.engines.sagemaker.twin.host import REPORT, HostSpec
from windlass.engines.sagemaker.twin.job import NAMESPACES, JobFolder
from windlass.plan.steps import NetworkStep
from windlass.worker import process
from windlass.worker.process import Birth

BASE_DIR: Final = "SAGEMAKER_BASE_DIR"
"""Variable of the SageMaker training toolkit: the folder to use in place of /opt/ml. Without namespaces, it also
identifies the processes of a host."""

OWN_PARTS: Final = 4
"""Number of path components of a host's /opt/ml below `starts`: the start, the host, `opt` and `ml`."""
END_SECONDS: Final = 30.0
"""Seconds in which processes must end after SIGKILL."""


@dataclass(frozen=True, slots=True)
class HostNames:
    """Names, addresses and networks of the hosts of a job."""

    names: tuple[str, ...]
    """Names in `resourceconfig.json`: `algo-1`, or addresses if names cannot be resolved."""
    addresses: Mapping[str, str]
    """Address of each host by its name, such as `algo-1`."""
    interface: str
    namespaces: tuple[str, ...] = ()
    """Paths of the hosts' network namespaces; empty if they share the network of this machine."""


def shared_network(count: int, isolation: str) -> HostNames:
    """Returns the names of hosts that share the network of this machine; each has a separate loopback address."""
    addresses = {f"algo-{at + 1}": f"127.0.0.{at + 2}" for at in range(count)}
    names = addresses.keys() if isolation == NAMESPACES else addresses.values()
    return HostNames(tuple(names), addresses, "lo")


def isolated_network(job: JobFolder, count: int) -> NetworkStep:
    """Returns the network of a job whose hosts can reach only each other."""
    names = [f"algo-{at + 1}" for at in range(count)]
    return netns.describe(job.name, str(job.path.resolve()), count, None, names)


def isolated_names(network: NetworkStep) -> HostNames:
    """Returns the names of hosts in an isolated network."""
    addresses = {node.host: node.address for node in network.nodes}
    paths = tuple(one.namespace for one in netns.node_specs(network))
    return HostNames(tuple(addresses), addresses, netns.INTERFACE, paths)


@dataclass
class RunningHost:
    """One host in one start of a job."""

    name: str
    folder: Path
    popen: subprocess.Popen[bytes]

    @property
    def has_ended(self) -> bool:
        """Whether the process of the host has ended."""
        return self.popen.poll() is not None

    def send(self, number: int) -> None:
        """Sends SIGTERM to the container's first process, or `KILL` to all processes; remaining output is logged in
        both cases.
        """
        if not self.has_ended:
            self.popen.send_signal(number)

    def outcome(self) -> tuple[int, str]:
        """Returns the exit code of an ended container, and the error if it could not be run or its host was killed."""
        try:
            report = json.loads((self.folder / REPORT).read_bytes())
        except (OSError, ValueError):
            return self.popen.returncode, "the process of the host was killed"
        return report.get("exit", 1), report.get("error", "")


class HostStarter:
    """Starts the hosts of one job."""

    def __init__(self, job: JobFolder, request: Request, names: HostNames, environ: Mapping[str, str]) -> None:
        self._job, self._request, self._names = job, request, names
        self._settings = job.settings()
        self._environment = layout.environment(request, job.arn, self._settings.python, environ)

    def make(self, start: int) -> list[Path]:
        """Creates the folders of all hosts. Raises OSError."""
        folders = [self._job.host(start, name) for name in self._names.addresses]
        for folder, name in zip(folders, self._names.names, strict=True):
            layout.make_host(folder, self._request, name, self._names.names, self._names.interface)
        return folders

    def start(self, folders: Sequence[Path], second: int) -> list[RunningHost]:
        """Starts the containers; `second` is part of the names of their log streams. Raises OSError.

        Must be called by the main thread: the hosts end with the thread that started them.
        """
        return [self._start(number, folder, second) for number, folder in enumerate(folders)]

    def _start(self, number: int, folder: Path, second: int) -> RunningHost:
        is_isolated = self._settings.isolation == NAMESPACES
        place = OPT if is_isolated else str(folder.resolve() / layout.ML)
        base = {} if is_isolated else {BASE_DIR: place}
        spec = HostSpec(
            folder.name,
            str(folder),
            str(self._job.logs / f"{folder.name}-{second}"),
            layout.command(self._request, place),
            {**self._environment, **base},
            is_isolated,
            dict(self._names.addresses),
            self._names.namespaces[number] if self._names.namespaces else "",
        )
        popen = subprocess.Popen(
            [sys.executable, "-m", "windlass.engines.sagemaker.twin.host"],
            stdin=subprocess.PIPE,
            cwd="/",
            preexec_fn=Birth(),
        )
        assert popen.stdin is not None
        popen.stdin.write(json.dumps(asdict(spec)).encode())
        popen.stdin.close()
        return RunningHost(folder.name, folder, popen)


def end_leftovers(job: JobFolder) -> bool:
    """Kills the processes of hosts whose manager was killed, waits for their end, and removes their network.

    Returns whether all processes have ended and the network is removed.
    """
    folders = [str(one.resolve() / layout.ML) for one in (job.path / "starts").glob("*/*")]
    until = time.monotonic() + END_SECONDS
    while found := [line.pid for line in process.all_processes() if line.state != "Z" and _is_of(line.pid, folders)]:
        if time.monotonic() > until:
            return False
        for pid in found:
            process.send(pid, signal.SIGKILL)
        time.sleep(0.01)
    request = job.request()
    if not request.get("EnableNetworkIsolation"):
        return True
    return not netns.remove(isolated_network(job, request["ResourceConfig"]["InstanceCount"]))


def _is_of(pid: int, folders: Sequence[str]) -> bool:
    """Whether a process has one of these folders as /opt/ml, by its mounts or its environment."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    except OSError:
        return False
    # Columns of mountinfo: 3 is the folder below the root of its file system, 4 the mount point.
    roots = [columns[3].replace("\\040", " ") for columns in mounts if columns[4] == "/opt/ml"]
    is_mounted = any(_is_at(root, folder) for folder in folders for root in roots)
    return is_mounted or any(f"{BASE_DIR}={folder}".encode() in variables for folder in folders)


def _is_at(root: str, folder: str) -> bool:
    """Whether `root`, relative to the root of its file system, is a host's folder. Other mounts at /opt/ml do not
    count.
    """
    return folder.endswith(root) and Path(root).parts[-OWN_PARTS:] == Path(folder).parts[-OWN_PARTS:]
