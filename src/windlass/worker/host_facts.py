"""Collects facts about the host after ranks have failed: OOM kills, full disks, limits, occupied ports (Linux)."""

from __future__ import annotations

import os
import re

from windlass.worker.port_listeners import IN_USE, listeners
from windlass.worker.process import read_text
from windlass.worker.protocol import DamagedFile, FileSystem, HostReport, Listener

SHM = "/dev/shm"
_KILLED = re.compile(r"Killed process (\d+) \([^)]*\)[^\n]*")


class HostFacts:
    """Reads kernel counters before the ranks start, and again after they have failed."""

    def __init__(self) -> None:
        self._group, self._machine = _oom_kills_of_group(), _oom_kills_of_machine()
        self._listeners: tuple[Listener, ...] = ()
        self._without_space: tuple[FileSystem, ...] = ()
        self._tail = ""

    def record_listeners(self, tail: str, groups: set[int]) -> None:
        """Records which processes listen on TCP ports, if the first failed rank found its port in use.

        The listener may be another rank or a child of the failed rank, which will be ended next. `tail` is the output
        of the failed rank; `groups` are the process groups of all ranks.
        """
        if not self._listeners and IN_USE.search(tail):
            self._listeners = tuple(listeners(groups))

    def record_failure(self, tail: str, folder: str) -> None:
        """Records which file system is full, if the first failed rank had no disk space. Call it at once: files may be
        removed soon.

        `tail` is the output of the rank, and `folder` its working folder.
        """
        from windlass.worker.file_systems import without_space  # imported here because few nodes fail

        self._tail, self._without_space = tail, tuple(without_space(tail, folder))

    def report(
        self, pids: list[int], folders: list[str], saved_in: list[str], reserved_port: int | None = None
    ) -> HostReport:
        """Returns facts that may explain why the ranks with these process ids ended. Counters count from the creation
        of this object.

        The ranks write to `folders`, and may load files from `saved_in`.
        """
        group, machine = _grown(self._group, _oom_kills_of_group()), _grown(self._machine, _oom_kills_of_machine())
        shm = _statvfs(SHM)
        spaces = {folder: line for folder in folders if (line := _statvfs(folder)) is not None}
        return HostReport(
            oom_kills_of_group=group,
            oom_kills_of_machine=machine,
            oom_record=_kernel_record(pids) if group or machine else "",
            memory_limit_bytes=_memory_limit() or None,
            free_bytes={folder: line.f_bavail * line.f_frsize for folder, line in spaces.items()},
            shm_bytes=0 if shm is None else shm.f_blocks * shm.f_frsize,
            shm_free_bytes=None if shm is None else shm.f_bavail * shm.f_frsize,
            without_space=self._without_space,
            damaged_files=self._damaged(saved_in),
            listeners=self._listeners,
            reserved_port=reserved_port,
        )

    def _damaged(self, saved_in: list[str]) -> tuple[DamagedFile, ...]:
        if "Traceback" not in self._tail:
            return ()
        # imported here because it imports zipfile, which would slow the start of nodes
        from windlass.worker.damaged_files import damaged_files

        return tuple(damaged_files(self._tail, saved_in))


def _grown(before: int | None, now: int | None) -> int | None:
    """Returns the increase of a counter; None if the counter could not be read."""
    return None if before is None or now is None else now - before


def _statvfs(folder: str) -> os.statvfs_result | None:
    try:
        return os.statvfs(folder)
    except OSError:
        return None


def _oom_kills_of_group() -> int | None:
    """Returns the number of OOM kills in the control group of this process (cgroup v2, or the memory controller
    of v1).
    """
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
            if text.isdigit() and int(text) < 1 << 60:  # cgroup v1 writes a huge number for "no limit"
                return int(text)
    return None


def _group_folders() -> list[str]:
    """Returns folders that may be this process's control group. Containers hide the real path."""
    folders = []
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folders += [f"/sys/fs/cgroup{path}", f"/sys/fs/cgroup/unified{path}", "/sys/fs/cgroup"]
        elif "memory" in controllers.split(","):
            folders += [f"/sys/fs/cgroup/memory{path}", "/sys/fs/cgroup/memory"]
    return folders


def _kernel_record(pids: list[int]) -> str:
    """Returns the kernel's log line about the OOM kill of one of these processes, if the log is readable."""
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
                continue  # the record was overwritten during the read
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
