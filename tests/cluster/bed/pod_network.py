"""Cuts and stalls the connections of one pod, in its network namespace."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.cluster.bed import host
from tests.cluster.bed.layout import Layout
from tests.cluster.bed.node import Node


def processes(node: Node, uid: str) -> set[int]:
    """Returns the host's ids of a pod's processes."""
    found: set[int] = set()
    for folder in host.cgroup_folders(node.cgroup):
        if uid in str(folder):
            with contextlib.suppress(OSError):
                found.update(map(int, (folder / "cgroup.procs").read_text().split()))
    return found


def cut(pid: int) -> None:
    """Closes all connections of a process's pod immediately: both ends get an error."""
    _inside(pid, "ss", "-K", "-t", "state", "established")


def link(layout: Layout, pid: int) -> str:
    """Returns the network device between the node and a process's pod; empty if the pod has ended."""
    words = _inside(pid, "ip", "-oneline", "link", "show", "eth0").split()
    number = next((word.partition("@if")[2].rstrip(":") for word in words if "@if" in word), "")
    lines = host.inside(layout, "/sbin/ip", "-oneline", "link").splitlines()
    return next((line.split()[1].partition("@")[0] for line in lines if line.startswith(f"{number}: ")), "")


def set_link(layout: Layout, name: str, state: str) -> None:
    """Sets that device `up` or `down`: packets in both directions are lost. The device is removed with its pod."""
    if name:
        with contextlib.suppress(host.BedError):
            host.inside(layout, "/sbin/ip", "link", "set", name, state)


def number_inside(pid: int) -> int:
    """Returns the id of a process in its own container. Raises OSError."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:")]
    return int(line.split()[-1])


def _inside(pid: int, *argv: str) -> str:
    if not Path(f"/proc/{pid}").exists():
        return ""
    return host.run("nsenter", "-t", str(pid), "-n", "--", *argv, check=False)
