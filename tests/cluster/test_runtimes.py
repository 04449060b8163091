"""TrainJobs keep the pod settings of an existing training runtime, and override what a run needs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster import objects
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.bed.images import USER
from tests.cluster.bed.operators import OLD_TRAINER
from tests.cluster.harnesses import OPERATORS, digest, harness_on, opened, pods
from tests.cluster.test_restarts import names, script
from tests.cluster.test_training import DIGITS, LOCAL, SHAPE, accuracy, results, succeeded
from tests.engines.harness import Harness, Run

from windlass.engines.kubernetes.objects.workloads.runtimes import API, STEP
from windlass.engines.kubernetes.planning.runtimes import KINDS
from windlass.runs.phase import Phase

pytestmark = [pytest.mark.operators, pytest.mark.timeout(900)]
Operator = Callable[[str], None]


def pod_of(cluster: Cluster) -> objects.Object:
    """Returns a pod of a custom runtime: a variable, a folder, and no restart policy, for which JobSet uses
    `OnFailure`.
    """
    spec = objects.pod_spec(
        cluster,
        "",
        container={
            "name": "node",
            "command": ["of-the-runtime"],
            "env": [{"name": "OF_THE_RUNTIME", "value": "yes"}],
            "volumeMounts": [{"name": "work", "mountPath": "/scratch"}, {"name": "work", "mountPath": "/dev/shm"}],
        },
    )
    del spec["restartPolicy"], spec["terminationGracePeriodSeconds"]
    spec["securityContext"] |= {"runAsUser": USER, "fsGroup": USER}
    return {**spec, "volumes": [{"name": "work", "emptyDir": {}}]}


def runtime(cluster: Cluster, kind: str, name: str) -> objects.Object:
    """Returns a runtime like those of Trainer: with the variables of torchrun, and one node unless a TrainJob sets
    more.
    """
    job = {"metadata": {"labels": {STEP: "trainer"}}, "spec": {"template": {"spec": pod_of(cluster)}}}
    template = {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}
    return {
        "apiVersion": API,
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": template},
    }


@contextlib.contextmanager
def standing(cluster: Cluster, namespace: str, kind: str) -> Iterator[str]:
    """Creates such a runtime for the duration of a test; yields its name."""
    name = namespace if kind == "ClusterTrainingRuntime" else "of-the-team"
    cluster.apply(runtime(cluster, kind, name), namespace=namespace)
    try:
        yield name
    finally:
        cluster.kubectl("delete", kind, name, "-n", namespace, "--wait=false", "--ignore-not-found")


def trainjob_of(cluster: Cluster, namespace: str, run: Run) -> objects.Object:
    made: objects.Object = json.loads(cluster.kubectl("get", "trainjob", f"{run.id}-1", "-n", namespace, "-o", "json"))
    return made


def changed_by(cluster: Cluster, namespace: str, run: Run) -> list[str]:
    """Returns the fields of a TrainJob that override its runtime, as stored by the API server."""
    return sorted({"runtimePatches", "podTemplateOverrides"} & set(trainjob_of(cluster, namespace, run)["spec"]))


def test_digits_on_existing_runtimes_have_the_same_weights_as_on_this_machine(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    operator(OPERATORS["trainjob"])
    with (
        standing(cluster, namespace, KINDS[0]) as one,
        standing(cluster, namespace, KINDS[1]) as other,
        opened(harness_on(cluster, namespace, tmp_path / "home")) as harness,
        opened(Harness(LOCAL, tmp_path / "local")) as local,
    ):
        words, named = ("train.py", "--epochs", "5"), dict(zip(KINDS, (one, other), strict=True))
        runs = {
            kind: harness.start(*words, base=DIGITS, **SHAPE, **results(cluster, runtime=name))
            for kind, name in named.items()
        }
        at_home = succeeded(local.start(*words, base=DIGITS, **SHAPE))
        for kind, run in runs.items():
            assert accuracy(succeeded(run)) == accuracy(at_home)
            made = trainjob_of(cluster, namespace, run)
            assert (made["spec"]["runtimeRef"]["kind"], made["spec"]["runtimeRef"]["name"]) == (kind, named[kind])
            assert changed_by(cluster, namespace, run) == ["runtimePatches"]
            for pod in pods(cluster, namespace, run, 1):
                [container] = pod["spec"]["containers"]
                assert {"name": "OF_THE_RUNTIME", "value": "yes"} in container["env"]
                assert "/scratch" in [mount["mountPath"] for mount in container["volumeMounts"]]
        weights = {digest(run, "model.pt", tmp_path) for run in runs.values()}
        assert len(weights) == 1
        assert not cluster.kubectl("get", "trainingruntimes", "-n", namespace, "-l", "windlass.dev/run", "-o", "name")


def test_restarts_are_controlled_by_the_supervisor_in_spite_of_the_runtimes_policy(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    """The same pods are used after a rank has failed, new ones after a pod is lost, and never a restarted container."""
    operator(OPERATORS["trainjob"])
    with (
        standing(cluster, namespace, "ClusterTrainingRuntime") as name,
        opened(
            harness_on(cluster, namespace, tmp_path / "home", kubernetes={"runtime": name}, restarts={"max": 3})
        ) as harness,
    ):
        fields = {"nodes": 2, "launcher": "plain", "env": {"BREAKS": "1", "WAITS": "2"}}
        run = harness.start("script.py", base=script(tmp_path), **fields)
        run.until(lambda run: "attempt 2 of rank 1" in run.text() and "attempt 2 of rank 0" in run.text())
        assert len(names(cluster, namespace, run)) == 2
        lost = pods(cluster, namespace, run, 1)[0]["metadata"]["name"]
        cluster.kubectl("delete", "pod", lost, "-n", namespace, "--grace-period=0", "--force")
        status = run.wait()
        assert (status.phase, len(status.attempts)) == (Phase.SUCCEEDED, 3), run.text()
        for attempt in (2, 3):
            for rank in (0, 1):
                said = [line.text for line in run.lines(attempt=attempt, ranks=[rank])]
                assert said == [f"attempt {attempt} of rank {rank}"]


def test_container_restarted_by_the_runtime_does_not_train(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    operator(OPERATORS["trainjob"])
    with (
        standing(cluster, namespace, "ClusterTrainingRuntime") as name,
        opened(harness_on(cluster, namespace, tmp_path / "home", kubernetes={"runtime": name})) as harness,
    ):
        run = harness.start("script.py", base=script(tmp_path), nodes=2, env={"BREAKS": "1", "WAITS": ""})
        status = run.wait()
        assert (status.phase, len(status.attempts)) == (Phase.FAILED, 1)
        assert "broken 1" in str(status.cause)
        # objects that would be created again are removed at the end
        run.until(lambda run: not names(cluster, namespace, run))
        assert run.text().count("attempt 1 of rank 1") == 1


def test_missing_runtime_is_refused_with_a_similar_name(
    cluster: Cluster, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    operator(OPERATORS["trainjob"])
    with (
        standing(cluster, namespace, "TrainingRuntime"),
        opened(harness_on(cluster, namespace, tmp_path / "home")) as harness,
    ):
        [note] = [
            note for note in harness.plan("leave", "0", kubernetes={"runtime": "of-the-tea"}).notes if note.blocks
        ]
        assert note.message.endswith("of-the-tea for this namespace (did you mean of-the-team?)")


# -- an older version -------------------------------------------------------------------------------------------------


def test_digits_train_on_a_runtime_of_trainer_2_1_with_its_override_fields(
    lone_bed: Bed, lone_namespace: str, tmp_path: Path
) -> None:
    lone_bed.start_operator(OLD_TRAINER.name)
    try:
        with (
            standing(lone_bed, lone_namespace, KINDS[0]) as name,
            opened(harness_on(lone_bed, lone_namespace, tmp_path / "home")) as harness,
            opened(Harness(LOCAL, tmp_path / "local")) as local,
        ):
            words = ("train.py", "--epochs", "5")
            run = harness.start(*words, base=DIGITS, **SHAPE, **results(lone_bed, runtime=name))
            assert accuracy(succeeded(run)) == accuracy(succeeded(local.start(*words, base=DIGITS, **SHAPE)))
            assert changed_by(lone_bed, lone_namespace, run) == ["podTemplateOverrides"]
    finally:
        lone_bed.stop_operator(OLD_TRAINER.name)
