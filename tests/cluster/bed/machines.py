"""Starts a machine for each node that Karpenter requests, and stops it with the node; pods run there as on other nodes.

One of the programs of a test cluster, besides `karpenter`: `python -m tests.cluster.bed.machines INDEX`. A node with
the label `NEVER_READY` gets no machine, like an instance that never registers.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.cluster.bed import host, users
from tests.cluster.bed.api import Api, ApiError, Object, suppressed
from tests.cluster.bed.layout import Layout
from tests.cluster.bed.node import GPU, Node

NEVER_READY = "bed.windlass.test/never-ready"
FIRST, MOST = 3, 16
"""Number of the first machine, after the two permanent nodes, and the maximum number of machines at a time."""
PAUSE_SECONDS = 0.3
TYPES = {
    "m5.large": (0, 0.096),
    "g4dn.xlarge": (1, 0.526),
    "g5.xlarge": (1, 1.006),
    "g5.12xlarge": (4, 5.672),
    "p4d.24xlarge": (8, 21.958),
}
"""GPUs and dollars per hour; spot costs a third. Processors and memory are those of this machine."""
SPOT = 0.3
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
ZONES = ("bed-a", "bed-b")


def instance_types() -> list[Object]:
    """Returns the instance types for Karpenter, in the format of its provider."""
    memory_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    # A kubelet reserves a hundredth of the memory, so a type with all of it would be too small for its pods.
    shared = {"cpu": str(os.cpu_count()), "memory": f"{memory_mib * 95 // 100}Mi", "ephemeral-storage": "10Gi"}
    return [
        {
            "name": name,
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": shared | ({GPU: str(gpus)} if gpus else {}),
            "offerings": _offerings(price),
        }
        for name, (gpus, price) in TYPES.items()
    ]


def _offerings(price: float) -> list[Object]:
    kinds = {"on-demand": price, "spot": round(price * SPOT, 4)}
    return [
        {
            "Price": cost,
            "Available": True,
            "Requirements": [
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [kind]},
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]},
            ],
        }
        for kind, cost in kinds.items()
        for zone in ZONES
    ]


def wanted(client: Api) -> dict[str, Object]:
    """Returns the nodes that need a machine, by name; those without a NodeClaim are excluded."""
    nodes = _nodes(client)
    # Listed after the nodes, since a NodeClaim exists before its node.
    claims = [each["metadata"]["name"] for each in client.get(CLAIMS)["items"]]
    claimed = {name: node for name, node in nodes.items() if any(name.startswith(f"kwok-{each}-") for each in claims)}
    for name in nodes.keys() - claimed.keys():
        _remove_node(client, name)
    return {name: node for name, node in claimed.items() if NEVER_READY not in node["metadata"]["labels"]}


def _nodes(client: Api) -> dict[str, Object]:
    """Returns the nodes of Karpenter's provider."""
    found = client.get("/api/v1/nodes")["items"]
    return {
        each["metadata"]["name"]: each for each in found if each["spec"].get("providerID", "").startswith("kwok://")
    }


def _remove_node(client: Api, name: str) -> None:
    with suppressed(404):
        client.patch(f"/api/v1/nodes/{name}", {"metadata": {"finalizers": None}})
    client.discard(f"/api/v1/nodes/{name}")


class Machines:
    """The running machines, by the name of their node."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.running: dict[str, Node] = {}
        self.pool = ThreadPoolExecutor(max_workers=MOST)

    def tend(self, nodes: dict[str, Object]) -> None:
        """Starts and stops machines until there is one for each node."""
        for name in self.running.keys() - nodes.keys():
            self.running.pop(name).remove()
        taken = {node.number for node in self.running.values()}
        free = (number for number in range(FIRST, FIRST + MOST) if number not in taken)
        for name in nodes.keys() - self.running.keys():
            number = next(free, None)
            if number is None:
                return
            self.running[name] = Node(self.layout, number, name)
            self.pool.submit(self._start, self.running[name], nodes[name])

    def _start(self, node: Node, asked: Object) -> None:
        try:
            node.add(int(asked["status"].get("capacity", {}).get(GPU, "0")))
        except (host.BedError, OSError, ApiError) as problem:
            print(f"{node.name}: {problem!r}", flush=True)


def remove_all(layout: Layout) -> None:
    """Stops every machine of a test cluster, whichever process has started it, and removes its node."""
    client = users.api(layout)
    for name in _nodes(client):
        _remove_node(client, name)
    for number in range(FIRST, FIRST + MOST):
        Node(layout, number).remove()


def main(index: int) -> None:
    """Serves one test cluster until killed."""
    layout = Layout(index)
    client, machines = users.api(layout), Machines(layout)
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException, ApiError):
            machines.tend(wanted(client))
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]))
