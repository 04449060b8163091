"""Workload kinds that need an operator have the same weights, restarts and fault handling, on a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.bed import images
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.host import wait_for
from tests.cluster.bed.sharing import operating
from tests.cluster.harnesses import OPERATORS, digest, harness_on, opened, pods
from tests.cluster.test_restarts import names, script
from tests.cluster.test_training import (
    DIGITS,
    EXAMPLES,
    LOCAL,
    SHAPE,
    accuracy,
    it_shrinks_and_grows,
    results,
    succeeded,
)
from tests.engines.harness import Harness

from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.runs.phase import Phase

pytestmark = [pytest.mark.operators, pytest.mark.timeout(900)]
Operator = Callable[[str], None]
WAIT_SECONDS = 240.0
BY_TORCH = ("trainjob", "pytorchjob")
APART = """import os, time
if os.environ["WINDLASS_RANK"] == "0":
    time.sleep(35)  # longer than the time that mpirun has to end after its ranks
    print("rank 0 was the last")
"""


@pytest.mark.parametrize("via", BY_TORCH)
def test_digits_have_the_same_weights_as_with_a_job(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path, via: str
) -> None:
    operator(OPERATORS[via])
    with opened(harness_on(cluster, namespace, tmp_path / "home")) as harness:
        words = ("train.py", "--epochs", "5")
        runs = {one: harness.start(*words, base=DIGITS, **SHAPE, **results(cluster, via=one)) for one in ("job", via)}
        for run in runs.values():
            succeeded(run)
        assert accuracy(runs[via]) == accuracy(runs["job"])
        assert digest(runs[via], "model.pt", tmp_path) == digest(runs["job"], "model.pt", tmp_path)


@pytest.mark.parametrize("via", BY_TORCH)
def test_failed_rank_restarts_in_the_same_pods_and_lost_pod_in_new_ones(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path, via: str
) -> None:
    operator(OPERATORS[via])
    with opened(
        harness_on(cluster, namespace, tmp_path / "home", kubernetes={"via": via}, restarts={"max": 3})
    ) as harness:
        run = harness.start(
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


def test_node_starts_in_spite_of_an_ended_first_node(lone_bed: Bed, lone_namespace: str, tmp_path: Path) -> None:
    """Ranks need not rendezvous. Here a pod resolves its own name, but those of other pods only through a name server
    that is down.
    """
    here = {"kubernetes": {"via": "pytorchjob"}}
    with (
        operating(lone_bed, OPERATORS["pytorchjob"]),
        opened(harness_on(lone_bed, lone_namespace, tmp_path / "home", **here)) as harness,
    ):
        lone_bed.stop_program("coredns")
        try:
            environ = {"BREAKS": "", "WAITS": ""}
            run = harness.start("script.py", base=script(tmp_path), nodes=2, launcher="plain", env=environ)
            assert run.wait().phase is Phase.SUCCEEDED, run.text()
        finally:
            lone_bed.start_program("coredns")
        for rank in (0, 1):
            assert [line.text for line in run.lines(ranks=[rank])] == [f"attempt 1 of rank {rank}"]


@pytest.mark.parametrize("via", [via for via, way in WORKLOADS.items() if not way.no_ttl])
def test_expired_pods_leave_the_record_unchanged(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path, via: str
) -> None:
    if via in OPERATORS:
        operator(OPERATORS[via])
    here = {"via": via, "ttl": "3s"}
    with opened(harness_on(cluster, namespace, tmp_path / "home", kubernetes=here)) as harness:
        run = succeeded(harness.start("script.py", base=script(tmp_path), nodes=2, env={"BREAKS": "", "WAITS": ""}))
        wait_for(lambda: not names(cluster, namespace, run), "pods to be removed", WAIT_SECONDS)
        made = cluster.kubectl(
            "get", WORKLOADS[via].plural, "-n", namespace, "-l", f"windlass.dev/run={run.id}", "-o", "name"
        )
        assert not made
        assert (run.status.phase, len(run.status.attempts)) == (Phase.SUCCEEDED, 1)


@pytest.mark.parametrize("cascade", ["windlass", "foreground", "background"])
@pytest.mark.parametrize("via", WORKLOADS)
def test_removed_run_leaves_no_objects(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path, via: str, cascade: str
) -> None:
    """The run is removed by a command, or with its owner ConfigMap: an expiry is a foreground deletion of the latter's
    owner.
    """
    if via in OPERATORS:
        operator(OPERATORS[via])
    way = WORKLOADS[via]
    launcher = {"launcher": "mpi"} if via == "mpijob" else {}
    kinds = [way.plural, *(plural for _, plural in way.parts), *(["jobsets"] if via == "trainjob" else [])]
    everything = ",".join([*kinds, "jobs", "pods", "services", "configmaps", "leases"])
    with opened(harness_on(cluster, namespace, tmp_path / "home", kubernetes={"via": via})) as harness:
        environ = {"BREAKS": "", "WAITS": ""}
        run = succeeded(harness.start("script.py", base=script(tmp_path), nodes=2, env=environ, **launcher))
        chosen = ("-n", namespace, "-l", f"windlass.dev/run={run.id}", "-o", "name")
        assert len(cluster.kubectl("get", ",".join(kinds), *chosen).split()) == len(kinds)
        if cascade == "windlass":
            harness.engine.delete(run.id)
        else:
            cluster.kubectl("delete", "configmap", run.id, "-n", namespace, f"--cascade={cascade}", "--wait=false")
        wait_for(lambda: not cluster.kubectl("get", everything, *chosen), "all objects to be gone", WAIT_SECONDS)
        harness.runs.clear()


def test_objects_recreated_by_a_trainjob_do_not_train_again(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    """Trainer creates a JobSet again if it was deleted by its TTL, since Trainer does not record the end."""
    operator(OPERATORS["trainjob"])
    with opened(harness_on(cluster, namespace, tmp_path / "home", kubernetes={"via": "trainjob"})) as harness:
        run = succeeded(harness.start("script.py", base=script(tmp_path), nodes=2, env={"BREAKS": "", "WAITS": ""}))
        before = names(cluster, namespace, run)
        cluster.kubectl("delete", "jobset", f"{run.id}-1", "-n", namespace)
        wait_for(lambda: len(names(cluster, namespace, run) - before) == 2, "pods that are made anew", WAIT_SECONDS)
        made = sorted(names(cluster, namespace, run) - before)
        for name in made:
            cluster.kubectl(
                "wait", "pod", name, "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=240s"
            )
            said = cluster.kubectl("logs", name, "-n", namespace)
            assert "the run has ended" in said
            assert "attempt 1" not in said


def test_pod_recreated_by_an_operator_does_not_train(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    operator(OPERATORS["pytorchjob"])
    with opened(harness_on(cluster, namespace, tmp_path / "home", kubernetes={"via": "pytorchjob"})) as harness:
        run = harness.start("script.py", base=script(tmp_path), env={"BREAKS": "", "WAITS": "1"})
        run.until(lambda run: "attempt 1 of rank 0" in run.text())
        cluster.kubectl("delete", "pod", "-n", namespace, *names(cluster, namespace, run), "--grace-period=1")
        # The phase is stopped if the rank dies of SIGTERM (a preemption without restarts), and failed after the grace
        # period.
        assert run.wait().phase in (Phase.STOPPED, Phase.FAILED)
        assert len(run.status.attempts) == 1
        running = (
            "get",
            "pods",
            "-n",
            namespace,
            "-l",
            f"windlass.dev/run={run.id}",
            "-o",
            "jsonpath={.items[?(@.status.phase=='Running')].metadata.name}",
        )
        wait_for(lambda: not cluster.kubectl(*running), "its pods to end", WAIT_SECONDS)
        assert run.text().count("attempt 1 of rank 0") == 1


@pytest.mark.parametrize("via", BY_TORCH)
def test_elastic_job_shrinks_and_grows_as_an_operators_kind(
    lone_bed: Bed, lone_namespace: str, tmp_path: Path, via: str
) -> None:
    with operating(lone_bed, OPERATORS[via]):
        run = it_shrinks_and_grows(lone_bed, lone_namespace, tmp_path, via)
        if via == "pytorchjob":
            said = "jsonpath={.items[*].spec.elasticPolicy['minReplicas', 'maxReplicas']}"
            chosen = ("-n", lone_namespace, "-l", f"windlass.dev/run={run.id}")
            assert lone_bed.kubectl("get", "pytorchjobs", *chosen, "-o", said).split() == ["1", "2"]


def test_mpi_job_has_the_same_weights_as_on_this_machine(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    operator(OPERATORS["mpijob"])
    base, shape = EXAMPLES / "03-mpi-digits", {"launcher": "mpi", **SHAPE}
    with (
        opened(harness_on(cluster, namespace, tmp_path / "home")) as harness,
        opened(Harness(LOCAL, tmp_path / "local")) as local,
    ):
        run = harness.start("train.py", "--epochs", "3", base=base, **shape, **results(cluster))
        at_home = local.start("train.py", "--epochs", "3", base=base, **shape)
        assert accuracy(succeeded(run)) == accuracy(succeeded(at_home))
        assert digest(run, "model.pt", tmp_path)


def test_horovod_digits_have_the_same_weights_as_on_this_machine(
    bed: Bed, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    """The sum over two ranks is the same in every order, and so are the weights."""
    if not images.shows_horovod(bed.node("node1").folder):
        pytest.skip("the bed shows no Horovod: make horovod, before the bed is brought up")
    operator(OPERATORS["mpijob"])
    base, words = EXAMPLES / "04-horovod-digits", ("train.py", "--epochs", "5")
    with (
        opened(harness_on(bed, namespace, tmp_path / "home")) as harness,
        opened(Harness(LOCAL, tmp_path / "local")) as local,
    ):
        of_two = {"nodes": 2, "python": f"{images.HOROVOD}/bin/python"}
        run = harness.start(*words, base=base, launcher="mpi", **of_two, **results(bed))
        here = str(images.HOROVOD_ENV / "bin" / "python")
        at_home = local.start(*words, base=base, launcher="mpi", procs_per_node=2, python=here)
        assert accuracy(succeeded(run)) == accuracy(succeeded(at_home))
        assert float(accuracy(run).split()[0]) >= 97
        assert digest(run, "model.pt", tmp_path)


def test_failed_mpi_rank_is_reported_and_all_ranks_restart(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    operator(OPERATORS["mpijob"])
    with opened(harness_on(cluster, namespace, tmp_path / "home", restarts={"max": 1})) as harness:
        fields = {"nodes": 2, "launcher": "mpi", "env": {"BREAKS": "12", "WAITS": ""}}
        run = harness.start("script.py", base=script(tmp_path), **fields)
        run.until(lambda run: "broken 1" in run.text())
        before = names(cluster, namespace, run)
        status = run.wait()
        assert (status.phase, len(status.attempts)) == (Phase.FAILED, 2)
        assert len(before) == 2
        assert names(cluster, namespace, run) == before  # the second attempt ran in the same pods
        assert status.cause is not None
        assert "broken 2" in str(status.cause)
        assert status.cause.rank == 1


def test_a_rank_of_mpi_may_end_long_before_the_ranks_of_other_nodes(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    """mpirun would end all ranks if it lost the daemon of a node."""
    operator(OPERATORS["mpijob"])
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "apart.py").write_text(APART)
    with opened(harness_on(cluster, namespace, tmp_path / "home")) as harness:
        run = harness.start("apart.py", base=tmp_path / "code", nodes=2, launcher="mpi")
        status = run.wait()
        assert (status.phase, status.cause) == (Phase.SUCCEEDED, None), run.text()
        assert "rank 0 was the last" in run.text()
