"""Ranks get their numbers, environment, arguments and folders."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.engines.harness import BEHAVIOURS, Aspect, Can, Case, Harness, differs, needs
from tests.helpers.once import once
from tests.statuses import cause_of

SHAPES = [(3, 2), (2, 2), (1, 1)]
NUMBERS = ("$WINDLASS_RANK", "--local_rank=$WINDLASS_LOCAL_RANK", "${WINDLASS_NODE_RANK}", "$LOCAL_RANK")
"""Arguments with variables that differ by rank, and one variable that is not replaced."""

OF_TORCHRUN_ALONE = {
    "TORCHELASTIC_ERROR_FILE",  # a file for torchrun's agent; Windlass's worker reads the traceback in the log
    "TORCHELASTIC_SIGNALS_TO_HANDLE",  # an option of torchrun's agent
}
OF_WINDLASS_ALONE = {
    "NODE_RANK",  # the name of GROUP_RANK in other launchers
    "PYTHONUNBUFFERED",
    "PYTHONFAULTHANDLER",
    "GLOO_SOCKET_IFNAME",
    "PYTHONPATH",  # only for interpreters without Windlass
    "TORCH_FR_BUFFER_SIZE",  # entries of torch's flight recorder: worker/flight_recorder.py
    "KUBEFLOW_TRAINER_SERVER_URL",  # where libraries may report their progress: worker/statusserver.py
    "KUBEFLOW_TRAINER_SERVER_TOKEN",
}
DIFFERENT = {
    "MASTER_ADDR": r"localhost|127\.0\.0\.1|10\.77\.0\.1|algo-1",
    "MASTER_PORT": r"\d{4,5}",
    "TORCHELASTIC_RUN_ID": r".+",
    "TORCHELASTIC_USE_AGENT_STORE": r"True|False",  # torchrun runs the store of rank 0 in its agent, Windlass in rank 0
    "OMP_NUM_THREADS": r"\d+",  # torchrun sets 1; Windlass divides the cores among ranks
}


def ask_torchrun() -> dict[str, dict[str, str]]:
    """Returns the variables that real torchrun sets or changes for two ranks, by rank."""
    environ = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", *OF_WINDLASS_ALONE)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(BEHAVIOURS), "environment"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=True)
    # Both ranks write to the same output: one line may end after the other has begun.
    found = [json.loads(line) for line in done.stdout.replace("}{", "}\n{").splitlines() if line.startswith("{")]
    return {env["RANK"]: {n: v for n, v in env.items() if environ.get(n) != v} for env in found}


class Placement(Case):
    @property
    def of_torch(self) -> dict[str, str]:
        """Job fields with which a single rank also gets torchrun's variables."""
        return {"launcher": "torchrun"} if Can.ANY_LAUNCHER in self.way.can else {}

    def numbered(self, harness: Harness, nodes: int, procs: int) -> dict[int, Any]:
        """Returns the variables and arguments of each rank."""
        found = harness.finish("environment", *NUMBERS, nodes=nodes, procs_per_node=procs, **self.of_torch)
        return found.json_of_ranks()

    @pytest.fixture(scope="class")
    @classmethod
    def torchrun_environments(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, str]]:
        """Runs `ask_torchrun` once for all engines."""
        found = json.loads(once(tmp_path_factory, "torchrun-environments", lambda: json.dumps(ask_torchrun())))
        return {int(rank): added for rank, added in found.items()}

    @differs(Aspect.START)
    @pytest.mark.parametrize(("nodes", "procs"), SHAPES, ids=lambda n: str(n))
    def test_ranks_are_numbered_node_by_node(self, harness: Harness, nodes: int, procs: int) -> None:
        found = self.numbered(harness, nodes, procs)
        names = ("RANK", "ROLE_RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
        assert {rank: [int(env[name]) for name in names] for rank, env in found.items()} == {
            rank: [rank, rank, rank % procs, rank // procs, rank // procs] for rank in range(nodes * procs)
        }
        assert {rank: env["arguments"] for rank, env in found.items()} == {
            rank: [str(rank), f"--local_rank={rank % procs}", str(rank // procs), "$LOCAL_RANK"] for rank in found
        }

    @pytest.mark.parametrize(("nodes", "procs"), SHAPES, ids=lambda n: str(n))
    def test_every_rank_gets_world_and_node_sizes(self, harness: Harness, nodes: int, procs: int) -> None:
        found = self.numbered(harness, nodes, procs)
        names = ("WORLD_SIZE", "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
        sizes = {tuple(int(env[name]) for name in names) for env in found.values()}
        assert sizes == {(nodes * procs, nodes * procs, procs, nodes)}

    @differs(Aspect.START)
    @needs(Can.ANY_LAUNCHER)
    @pytest.mark.parametrize(("nodes", "launcher"), [(1, None), (2, "plain")], ids=["one rank", "plain"])
    def test_single_ranks_get_no_torchrun_variables(self, harness: Harness, nodes: int, launcher: str | None) -> None:
        given = {} if launcher is None else {"launcher": launcher}
        found = harness.finish("environment", nodes=nodes, **given).json_of_ranks()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
        assert [name for env in found.values() for name in names if name in env] == []
        sizes = {(env["WINDLASS_RANK"], env["WINDLASS_WORLD_SIZE"]) for env in found.values()}
        assert sizes == {(str(rank), str(nodes)) for rank in range(nodes)}
        hosts = {env["WINDLASS_HOSTS"] for env in found.values()}
        assert [len(one.split(",")) for one in hosts] == [nodes]

    @differs(Aspect.START)
    @needs(Can.ANY_LAUNCHER)
    def test_every_tensorflow_rank_has_its_own_port(self, harness: Harness) -> None:
        found = harness.finish("environment", nodes=2, procs_per_node=2, launcher="tensorflow").json_of_ranks()
        configs = {rank: json.loads(env["TF_CONFIG"]) for rank, env in found.items()}
        assert {rank: one["task"] for rank, one in configs.items()} == {
            rank: {"type": "worker", "index": rank} for rank in range(4)
        }
        [workers] = {tuple(one["cluster"]["worker"]) for one in configs.values()}
        assert len(set(workers)) == 4
        hosts = found[0]["WINDLASS_HOSTS"].split(",")
        assert [worker.rpartition(":")[0] for worker in workers] == [hosts[0], hosts[0], hosts[1], hosts[1]]

    @differs(Aspect.MEETING)
    def test_all_ranks_get_same_rendezvous(self, harness: Harness) -> None:
        found = harness.finish("environment", nodes=3, procs_per_node=2).json_of_ranks()
        assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in found.values()}) == 1

    @differs(Aspect.START)
    def test_environment_equals_that_of_torchrun(
        self, harness: Harness, torchrun_environments: dict[int, dict[str, str]]
    ) -> None:
        ours = harness.finish("environment", nodes=1, procs_per_node=2, **self.of_torch).json_of_ranks()
        for rank, theirs in torchrun_environments.items():
            for name, value in theirs.items():
                if name in OF_TORCHRUN_ALONE or (name == "OMP_NUM_THREADS" and Can.PROCESSES not in harness.way.can):
                    continue
                if name in DIFFERENT:
                    assert re.fullmatch(DIFFERENT[name], ours[rank][name]), name
                else:
                    assert ours[rank][name] == value, name

    @needs(Can.PROCESSES, Can.SHELL)
    def test_nothing_else_is_added_to_the_environment(
        self, harness: Harness, torchrun_environments: dict[int, dict[str, str]]
    ) -> None:
        ours = harness.finish("environment", nodes=1, procs_per_node=2, **self.of_torch).json_of_ranks()
        for rank, theirs in torchrun_environments.items():
            added = {name for name, value in ours[rank].items() if os.environ.get(name) != value}
            extra = {
                name
                for name in added - theirs.keys()
                if not name.startswith(("WINDLASS_", "PYTEST_", *harness.way.adds))
            }
            assert extra <= OF_WINDLASS_ALONE | {"LINES", "COLUMNS"}  # set by readline, which pytest imports
            assert not [name for name in os.environ if name not in ours[rank] and not name.startswith("PYTEST_")]

    @differs(Aspect.START)
    def test_script_gets_variables_of_job(self, harness: Harness) -> None:
        value = "two words, ünïcode = $HOME\nand a line"
        env = harness.finish("environment", env={"OWN": value, "EMPTY": ""}).json_of_ranks()[0]
        assert (env["OWN"], env["EMPTY"]) == (value, "")

    @differs(Aspect.PROGRAM)
    def test_job_may_override_variables_of_windlass(self, harness: Harness) -> None:
        env = harness.finish("environment", env={"OMP_NUM_THREADS": "7", "PYTHONUNBUFFERED": "0"}).json_of_ranks()[0]
        assert (env["OMP_NUM_THREADS"], env["PYTHONUNBUFFERED"]) == ("7", "0")

    @differs(Aspect.START)
    def test_arguments_are_passed_unchanged(self, harness: Harness) -> None:
        words = ["two words", "", "it's", 'say "hi"', "$HOME", "*", "~", "a\\b", "two\nlines", "\t", "ünï→🧵",
                 "--flag=x y", "-", "--", "#no comment", "a;b|c&d>e", "%s{}"]  # fmt: skip
        assert harness.finish("arguments", *words).json_of_ranks()[0] == words

    @needs(Can.FILES)
    def test_folders_of_run_are_substituted_in_arguments(self, harness: Harness, tmp_path: Path) -> None:
        words = ["$WINDLASS_OUTPUT_DIR", "--to=${WINDLASS_CHECKPOINT_DIR}/x", "$WINDLASS_DATA_COCO", "$HOME/$LR"]
        run = harness.finish("arguments", *words, data=[{"name": "coco", "source": str(tmp_path)}])
        filled = [run.status.output_dir, f"--to={run.dir / 'checkpoints'}/x", str(tmp_path)]
        assert run.json_of_ranks()[0] == [*filled, *words[3:]]

    def test_rank_gets_its_run_id(self, harness: Harness) -> None:
        run = harness.finish("environment", nodes=2, procs_per_node=2)
        assert {env["WINDLASS_RUN_ID"] for env in run.json_of_ranks().values()} == {run.id}
        assert {env["WINDLASS_ATTEMPT"] for env in run.json_of_ranks().values()} == {"1"}

    @needs(Can.FILES)
    def test_folders_for_results_and_checkpoints_exist(self, harness: Harness) -> None:
        run = harness.finish("keep_result", procs_per_node=2)
        assert run.status.exit_code == 0, run.text()
        for folder in (Path(run.status.output_dir), run.dir / "checkpoints"):
            assert sorted(path.name for path in folder.iterdir()) == ["rank-0.txt", "rank-1.txt"]

    @needs(Can.LOCAL_DATA)
    def test_ranks_find_data_sets_by_name(self, harness: Harness, tmp_path: Path) -> None:
        data = [{"name": "coco-2017", "source": str(tmp_path)}]
        env = harness.finish("environment", data=data).json_of_ranks()[0]
        assert env["WINDLASS_DATA_COCO_2017"] == str(tmp_path)

    @differs(Aspect.PROGRAM)
    @needs(Can.PROGRAMS)
    def test_any_program_can_be_a_rank(self, harness: Harness) -> None:
        run = harness.finish(
            command=["sh", "-c", 'echo "$WINDLASS_RANK of $WINDLASS_WORLD_SIZE: $1"', "sh", "a  b"], procs_per_node=2
        )
        assert sorted(run.text().splitlines()) == ["0 of 2: a  b", "1 of 2: a  b"]
        assert run.status.exit_code == 0

    @differs(Aspect.PROGRAM)
    @needs(Can.PROGRAMS)
    def test_failing_program_is_root_cause(self, harness: Harness) -> None:
        run = harness.finish(command=["sh", "-c", "test $WINDLASS_RANK = 0 && exec sleep 60; exit 9"], procs_per_node=2)
        assert (run.status.exit_code, cause_of(run.status).rank) == (9, 1)
