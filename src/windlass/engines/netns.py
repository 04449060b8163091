"""Network namespaces for the nodes of a run on this machine: lists the `ip` and `tc` commands, and runs them.

    namespace of node 0          namespace of the run           namespace of node 1
    eth0  10.77.0.1  ── veth ──  node0 ── bridge br0 ── node1  ── veth ──  eth0  10.77.0.2

Every device is created inside a namespace of the run, so that the host's network does not change, two runs may have the
same addresses, and there is no route out. Namespace names contain the run and a hash of the records' folder
(`wl-RUN-HOME-node-0`), so that namespaces of a killed process are found from the record alone.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from windlass.errors import EngineError, NoSuchRun
from windlass.plan.steps import NetworkNode, NetworkStep
from windlass.worker.protocol import NetworkSpec

INTERFACE: Final = "eth0"
"""Name of a node's network interface."""
NETWORK: Final = ipaddress.ip_network("10.77.0.0/16")
"""Addresses of every run, of which node k has number k + 1. Runs are isolated, so that they may have the same
addresses."""
MAX_NODES: Final = 1000
"""Maximum number of nodes; a Linux bridge has 1024 ports."""
FOLDER: Final = Path("/run/netns")
"""Folder in which `ip` stores network namespaces."""
FIRST_PORT: Final = 29500
"""MASTER_PORT of the first attempt, below the kernel's ephemeral ports."""
PORTS: Final = 1000
COMMAND_SECONDS: Final = 60.0
QUANTUM_BYTES: Final = 60000
"""Quantum of a traffic class in bytes. By default the kernel derives it from the rate, and warns if it is large."""


# -- commands (pure) --------------------------------------------------------------------------------------------------


def describe(run_id: str, home: str, num_nodes: int, rate: str | None, host_names: Sequence[str] = ()) -> NetworkStep:
    """Returns the network of a run: its nodes with their addresses, and the commands that create and remove it.

    `host_names` are the names of all nodes; default: `node-0` and so on.
    """
    names = host_names or [f"node-{node}" for node in range(num_nodes)]
    stem = f"wl-{run_id}-{hashlib.sha256(home.encode()).hexdigest()[:6]}"
    hub = f"{stem}-bridge"
    nodes = [NetworkNode(node, names[node], f"{stem}-node-{node}", str(NETWORK[node + 1])) for node in range(num_nodes)]
    make = [f"ip netns add {hub}", f"ip -n {hub} link add br0 type bridge", f"ip -n {hub} link set br0 up"]
    for node in nodes:
        make += _node_commands(hub, node, rate)
    remove = [f"ip netns del {name}" for name in (*(node.namespace for node in nodes), hub)]
    addresses = [node.address for node in nodes]
    span = addresses[0] if len(addresses) == 1 else f"{addresses[0]}–{addresses[-1]}"
    limit = "no rate" if rate is None else f"{rate} each way"
    return NetworkStep(
        f"make a network with no way out: {span} on {INTERFACE}, {limit}",
        bridge=hub,
        interface=INTERFACE,
        rate=rate,
        nodes=tuple(nodes),
        make=tuple(tuple(command.split()) for command in make),
        remove=tuple(tuple(command.split()) for command in remove),
    )


def node_specs(network: NetworkStep) -> tuple[NetworkSpec, ...]:
    """Returns for each node the settings with which its worker enters the network."""
    hosts = {node.host: node.address for node in network.nodes}
    return tuple(NetworkSpec(str(FOLDER / node.namespace), node.host, hosts) for node in network.nodes)


def rendezvous_port(attempt: int) -> int:
    """Returns the rendezvous port of an attempt, which differs from those of the attempts before it."""
    return FIRST_PORT + (attempt - 1) % PORTS


