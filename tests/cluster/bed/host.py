"""Creates the environment of a test cluster on this machine (namespaces, a link, a cgroup), and removes it
completely.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.bed.layout import API_ADDRESS, CODE, Layout

SUPERVISOR = CODE / "supervisor.py"
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
COVERED = ("/run", "/var/lib", "/var/log")
"""Folders with fixed paths of the programs, covered by empty file systems inside the test cluster."""
TUNABLES = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""Kernel settings that a kubelet would change; the kubelet reads the values that it needs from here."""
PATIENCE_SECONDS = 600.0
PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


class BedError(Exception):
    """A test cluster could not be created, found or removed."""


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Waits for the first true value of `condition` and returns it. Raises BedError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        if time.monotonic() > deadline:
            raise BedError(f"bed: waited {seconds:.0f} s for {what}")
        time.sleep(0.05)


def run(*argv: str, check: bool = True, stdin: str | None = None) -> str:
    """Returns the output of a command. Raises BedError with its stderr if it fails."""
    env = {**os.environ, "PATH": PATH}
    done = subprocess.run(argv, env=env, input=stdin, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise BedError(f"bed: {' '.join(argv)[:200]}: exit {done.returncode}: {done.stderr.strip()[-800:]}")
    return done.stdout


def has(program: str) -> bool:
    """Returns whether this machine has a program."""
    return shutil.which(program, path=PATH) is not None


def order(layout: Layout, **words: Any) -> dict[str, Any]:
    """Sends an order to the supervisor and returns its reply."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_SECONDS)
        connection.connect(str(layout.control))
        connection.sendall(json.dumps(words).encode() + b"\n")
        reply: dict[str, Any] = json.loads(connection.makefile().readline())
    if "error" in reply:
        raise BedError(f"bed: {words.get('do')} {words.get('name', '')}: {reply['error']}")
    return reply


def first_process(layout: Layout) -> int:
    """Returns the host's process id of the supervisor; 0 if none listens. The kernel translates the id between
    namespaces.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(layout.control))
        except OSError:
            return 0
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def inside(layout: Layout, *argv: str, stdin: str | None = None) -> str:
    """Returns the output of a command run inside the test cluster; the path of the program must be absolute."""
    pid = str(first_process(layout))
    return run("nsenter", "-t", pid, "-n", "-m", "-p", "--", *argv, stdin=stdin)


def open_shell(layout: Layout) -> None:
    """Creates the namespaces, the link and the cgroup, without the programs of a cluster."""
    _refuse_covered(layout)
    for folder in (layout.folder, layout.logs, layout.volumes):
        folder.mkdir(parents=True, exist_ok=True)
    make_cgroup(layout.cgroup)
    _unshare(layout)
    _link(layout)
    inside(layout, "/bin/sh", "-euc", _inner_script(layout))


def _refuse_covered(layout: Layout) -> None:
    """Raises BedError for a folder that is needed and would be covered."""
    for needed in (str(layout.folder), str(CODE), sys.prefix, sys.base_prefix):
        if needed.startswith(tuple(f"{path}/" for path in COVERED)):
            raise BedError(f"bed: {needed}: a bed sees nothing of {', '.join(COVERED)}; move it elsewhere")


def _unshare(layout: Layout) -> None:
    """Starts the supervisor as the first process of new namespaces, detached from this terminal."""
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with (layout.logs / "supervisor.log").open("ab") as log:
        # The shell prevents that this process becomes the parent: an unreaped child would outlive `down`.
        subprocess.run(
            ["/bin/sh", "-c", '"$@" & ', "sh", *namespaces, sys.executable, "-I", str(SUPERVISOR), str(layout.control)],
            cwd=layout.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
            env={"PATH": PATH, "LANG": "C.UTF-8"},
        )
    wait_for(lambda: first_process(layout), "the first process of the bed")


def _link(layout: Layout) -> None:
    pid = str(first_process(layout))
    run("ip", "link", "add", layout.link, "type", "veth", "peer", "name", "eth0", "netns", pid)
    run("ip", "address", "add", f"{layout.outside}/30", "dev", layout.link)
    run("ip", "link", "set", layout.link, "up")
    for target in (layout.pods, f"10.200.{layout.index}.6/32"):
        run("ip", "route", "add", target, "via", layout.address)


