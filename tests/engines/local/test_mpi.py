"""The contract under Open MPI's mpirun, and cases of MPI only: rendezvous, finalize and abort."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.engines.cases.mpi import a_killed_node_leaves_neither_processes_nor_files
from tests.engines.cases.setup import StoppedSetup
from tests.engines.contract import Contract
from tests.engines.harness import OF_OPEN_MPI, SCRIPTS, Aspect, Can, Harness, Way, files_of_mpi
from tests.engines.local.planning import plan_local
from tests.statuses import cause_of

from windlass.actions.exec_copy import execute
from windlass.engines.local.engine import LocalEngine
from windlass.runs.phase import Phase

if shutil.which("mpirun") is None and "CI" not in os.environ:
    pytest.skip("no mpirun: bash tools/apt.sh installs Open MPI", allow_module_level=True)


@pytest.mark.slow
class TestMpi(Contract):
    way = Way(
        "local mpi",
        LocalEngine,
        plan_local,
        frozenset(Can) - {Can.ANY_LAUNCHER},
        {"launcher": "mpi", "start": "cold"},
        adds=OF_OPEN_MPI,
        differs_in=frozenset({Aspect.START, Aspect.MEETING, Aspect.ENDS, Aspect.SIGNALS}),
    )

    def test_mpi_ranks_equal_ranks_of_job(self, harness: Harness) -> None:
        run = harness.finish("mpi.py", "well", base=SCRIPTS, nodes=2, procs_per_node=2)
        assert run.status.exit_code == 0, run.text()
        assert sorted(run.text().splitlines()) == [f"rank {rank} is {rank} of 4, sum 10" for rank in range(4)]
        assert "warning" not in [event.kind for event in run.events]

    def test_a_script_may_discover_its_ranks_by_mpi_as_deepspeed_does(self, harness: Harness) -> None:
        run = harness.finish("mpi_discovery.py", base=SCRIPTS, procs_per_node=2)
        assert run.status.exit_code == 0, run.text()
        said = sorted(line for line in run.text().splitlines() if line.startswith("rank "))
        assert said == [f"rank {rank} of 2, local rank {rank}, equal weights" for rank in range(2)]

    def test_exec_runs_on_each_node_although_one_worker_has_all_ranks(self, harness: Harness, tmp_path: Path) -> None:
        run = harness.start("wait_for", "go", nodes=2, procs_per_node=2).until_ready(4)
        show = ["bash", "-c", "echo ${WINDLASS_RANK-none} $WINDLASS_NODE_RANK"]
        for rank, node, said in ((3, None, "3 1"), (None, 1, "none 1"), (None, 0, "none 0")):
            with open(tmp_path / "said", "w+b") as file:
                assert (
                    execute(run.id, show, harness.store, stdin=None, stdout=file, stderr=file, rank=rank, node=node)
                    == 0
                )
                file.seek(0)
                assert file.read().decode().strip() == said

    def test_a_rank_that_raises_ends_a_collective_of_the_others(self, harness: Harness) -> None:
        run = harness.finish("mpi.py", "raise", base=SCRIPTS, procs_per_node=3)
        cause = cause_of(run.status)
        assert (cause.rank, cause.victims, cause.summary) == (1, (0, 2), "ValueError: no such batch")

    def test_killed_mpi_rank_is_root_cause(self, harness: Harness) -> None:
        run = harness.finish("mpi.py", "kill", base=SCRIPTS, procs_per_node=3)
        cause = cause_of(run.status)
        assert (cause.rank, cause.exit_code, cause.victims) == (1, -9, (0, 2))

    def test_aborting_mpi_rank_is_root_cause(self, harness: Harness) -> None:
        run = harness.finish("mpi.py", "abort", base=SCRIPTS, procs_per_node=3)
        assert (cause_of(run.status).rank, run.status.exit_code) == (1, 7)
        # Of mpirun's messages, Open MPI 4.1.4 sometimes loses the text and writes only its own error.
        assert (run.dir / "attempt-1" / "node-0.out").stat().st_size > 0
        assert "MPI_ABORT" not in run.text()

    def test_rank_that_exits_without_mpi_finalize_ends_run(self, harness: Harness) -> None:
        run = harness.finish("mpi.py", "leave", base=SCRIPTS, procs_per_node=2)
        assert (run.status.phase, run.status.exit_code) == (Phase.FAILED, 1)
        assert "mpirun has exited due to process rank 1" in cause_of(run.status).summary

    def test_failure_of_spawned_mpi_process_is_not_reported_as_outside_signal(self, harness: Harness) -> None:
        run = harness.finish("mpi_spawn.py", base=SCRIPTS)
        assert (run.status.phase, run.status.exit_code) == (Phase.FAILED, 1)
        verdict = run.verdict
        assert (verdict.code, verdict.rank) == ("exit-code", 0)
        assert "mpirun ended" in verdict.summary

    def test_rank_may_save_after_others_have_ended(self, harness: Harness) -> None:
        """mpirun itself would end the rank within a second of the failure."""
        run = harness.finish("mpi.py", "save", base=SCRIPTS, procs_per_node=2, grace=20)
        assert (cause_of(run.status).rank, run.status.exit_code) == (1, 4)
        assert run.text(ranks=[0]).endswith("saving\nsaved\n")

    def test_compiled_mpi_program_runs(self, harness: Harness, tmp_path: Path) -> None:
        source = tmp_path / "sum.c"
        source.write_text(
            "#include <mpi.h>\n#include <stdio.h>\nint main(int argc, char **argv) {\n"
            "  int rank, sum;\n  MPI_Init(&argc, &argv);\n  MPI_Comm_rank(MPI_COMM_WORLD, &rank);\n"
            "  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);\n"
            '  printf("%d: %d %s\\n", rank, sum, argv[1]);\n  MPI_Finalize();\n  return 0;\n}\n'
        )
        if shutil.which("mpicc") is None and "CI" not in os.environ:
            pytest.skip("no mpicc: bash tools/apt.sh installs it")
        assert os.system(f"mpicc -o {tmp_path}/sum {source}") == 0
        run = harness.finish(command=["./sum", "a b"], base=tmp_path, procs_per_node=3)
        assert run.status.exit_code == 0, run.text()
        assert sorted(run.text().splitlines()) == ["0: 3 a b", "1: 3 a b", "2: 3 a b"]

    def test_ranks_end_with_killed_mpirun(self, harness: Harness) -> None:
        run = harness.start("sleep", "60", procs_per_node=2).until_ready(2)
        node = next(event.data["pid"] for event in run.events if event.kind == "node")
        [launcher] = [int(pid) for pid in _children(node) if "mpirun" in Path(f"/proc/{pid}/comm").read_text()]
        os.kill(launcher, 9)
        status = run.wait()
        assert (status.phase, status.exit_code) == (Phase.FAILED, 1)
        assert "mpirun was killed by signal 9 while ranks were running" in cause_of(status).summary

    def test_no_files_of_mpi_are_left(self, harness: Harness) -> None:
        run = harness.finish("mpi.py", "kill", base=SCRIPTS, procs_per_node=3)
        assert len(files_of_mpi(run)) > 1
        assert [path for path in files_of_mpi(run) if path.exists()] == []

    def test_a_killed_node_leaves_neither_processes_nor_files(self, harness: Harness) -> None:
        a_killed_node_leaves_neither_processes_nor_files(harness, procs_per_node=2)


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_missing_mpirun_blocks_plan_with_package_to_install(tmp_path: Path) -> None:
    from windlass.engines.local.facts import read_facts
    from windlass.engines.local.plan import plan
    from windlass.spec.job import Job
    from windlass.spec.targets import LocalTarget

    job = Job(name="m", run="train.py", launcher="mpi")
    (tmp_path / "train.py").touch()
    environ = {"PATH": str(Path(sys.executable).parent)}
    facts = read_facts(job, base=tmp_path, home=tmp_path, environ=environ)
    [note] = plan(job, LocalTarget(name="local"), facts, "m-1").notes
    assert (note.code, note.blocks) == ("mpirun-missing", True)
    assert "apt-get install openmpi-bin" in note.fix


@pytest.mark.slow
class TestSetup(StoppedSetup):
    way = TestMpi.way
