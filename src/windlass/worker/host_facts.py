"""What a node sees of its machine when ranks have failed: memory that ran out, full disks, limits (Linux)."""

from __future__ import annotations

import os
import re
from typing import Any

from windlass.worker.port_listeners import IN_USE, listeners
from windlass.worker.process import read_text

SHM = "/dev/shm"
_KILLED = re.compile(r"Killed process (\d+) \([^)]*\)[^\n]*")


class HostFacts:
    """Counts before the ranks start, and looks again when they have failed."""

    def __init__(self) -> None:
        self._group, self._machine = _oom_kills_of_group(), _oom_kills_of_machine()
        self._listeners: list[dict[str, Any]] = []
        self._without_space: list[dict[str, Any]] = []
        self._tail = ""

    def see_listeners(self, tail: str, groups: set[int]) -> None:
        """Note who listens, if the first rank that failed found its port in use: it may be a rank that ends next, or a
        process that the rank has started, which ends with it.

        `tail` is its output, `groups` are the process groups of all ranks.
        """
        if not self._listeners and IN_USE.search(tail):
            self._listeners = listeners(groups)

    def see_failure(self, tail: str, folder: str) -> None:
        """Note which file system is full, if the first rank that failed found no space: files may be removed next.

        `tail` is its output, and `folder` is the rank's.
        """
        from windlass.worker.file_systems import without_space  # few nodes fail

        self._tail, self._without_space = tail, without_space(tail, folder)

    def facts(self, pids: list[int], folders: list[str], saved_in: list[str]) -> dict[str, Any]:
        """What may explain the end of ranks with these pids; `folders` are where they write, `saved_in` where they may
        have saved what they load.

        Counts are those since this object was made; what cannot be read is left out.
        """
        found: dict[str, Any] = {"free_bytes": {}}
        group, machine = _oom_kills_of_group(), _oom_kills_of_machine()
        if group is not None and self._group is not None:
            found["oom_kills_of_group"] = group - self._group
        if machine is not None and self._machine is not None:
            found["oom_kills_of_machine"] = machine - self._machine
        if found.get("oom_kills_of_group") or found.get("oom_kills_of_machine"):
            found["oom_record"] = _kernel_record(pids)
        limit = _memory_limit()
        if limit:
            found["memory_limit_bytes"] = limit
        for folder in dict.fromkeys(folders):
            try:
                line = os.statvfs(folder)
            except OSError:
                continue
            found["free_bytes"][folder] = line.f_bavail * line.f_frsize
        try:
            line = os.statvfs(SHM)
            found["shm_free_bytes"], found["shm_bytes"] = line.f_bavail * line.f_frsize, line.f_blocks * line.f_frsize
        except OSError:
            pass
        if self._without_space:
            found["without_space"] = self._without_space
        if "Traceback" in self._tail:
            from windlass.worker.damaged_files import damaged_files  # it reads archives: nodes start without that

            if damaged := damaged_files(self._tail, saved_in):
                found["damaged_files"] = damaged
        if self._listeners:
            found["listeners"] = self._listeners
        return found


def _oom_kills_of_group() -> int | None:
    """OOM kills in the control group of this process: version 2, and of version 1 its memory controller."""
    for file in ("memory.events", "memory.oom_control"):
        for folder in _group_folders():
            found = _field(os.path.join(folder, file), "oom_kill")
            if found is not None:
                return found
    return None


def _oom_kills_of_machine() -> int | None:
    return _field("/proc/vmstat", "oom_kill")


def _memory_limit() -> int | None:
    for file in ("memory.max", "memory.limit_in_bytes"):
        for folder in _group_folders():
            text = read_text(os.path.join(folder, file)).strip()
            if text.isdigit() and int(text) < 1 << 60:  # version 1 writes a huge number for "no limit"
                return int(text)
    return None


def _group_folders() -> list[str]:
    """Where the control group of this process may lie; inside a container its own path is not to be seen."""
    folders = []
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folders += [f"/sys/fs/cgroup{path}", f"/sys/fs/cgroup/unified{path}", "/sys/fs/cgroup"]
        elif "memory" in controllers.split(","):
            folders += [f"/sys/fs/cgroup/memory{path}", "/sys/fs/cgroup/memory"]
    return folders


def _kernel_record(pids: list[int]) -> str:
    """The kernel's own line about one of these processes, where it may be read."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    found = ""
    try:
        while True:
            try:
                line = os.read(log, 8192).decode("utf-8", "replace")
            except BrokenPipeError:
                continue  # it was overwritten while we read
            match = _KILLED.search(line)
            if match and int(match[1]) in pids:
                found = match[0][:300]
    except OSError:
        return found
    finally:
        os.close(log)


def _field(path: str, name: str) -> int | None:
    for line in read_text(path).splitlines():
        word, _, value = line.partition(" ")
        if word == name and value.strip().isdigit():
            return int(value)
    return None
