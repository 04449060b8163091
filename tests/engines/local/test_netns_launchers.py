"""The contract with a separate network for each node: no case depends on sharing the host's network."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.engines.cases.mpi import a_killed_node_leaves_neither_processes_nor_files
from tests.engines.cases.setup import Setup
from tests.engines.contract import Contract
from tests.engines.harness import OF_OPEN_MPI, SCRIPTS, Aspect, Can, Harness, Way, files_of_mpi
from tests.engines.local.planning import plan_local, starts
from tests.engines.local.warm.forks import trust
from tests.statuses import cause_of

from windlass.engines.local.engine import LocalEngine

pytestmark = pytest.mark.slow

if os.geteuid() != 0:
    pytest.skip("networks are made by root", allow_module_level=True)


@pytest.mark.nightly
class TestNetnsCold(Contract):
    way = Way(
        "local cold, networks",
        LocalEngine,
        plan_local,
        frozenset(Can),
        {"start": "cold", "local": {"netns": True}},
        adds=("NCCL_SOCKET_IFNAME",),
        differs_in=frozenset({Aspect.MEETING}),
    )

    def test_ranks_were_started_cold(self, harness: Harness) -> None:
        assert starts(harness) == {"cold"}


class TestNetnsSetup(Setup):
    way = TestNetnsCold.way


class TestNetnsWarm(Contract):
    way = Way(
        "local warm, networks",
        LocalEngine,
        plan_local,
        frozenset(Can),
        {"warm": ["torch"], "local": {"netns": True}},
        adds=("NCCL_SOCKET_IFNAME", "TORCHINDUCTOR_CACHE_DIR"),  # torch sets TORCHINDUCTOR_CACHE_DIR on import
        differs_in=frozenset({Aspect.MEETING}),
    )

    def test_ranks_were_forked(self, harness: Harness) -> None:
        assert starts(harness) == {"warm"}


@pytest.mark.skipif(shutil.which("mpirun") is None and "CI" not in os.environ, reason="no mpirun")
class TestNetnsMpi(Contract):
    way = Way(
        "local mpi, networks",
        LocalEngine,
        plan_local,
        frozenset(Can) - {Can.ANY_LAUNCHER},
        {"launcher": "mpi", "start": "cold", "local": {"netns": True}},
        adds=(*OF_OPEN_MPI, "NCCL_SOCKET_IFNAME"),
        differs_in=frozenset({Aspect.MEETING}),  # the tests below test how ranks end, including on another node
    )

    def test_each_mpi_rank_is_in_network_of_its_node(self, harness: Harness) -> None:
        run = harness.finish("mpi.py", "where", base=SCRIPTS, nodes=2, procs_per_node=2)
        assert run.status.exit_code == 0, run.text()
        lines = sorted(line.split(": ") for line in run.text().splitlines() if " on " in line)
        assert [line[0] for line in lines] == [f"rank {rank} on node-{rank // 2}" for rank in range(4)]
        networks = [line[1] for line in lines]
        assert networks[0] == networks[1] != networks[2] == networks[3]
        assert str(Path("/proc/self/ns/net").readlink()) not in networks

    @pytest.mark.nightly
    def test_ranks_discovered_by_mpi_are_counted_on_each_node(self, harness: Harness) -> None:
        run = harness.finish("mpi_discovery.py", base=SCRIPTS, nodes=2, procs_per_node=2)
        assert run.status.exit_code == 0, run.text()
        said = sorted(line for line in run.text().splitlines() if line.startswith("rank "))
        assert said == [f"rank {rank} of 4, local rank {rank % 2}, equal weights" for rank in range(4)]

    def test_a_warm_rank_is_forked_into_the_network_of_its_node(self, harness: Harness) -> None:
        trust(harness.home, "json")
        local = {"netns": True}
        run = harness.finish("mpi.py", "where", base=SCRIPTS, nodes=2, local=local, start="warm", warm=["json"])
        assert run.status.exit_code == 0, run.text()
        assert [event.data["start"] for event in run.events if event.kind == "node"] == ["warm"]
        networks = {line.split(": ")[1] for line in run.text().splitlines() if " on " in line}
        assert len(networks - {str(Path("/proc/self/ns/net").readlink())}) == 2

    def test_killed_rank_of_another_node_is_root_cause(self, harness: Harness) -> None:
        run = harness.finish("mpi.py", "kill", base=SCRIPTS, nodes=3)
        cause = cause_of(run.status)
        assert (cause.rank, cause.exit_code, cause.victims) == (1, -9, (0, 2))
        assert len(files_of_mpi(run)) > 0
        assert [path for path in files_of_mpi(run) if path.exists()] == []

    def test_a_killed_node_leaves_neither_processes_nor_files_of_any_host(self, harness: Harness) -> None:
        a_killed_node_leaves_neither_processes_nor_files(harness, nodes=2)
