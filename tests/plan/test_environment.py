"""A run started by a rank of another run does not inherit the other run's environment."""

from __future__ import annotations

import pytest

from windlass.plan import environment

MINE = {"PATH": "/bin", "OMP_NUM_THREADS": "2", "OMPI_ALLOW_RUN_AS_ROOT": "1", "WINDLASS_HOME": "/home/windlass"}


@pytest.mark.parametrize("launcher", ["torchrun", "pytorch", "mpi", "tensorflow", "jax", "plain"])
def test_run_started_by_a_rank_inherits_nothing_of_its_run(launcher: str) -> None:
    outer = {
        **environment.contract(
            run_id="digits-1",
            launcher=launcher,
            max_restarts=1,
            output_dir="/out",
            checkpoint_dir="/saved",
            data={"digits": "/data"},
            checkpoint_every=60.0,
            checkpoint_keep=3,
        ),
        **environment.of_attempt(launcher, 1, "127.0.0.1", 29500, ["127.0.0.1"]),
        **environment.of_group(launcher, 1, 2),
        **environment.of_rank(launcher, 1, 1, 0),
        **environment.of_rank_in_attempt(launcher, 1, 2, ["127.0.0.1"], [21000, 21001]),
        **dict.fromkeys([environment.RESUME_VARIABLE, *environment.STATUS_VARIABLES], "x"),
    }
    assert environment.outside_of_runs({**MINE, **outer}) == MINE


def test_variables_set_by_user_are_kept() -> None:
    mine = {**MINE, "RANK": "0", "WINDLASS_CHECKPOINT_EVERY": "60"}
    assert environment.outside_of_runs(mine) == mine
