"""The state of a process that a fork cannot change: only forks of a process with the same equal a new process."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from typing import Any

from windlass.worker.fork_safety import LIMITS
from windlass.worker.process import boot_id

SPACES = ("mnt", "net", "pid", "uts", "user", "ipc")
RIGHTS = frozenset({"Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
                    "Mems_allowed_list"})  # fmt: skip
"""Lines of `/proc/self/status` that a child inherits."""


def process_fingerprint() -> dict[str, Any]:
    """Rights, limits, namespaces and scheduling of this process, as JSON data. Raises OSError without `/proc`."""
    limits = {number: resource.getrlimit(number) for number in LIMITS}
    return {
        "user": [os.getuid(), os.getgid()],
        "rights": [line for line in _read("status").splitlines() if line.split(":", 1)[0] in RIGHTS],
        # A limit can be lowered but not raised again, and the stack's is looked at when a program starts.
        "limits": {str(number): hard for number, (_, hard) in limits.items()},
        "stack": limits[resource.RLIMIT_STACK],
        "scheduling": [os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
        "spaces": [os.readlink(f"/proc/self/ns/{name}") for name in SPACES],
        "root": os.readlink("/proc/self/root"),
        "cgroup": _read("cgroup"),
        "boot": boot_id(),  # a home may be shared by machines that are alike
        "oom": _read("oom_score_adj"),
    }


def name_of(identity: dict[str, Any]) -> str:
    """Twelve letters that stand for all of it."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def _read(name: str) -> str:
    with open(f"/proc/self/{name}") as file:
        return file.read()
