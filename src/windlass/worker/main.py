"""Runs the node of a spec file, with or without an external launcher."""

from __future__ import annotations

from windlass.worker.node import Node
from windlass.worker.protocol import read_spec
from windlass.worker.rank_start import ColdStart, Start


def main(argv: list[str]) -> int:
    """Run the node of the spec file `argv[0]`; write a byte to descriptor `argv[1]` at each event."""
    return run_node(argv[0], int(argv[1]) if len(argv) > 1 else None, ColdStart())


def run_node(path: str, wake: int | None, start: Start) -> int:
    """Run the node of the spec file at `path`; 0 if all its ranks succeeded."""
    spec = read_spec(path)
    if spec.launch is not None:
        from windlass.worker.external_launcher import LaunchedNode  # only where mpirun or torchrun starts the ranks

        return LaunchedNode(spec, wake, start).run()
    return Node(spec, wake, start).run()
