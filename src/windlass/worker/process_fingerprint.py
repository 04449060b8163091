"""Fingerprint of the process state that a fork cannot change. A fork equals a new process only if their fingerprints
are equal.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
from typing import Any

from windlass.worker.fork_safety import LIMITS
from windlass.worker.process import boot_id

SPACES = ("mnt", "net", "pid", "uts", "user", "ipc")
RIGHTS = frozenset(
    {"Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Mems_allowed_list"}
)
"""Lines of `/proc/self/status` that a child inherits."""

CGROUP_LIMITS = {
    "memory.max": "max",
    "memory.high": "max",
    "memory.swap.max": "max",
    "cpu.max": "max 100000",
    "cpu.weight": "100",
    "cpu.idle": "0",
    "cpuset.cpus": "",
    "cpuset.mems": "",
}
"""Files of a control group that limit its processes, each with its content if there is no limit.

`pids.max` is left out: systemd sets the same high limit for each of its groups."""


def process_fingerprint() -> dict[str, Any]:
    """Returns rights, limits, namespaces and scheduling of this process as JSON data. Raises OSError without
    `/proc`.
    """
    limits = {number: resource.getrlimit(number) for number in LIMITS}
    return {
        "user": [os.getuid(), os.getgid()],
        "rights": [line for line in _read("status").splitlines() if line.split(":", 1)[0] in RIGHTS],
        # A fork can change soft limits but not hard limits, and the stack limit takes effect when a program starts.
        "limits": {str(number): hard for number, (_, hard) in limits.items()},
        "stack": limits[resource.RLIMIT_STACK],
        "scheduling": [os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
        "spaces": [os.readlink(f"/proc/self/ns/{name}") for name in SPACES],
        "root": os.readlink("/proc/self/root"),
        "cgroup": cgroup_limits(_read("cgroup")),
        "boot": boot_id(),  # machines with equal settings may share a home folder
        "oom": _read("oom_score_adj"),
    }


def cgroup_limits(lines: str, mount: str = "/sys/fs/cgroup") -> object:
    """Returns the control group limits of this process, each with the group that sets it. `lines` is the text of
    `/proc/self/cgroup`.

    Names of groups without limits do not count, because each login, and in some terminals each tab, has its own group.
    If limits cannot be read, as with cgroup v1, returns `lines` itself.
    """
    if not lines.startswith("0::/") or lines.count("\n") > 1 or "/.." in lines:
        return lines
    folder, found = lines[3:].strip().rstrip("/"), []
    if not os.path.isdir(mount + folder) or not os.path.exists(f"{mount}{folder}/cgroup.controllers"):
        return lines
    while True:
        for name, default in CGROUP_LIMITS.items():
            try:
                with open(f"{mount}{folder}/{name}") as file:
                    value = file.read().strip()
            except OSError:
                continue  # the controller is disabled here, or this is the root group
            if value != default:
                found.append([folder, name, value])
        if not folder:
            return found
        folder = folder.rpartition("/")[0]


def name_of(identity: dict[str, Any]) -> str:
    """Returns twelve hexadecimal digits that identify a fingerprint."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def _read(name: str) -> str:
    with open(f"/proc/self/{name}") as file:
        return file.read()