def _node_commands(hub: str, node: NetworkNode, rate: str | None) -> list[str]:
    own, peer = node.namespace, f"node{node.node}"
    commands = [
        f"ip netns add {own}",
        f"ip -n {hub} link add {peer} type veth peer name {INTERFACE} netns {own}",
        f"ip -n {hub} link set {peer} master br0 up",
        f"ip -n {own} addr add {node.address}/{NETWORK.prefixlen} dev {INTERFACE}",
        f"ip -n {own} link set lo up",
        f"ip -n {own} link set {INTERFACE} up",
    ]
    if rate is not None:
        for namespace, device in ((own, INTERFACE), (hub, peer)):  # outgoing and incoming traffic of the node
            limit = f"htb rate {rate} quantum {QUANTUM_BYTES}"
            commands.append(f"tc -n {namespace} qdisc add dev {device} root handle 1: htb default 1")
            commands.append(f"tc -n {namespace} class add dev {device} parent 1: classid 1:1 {limit}")
    return commands


# -- making and removing ----------------------------------------------------------------------------------------------


def make(network: NetworkStep, run_dir: Path) -> bool:
    """Creates the network unless it exists; returns whether it was created. Raises EngineError after removing partial
    results.

    An existing network is not changed, including cut links: a restart of the run must not repair a partition.
    """
    complete = run_dir / "network-made"
    if complete.exists() and all((FOLDER / name).exists() for name in _names(network)):
        return False
    remove(network)
    for command in network.make:
        if said := _call(command):
            remove(network)
            raise EngineError(f"{' '.join(command)}: {said}", _hint(said))
    complete.touch()
    return True


def remove(network: NetworkStep) -> list[str]:
    """Removes the network; returns the commands that failed, with their errors. Processes in it keep their
    namespace.
    """
    refused = []
    for command in network.remove:
        path = FOLDER / command[-1]
        if path.exists() and (said := _call(command)) and path.exists():
            refused.append(f"{' '.join(command)}: {said}")
    return refused


def cut(run_id: str, node: int) -> None:
    """Sets the link of a node down, without notice to its processes. Raises NoSuchRun, EngineError."""
    _plug(run_id, node, "down")


def restore(run_id: str, node: int) -> None:
    """Sets the link of a node up again. Raises NoSuchRun, EngineError."""
    _plug(run_id, node, "up")


def unplugged(network: NetworkStep) -> set[int]:
    """Returns the nodes whose links are down according to the bridge; empty if the network does not exist."""
    command = ["ip", "-n", network.bridge, "-json", "link", "show", "type", "veth"]
    try:
        links = {link["ifname"]: link.get("flags", ()) for link in json.loads(_run(command).stdout)}
    except (OSError, subprocess.SubprocessError, ValueError):
        return set()
    return {node.node for node in network.nodes if "UP" not in links.get(f"node{node.node}", ("UP",))}


def _plug(run_id: str, node: int, state: str) -> None:
    own = re.compile(rf"wl-{re.escape(run_id)}-[0-9a-f]{{6}}-bridge")
    found = [path.name for path in FOLDER.glob("wl-*-bridge") if own.fullmatch(path.name)]
    if len(found) != 1:
        several = f"{len(found)} homes have networks of a run {run_id}"
        raise NoSuchRun(several if found else f"no run {run_id} has a network now", "ip netns list shows all")
    command = ["ip", "-n", found[0], "link", "set", f"node{node}", state]
    if said := _call(command):
        raise EngineError(f"{' '.join(command)}: {said}")


def _names(network: NetworkStep) -> list[str]:
    return [command[-1] for command in network.remove]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": search_path(os.environ.get("PATH")), "LC_ALL": "C"}
    return subprocess.run(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


def _call(command: Sequence[str]) -> str:
    """Runs one command; returns its error message if it failed, or ""."""
    try:
        done = _run(command)
    except FileNotFoundError:
        return f"{command[0]} was not found"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else " ".join(done.stderr.split()) or f"exit code {done.returncode}"


def search_path(path: str | None) -> str:
    """Returns `path` with the sbin folders added, which few users have on theirs."""
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