def _inner_script(layout: Layout) -> str:
    """Returns the script that prepares the namespaces; all its changes end with them."""
    lines = [
        "PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin",
        *(f"mount -t tmpfs -o mode=755 tmpfs {path}" for path in COVERED),
        f"mkdir -p {layout.folder}/sysctl",
    ]
    for number, (name, value) in enumerate(TUNABLES.items()):
        lines.append(f"echo {value} > {layout.folder}/sysctl/{number}")
        lines.append(f"mount --bind {layout.folder}/sysctl/{number} /proc/sys/{name}")
    lines += [
        "ip link set lo up",
        f"ip address add {API_ADDRESS}/32 dev lo",
        f"ip address add 10.200.{layout.index}.6/32 dev lo",
        f"ip address add {layout.address}/30 dev eth0",
        "ip link set eth0 up",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
    ]
    return "\n".join(lines)


def make_cgroup(name: str) -> None:
    """Creates a cgroup for a test cluster, or for a node in it, so that two kubelets never clean up each
    other's pods.
    """
    if (CGROUPS / "cgroup.controllers").exists():
        folder = CGROUPS / name
        folder.mkdir(exist_ok=True)
        for controller in (folder / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
        return
    for controller in CONTROLLERS:
        if (CGROUPS / controller).is_dir():
            (CGROUPS / controller / name).mkdir(exist_ok=True)
    folder = CGROUPS / "cpuset" / name
    for setting in ("cpuset.cpus", "cpuset.mems"):
        (folder / setting).write_text((folder.parent / setting).read_text())


def cgroup_folders(name: str) -> list[Path]:
    """Returns the folders of a cgroup and all its descendants in every hierarchy, deepest first."""
    roots = [path for path in (CGROUPS / name, *CGROUPS.glob(f"*/{name}")) if path.is_dir()]
    found = [Path(folder) for root in roots for folder, _, _ in os.walk(root)]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def remove(layout: Layout) -> None:
    """Removes a complete or incomplete test cluster, whichever process created it."""
    # The supervisor and its parent `unshare` have the path of the socket among their arguments.
    for pid in processes_naming(str(layout.control)):
        kill(pid, layout.cgroup)
    run("ip", "link", "delete", layout.link, check=False)
    wait_for(lambda: not Path("/sys/class/net", layout.link).exists(), "the link of the bed to go")
    wait_for(lambda: _without_cgroups(layout), "the cgroups of the bed to empty")
    shutil.rmtree(layout.folder, ignore_errors=True)
    wait_for(lambda: _without_folder(layout), "the folder of the bed to go")


def kill(pid: int, cgroup: str) -> None:
    """Kills a process and waits for its end; the first process of a namespace ends after all others in it.

    runc freezes the cgroup of a container for a moment. If runc is killed in that moment, the processes in the cgroup
    end only after they are thawed.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return

    def has_ended() -> bool:
        thaw(cgroup)
        return bool(select.select([handle], [], [], 0)[0])

    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        wait_for(has_ended, f"process {pid} to end")
    finally:
        os.close(handle)


def thaw(cgroup: str) -> None:
    """Thaws the frozen processes of a cgroup and its descendants."""
    for folder in cgroup_folders(cgroup):
        with contextlib.suppress(OSError):
            for state in (folder / "freezer.state", folder / "cgroup.freeze"):
                if state.exists():
                    state.write_text("THAWED" if state.name == "freezer.state" else "0")


def processes_naming(argument: str) -> list[int]:
    """Returns the processes of this machine, in any namespace, that have exactly this argument."""
    wanted = os.fsencode(argument)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _without_cgroups(layout: Layout) -> bool:
    thaw(layout.cgroup)  # a cgroup whose processes were killed by another process
    for folder in cgroup_folders(layout.cgroup):
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not cgroup_folders(layout.cgroup)


def _without_folder(layout: Layout) -> bool:
    shutil.rmtree(layout.folder, ignore_errors=True)
    return not layout.folder.exists()
