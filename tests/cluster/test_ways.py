"""Ways that need an operator: the same weights, restarts and losses through each, on a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.bed.cluster import Cluster
from tests.cluster.labs import OPERATORS, digest, lab_on, opened, pods
from tests.cluster.test_restarts import names, script
from tests.cluster.test_training import DIGITS, EXAMPLES, LOCAL, SHAPE, accuracy, results, succeeded
from tests.engines.lab import Lab

from windlass.runs.record import Phase

pytestmark = [pytest.mark.operators, pytest.mark.timeout(900)]
Operator = Callable[[str], None]
BY_TORCH = ("trainjob", "pytorchjob")


@pytest.mark.parametrize("via", BY_TORCH)
def test_digits_end_with_the_same_weights_as_by_job(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path, via: str
) -> None:
    operator(OPERATORS[via])
    with opened(lab_on(cluster, namespace, tmp_path / "home")) as lab:
        words = ("train.py", "--epochs", "5")
        runs = {one: lab.start(*words, base=DIGITS, **SHAPE, **results(cluster, via=one)) for one in ("job", via)}
        for run in runs.values():
            succeeded(run)
        assert accuracy(runs[via]) == accuracy(runs["job"])
        assert digest(runs[via], "model.pt", tmp_path) == digest(runs["job"], "model.pt", tmp_path)


@pytest.mark.parametrize("via", BY_TORCH)
def test_a_rank_that_fails_is_restarted_in_the_same_pods_and_a_lost_pod_means_new_ones(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path, via: str
) -> None:
    operator(OPERATORS[via])
    with opened(lab_on(cluster, namespace, tmp_path / "home", kubernetes={"via": via}, restarts={"max": 3})) as lab:
        run = lab.start(
            "script.py", base=script(tmp_path), nodes=2, launcher="plain", env={"BREAKS": "1", "WAITS": "2"}
        )
        run.until(lambda run: "attempt 2 of rank 1" in run.text() and "attempt 2 of rank 0" in run.text())
        before = names(cluster, namespace, run)
        assert len(before) == 2
        lost = pods(cluster, namespace, run, 1)[0]["metadata"]["name"]
        cluster.kubectl("delete", "pod", lost, "-n", namespace, "--grace-period=0", "--force")
        status = run.wait()
        assert status.phase is Phase.SUCCEEDED, run.text()
        assert len(status.attempts) == 3
        for rank in (0, 1):
            said = [line.text for line in run.lines(attempt=3, ranks=[rank])]
            assert said == [f"attempt 3 of rank {rank}"]


def test_a_pod_that_an_operator_makes_anew_is_not_trained_in(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    operator(OPERATORS["pytorchjob"])
    with opened(lab_on(cluster, namespace, tmp_path / "home", kubernetes={"via": "pytorchjob"})) as lab:
        run = lab.start("script.py", base=script(tmp_path), env={"BREAKS": "", "WAITS": "1"})
        run.until(lambda run: "attempt 1 of rank 0" in run.text())
        cluster.kubectl("delete", "pod", "-n", namespace, *names(cluster, namespace, run), "--grace-period=1")
        assert run.wait().phase is Phase.FAILED
        assert len(run.status.attempts) == 1
        found = cluster.kubectl("get", "pods", "-n", namespace, "-l", f"windlass.dev/run={run.id}", "-o",
                                "jsonpath={.items[?(@.status.phase=='Running')].metadata.name}")  # fmt: skip
        assert not found
        assert run.text().count("attempt 1 of rank 0") == 1


def test_an_mpi_job_ends_as_it_does_on_this_machine(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    operator(OPERATORS["mpijob"])
    base, shape = EXAMPLES / "03-mpi-digits", {"launcher": "mpi", **SHAPE}
    with opened(lab_on(cluster, namespace, tmp_path / "home")) as lab, opened(Lab(LOCAL, tmp_path / "local")) as local:
        run = lab.start("train.py", "--epochs", "3", base=base, **shape, **results(cluster))
        at_home = local.start("train.py", "--epochs", "3", base=base, **shape)
        assert accuracy(succeeded(run)) == accuracy(succeeded(at_home))
        assert digest(run, "model.pt", tmp_path)


def test_a_rank_of_mpi_that_fails_is_named_and_all_are_started_again(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    operator(OPERATORS["mpijob"])
    with opened(lab_on(cluster, namespace, tmp_path / "home", restarts={"max": 1})) as lab:
        fields = {"nodes": 2, "launcher": "mpi", "env": {"BREAKS": "12", "WAITS": ""}}
        run = lab.start("script.py", base=script(tmp_path), **fields)
        status = run.wait()
        assert (status.phase, len(status.attempts)) == (Phase.FAILED, 2)
        assert status.cause is not None
        assert "broken 2" in str(status.cause)
        assert status.cause["rank"] == 1
