"""Runs the node of a spec file: its ranks started by us, or handed to us by another launcher."""

from __future__ import annotations

import json

from windlass.worker.node import Node
from windlass.worker.start import ColdStart, Start


def main(argv: list[str]) -> int:
    """Run the node of the spec file `argv[0]`; write a byte to descriptor `argv[1]` at each event."""
    return run_node(argv[0], int(argv[1]) if len(argv) > 1 else None, ColdStart())


def run_node(path: str, wake: int | None, start: Start) -> int:
    """Run the node of the spec file at `path`; 0 if all its ranks succeeded."""
    with open(path) as file:
        spec = json.load(file)
    if "launch" in spec:
        from windlass.worker.hosted import HostedNode  # only where mpirun or torchrun starts the ranks

        return HostedNode(spec, wake, start).run()
    return Node(spec, wake, start).run()
