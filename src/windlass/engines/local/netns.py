"""Gives each node of a run a network of its own: what to make, as a list of `ip` and `tc` commands, and who runs them.

    namespace of node 0          namespace of the run           namespace of node 1
    eth0  10.77.0.1  ── veth ──  node0 ── bridge br0 ── node1  ── veth ──  eth0  10.77.0.2

Every device is made inside a namespace of the run, so nothing of the host's network changes, two runs may have the same
addresses, and no way leads out. The names say whose they are (`wl-RUN-HOME-node-0`, where HOME stands for the folder
of the records), so what a killed process leaves is found again from the record alone.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from windlass.errors import EngineError, NoSuchRun

INTERFACE: Final = "eth0"
"""The device of a node, by the name that it has on most machines."""
NETWORK: Final = ipaddress.ip_network("10.77.0.0/16")
"""The addresses of every run: node k has the one after k. Runs do not see each other, so they may share them."""
MAX_NODES: Final = 1000
"""The ports that a bridge of Linux has, less some."""
FOLDER: Final = Path("/run/netns")
"""Where `ip` keeps the names."""
FIRST_PORT: Final = 29500
"""Where the ranks of the first attempt meet: below the ports that a kernel gives out by itself."""
PORTS: Final = 1000
COMMAND_SECONDS: Final = 60.0
QUANTUM_BYTES: Final = 60000
"""What a class sends in one turn; without it the kernel derives one from the rate, and complains if it is large."""
Request = Mapping[str, Any]
"""The request of a `network` step: `describe` makes it, `make` and `remove` carry it out."""


# -- what to make (pure) ----------------------------------------------------------------------------------------------


def describe(run_id: str, home: str, num_nodes: int, rate: str | None) -> dict[str, Any]:
    """The network of a run: its nodes with their addresses, and the commands that make and remove it."""
    stem = f"wl-{run_id}-{hashlib.sha256(home.encode()).hexdigest()[:6]}"
    hub = f"{stem}-bridge"
    nodes = [
        {"node": node, "host": f"node-{node}", "namespace": f"{stem}-node-{node}", "address": str(NETWORK[node + 1])}
        for node in range(num_nodes)
    ]
    make = [f"ip netns add {hub}", f"ip -n {hub} link add br0 type bridge", f"ip -n {hub} link set br0 up"]
    for node in nodes:
        make += _node_commands(hub, node, rate)
    remove = [f"ip netns del {name}" for name in (*(node["namespace"] for node in nodes), hub)]
    return {
        "bridge": hub,
        "interface": INTERFACE,
        "rate": rate,
        "nodes": nodes,
        "make": [command.split() for command in make],
        "remove": [command.split() for command in remove],
    }


def node_request(request: Request, node: int) -> dict[str, Any]:
    """What the worker of a node needs to enter its network."""
    own = request["nodes"][node]
    return {
        "namespace": str(FOLDER / own["namespace"]),
        "host": own["host"],
        "hosts": {other["host"]: other["address"] for other in request["nodes"]},
    }


def meeting_point(request: Request, attempt: int, node: int) -> dict[str, str]:
    """Where the ranks of an attempt meet: at `node`, at a port that no attempt before it has used."""
    port = FIRST_PORT + (attempt - 1) % PORTS
    return {"MASTER_ADDR": request["nodes"][node]["address"], "MASTER_PORT": str(port)}


def _node_commands(hub: str, node: Mapping[str, Any], rate: str | None) -> list[str]:
    own, peer = node["namespace"], f"node{node['node']}"
    commands = [
        f"ip netns add {own}",
        f"ip -n {hub} link add {peer} type veth peer name {INTERFACE} netns {own}",
        f"ip -n {hub} link set {peer} master br0 up",
        f"ip -n {own} addr add {node['address']}/{NETWORK.prefixlen} dev {INTERFACE}",
        f"ip -n {own} link set lo up",
        f"ip -n {own} link set {INTERFACE} up",
    ]
    if rate is not None:
        for namespace, device in ((own, INTERFACE), (hub, peer)):  # what the node sends, and what it is sent
            limit = f"htb rate {rate} quantum {QUANTUM_BYTES}"
            commands.append(f"tc -n {namespace} qdisc add dev {device} root handle 1: htb default 1")
            commands.append(f"tc -n {namespace} class add dev {device} parent 1: classid 1:1 {limit}")
    return commands


# -- making and removing ----------------------------------------------------------------------------------------------


def make(request: Request, run_dir: Path) -> bool:
    """Make the network, unless it is there; gives whether it had to be made. Raises EngineError, leaving nothing.

    A network that is there is left as it is, cut links included: a restart of the run does not mend a partition.
    """
    complete = run_dir / "network-made"
    if complete.exists() and all((FOLDER / name).exists() for name in _names(request)):
        return False
    remove(request)
    for command in request["make"]:
        if said := _call(command):
            remove(request)
            raise EngineError(f"{' '.join(command)}: {said}", _hint(said))
    complete.touch()
    return True


def remove(request: Request) -> list[str]:
    """Remove what there is of the network; gives what could not be removed, and why. Whoever is inside stays there."""
    refused = []
    for command in request["remove"]:
        path = FOLDER / command[-1]
        if path.exists() and (said := _call(command)) and path.exists():
            refused.append(f"{' '.join(command)}: {said}")
    return refused


def cut(run_id: str, node: int) -> None:
    """Unplug a node: nothing reaches it or leaves it, and nobody is told. Raises NoSuchRun, EngineError."""
    _plug(run_id, node, "down")


def restore(run_id: str, node: int) -> None:
    """Plug a node in again. Raises NoSuchRun, EngineError."""
    _plug(run_id, node, "up")


def unplugged(request: Request) -> set[int]:
    """The nodes whose links are down, as far as the bridge can tell; none where there is no network to ask."""
    environ = {**os.environ, "PATH": search_path(os.environ.get("PATH")), "LC_ALL": "C"}
    command = ["ip", "-n", request["bridge"], "-json", "link", "show", "type", "veth"]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
        links = {link["ifname"]: link.get("flags", ()) for link in json.loads(done.stdout)}
    except (OSError, subprocess.SubprocessError, ValueError):
        return set()
    return {node["node"] for node in request["nodes"] if "UP" not in links.get(f"node{node['node']}", ("UP",))}


def _plug(run_id: str, node: int, state: str) -> None:
    own = re.compile(rf"wl-{re.escape(run_id)}-[0-9a-f]{{6}}-bridge")
    found = [path.name for path in FOLDER.glob("wl-*-bridge") if own.fullmatch(path.name)]
    if len(found) != 1:
        several = f"{len(found)} homes have networks of a run {run_id}"
        raise NoSuchRun(several if found else f"no run {run_id} has a network now", "ip netns list shows all")
    command = ["ip", "-n", found[0], "link", "set", f"node{node}", state]
    if said := _call(command):
        raise EngineError(f"{' '.join(command)}: {said}")


def _names(request: Request) -> list[str]:
    return [command[-1] for command in request["remove"]]


def _call(command: Sequence[str]) -> str:
    """Run one command; gives what it said if it failed."""
    environ = {**os.environ, "PATH": search_path(os.environ.get("PATH")), "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS,
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return f"{command[0]} was not found"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else " ".join(done.stderr.split()) or f"exit code {done.returncode}"


def search_path(path: str | None) -> str:
    """`path`, with the folders of administration programs, which few users have on theirs."""
    return os.pathsep.join([path or os.defpath, "/usr/local/sbin", "/usr/sbin", "/sbin"])


def _hint(said: str) -> str:
    if "not found" in said:
        return "install iproute2"
    if "ermitted" in said or "denied" in said:
        return "local.netns needs root (the capabilities NET_ADMIN and SYS_ADMIN): use sudo, or leave it out"
    if "unknown" in said.lower() and "qdisc" in said:
        return "this kernel has no HTB (sch_htb): leave local.rate out"
    if "not supported" in said:
        return "this kernel lacks veth, bridge or HTB: see modprobe veth bridge sch_htb"
    return "see: windlass doctor"
