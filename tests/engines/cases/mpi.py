"""Properties of mpirun's ranks that hold with nodes on the host, and with a separate network for each node."""

from __future__ import annotations

import os
from typing import Any

from tests.engines.harness import SCRIPTS, Harness, files_of_mpi
from tests.helpers.until import until

from windlass.runs.phase import Phase
from windlass.worker import process


def a_killed_node_leaves_neither_processes_nor_files(harness: Harness, **fields: Any) -> None:
    run = harness.start("mpi.py", "wait", base=SCRIPTS, **fields).until(files_of_mpi)
    node = next(event.data["pid"] for event in run.events if event.kind == "node")
    assert all(path.exists() for path in files_of_mpi(run))
    os.kill(node, 9)
    assert run.wait().phase is Phase.FAILED
    until(lambda: not process.of_session(node), "processes are left")  # a killed process may take a moment to end
    assert [path for path in files_of_mpi(run) if path.exists()] == []
