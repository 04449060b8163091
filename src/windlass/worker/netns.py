"""Moves a node worker into separate namespaces: network, host name, `/etc/hosts` and `/sys/class/net`.

The supervisor creates the network namespace. The other namespaces are created here and end with the worker's processes.
Ranks that are started later inherit them.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Mapping

from windlass.worker.protocol import NetworkSpec

# constants of <linux/sched.h> and <sys/mount.h>
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 0x80000
MNT_DETACH = 2
HOSTS = "/etc/hosts"
SYS_FOLDERS = ("class/net", "devices/virtual/net")
"""Folders in `/sys` that depend on the network namespace. sysfs shows the namespace of the process that mounted it."""


def enter(network: NetworkSpec, scratch: str) -> None:
    """Enters a network namespace with the host name `network.host`. `scratch` is a folder for files of the node.

    Raises OSError, which names the failed step.
    """
    with open(network.namespace) as file:
        call("setns", ctypes.c_int(file.fileno()), ctypes.c_int(CLONE_NEWNET), what="enter the network namespace")
    call("unshare", ctypes.c_int(CLONE_NEWUTS | CLONE_NEWNS), what="create namespaces for host name and mounts")
    mount(None, "/", None, MS_REC | MS_SLAVE)  # later mounts must not be visible outside this process
    socket.sethostname(network.host)
    _show_hosts(network.hosts, os.path.join(scratch, network.host + ".hosts"))
    _show_devices(os.path.join(scratch, network.host + ".sys"))


def join(pid: int) -> None:
    """Enters the network, host name and mount namespaces of process `pid`, and keeps the working folder. Raises
    OSError.
    """
    here = os.getcwd()
    kinds = {"net": CLONE_NEWNET, "uts": CLONE_NEWUTS, "mnt": CLONE_NEWNS}
    files = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in kinds.items()]
    for file, kind in files:
        call("setns", ctypes.c_int(file), ctypes.c_int(kind), what=f"join process {pid}")
        os.close(file)
    os.chdir(here)  # entering a mount namespace changes the working folder to `/`


def _show_hosts(hosts: Mapping[str, str], path: str) -> None:
    """Mounts an `/etc/hosts` file with which nodes resolve each other's names."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for name, address in hosts.items():
        # the second line serves IPv6 sockets, which use IPv4-mapped addresses
        lines += [f"{address} {name}", f"::ffff:{address} {name}"]
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
    os.chmod(path, 0o644)
    if os.path.exists(HOSTS):
        mount(path, HOSTS, None, MS_BIND)


def _show_devices(folder: str) -> None:
    """Makes `/sys/class/net` show the devices of this network namespace. The rest of `/sys` (GPUs, cgroups) is
    unchanged.
    """
    os.makedirs(folder, exist_ok=True)
    mount("sysfs", folder, "sysfs", 0)
    try:
        for name in SYS_FOLDERS:
            mount(os.path.join(folder, name), os.path.join("/sys", name), None, MS_BIND)
    finally:
        call("umount2", folder.encode(), ctypes.c_int(MNT_DETACH), what=f"unmount {folder}")
    os.rmdir(folder)


def mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    """Calls mount(2) in the mount namespace of this process. Raises OSError."""
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    call("mount", *words, ctypes.c_ulong(flags), None, what=f"mount {source or target} on {target}")


def call(function: str, *arguments: object, what: str) -> None:
    """Calls a C library function and raises OSError if it fails.

    Used because Python has `os.setns` and `os.unshare` only from 3.12 on, and no `mount`.
    """
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)}")
