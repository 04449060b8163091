"""Karpenter provisions nodes for runs: the plan names them, and the record follows them until they are deleted."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import operated
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.host import wait_for
from tests.cluster.harnesses import OPERATORS, harness_on, let_go, opened
from tests.cluster.rights import LIMITED, until_granted
from tests.engines.harness import Run

from windlass.cli.eventtext import sentence
from windlass.diagnose.diagnose import diagnose
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.reading.observe import observe
from windlass.engines.kubernetes.reading.preflight import rbac
from windlass.engines.kubernetes.reading.preflight.checks import checks
from windlass.engines.kubernetes.reading.preflight.survey import survey
from windlass.runs.phase import Phase
from windlass.spec.targets import KubernetesTarget

POOL = "gpus"
FOUR_GPUS = {"resources": {"gpus": 4}, "procs_per_node": 1}
"""More GPUs than a node of the test cluster has."""
WAYS = ("job", "jobset", "trainjob", "pytorchjob", "mpijob")
BOOTS = "15s"
"""Time until a node joins the cluster: long enough to be observed on a busy machine."""
WAITS = ("wait_for", "go")
"""A pod may run on a node before Karpenter has initialized it, and must not end before."""
WAIT_SECONDS = 300.0
STEPS = ["asked", "launched", "registered", "initialized"]
pytestmark = [pytest.mark.operators, pytest.mark.timeout(900)]


def steps(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Returns the recorded states of each node."""
    found: dict[str, list[dict[str, Any]]] = {}
    for event in run.events:
        if event.kind == "machine":
            found.setdefault(event.data["name"], []).append(dict(event.data))
    return found


def went(run: Run) -> bool:
    """Returns whether the last node that was provisioned for a run is deleted, by its record."""
    return any(event.kind == "machine" and event.data.get("left") == 0 for event in run.events)


def end_once_initialized(bed: Bed, namespace: str, run: Run) -> None:
    """Ends the ranks of a run once its record has the node as initialized, and the rank runs on it."""
    run.until(lambda run: any("initialized" in [one["state"] for one in machine] for machine in steps(run).values()))
    run.until_ready()
    let_go(bed, namespace, run)


@pytest.mark.parametrize("via", WAYS)
def test_record_of_a_run_contains_provisioning_and_deletion_of_its_nodes(
    scaled: Bed, lone_namespace: str, tmp_path: Path, via: str
) -> None:
    if via in OPERATORS:
        scaled.start_operator(OPERATORS[via])
    try:
        fields = {**FOUR_GPUS, "kubernetes": {"via": via}, "launcher": "mpi" if via == "mpijob" else "plain"}
        with (
            operated.pooled(scaled, POOL, "g5.12xlarge", "p4d.24xlarge", delay=BOOTS),
            opened(harness_on(scaled, lone_namespace, tmp_path / "home", **fields)) as harness,
        ):
            [told] = [step for step in harness.plan("leave", "0").steps if step.kind == "machines"]
            assert "NodePool gpus makes g5.12xlarge or p4d.24xlarge" in told.summary
            run = harness.start(*WAITS)
            run.until(lambda run: run.status.phase is Phase.PROVISIONING, WAIT_SECONDS)
            assert diagnose(observe(harness.store, run.status)).verdict.code in (
                "machine-coming",
                "pods-waiting",
                "none",
            )
            end_once_initialized(scaled, lone_namespace, run)
            status = run.wait()
            assert status.phase is Phase.SUCCEEDED, run.text()
            assert status.times.phases[Phase.PROVISIONING] > 0
            [(name, machine)] = steps(run).items()
            assert [one["state"] for one in machine][:4] == STEPS
            assert machine[3]["instance_type"] == "g5.12xlarge"
            assert (machine[3]["pool"], machine[3]["capacity_type"]) == (POOL, "spot")
            times = [event.time for event in run.events if event.kind == "machine"][:4]
            assert times == sorted(times)
            wait_for(lambda: went(run), "the record to see the machine go", WAIT_SECONDS)
            [last] = [event for event in run.events if event.data.get("left") == 0]
            assert name == last.data["name"]
            assert last.time > (run.status.times.ended_at or 0.0)
            assert sentence(last).endswith("it was the last one provisioned for the run")
            assert run.status == dataclasses.replace(status, last_seq=run.status.last_seq)
    finally:
        if via in OPERATORS:
            scaled.stop_operator(OPERATORS[via])


def test_run_stays_queued_until_a_node_is_provisioned(scaled: Bed, lone_namespace: str, tmp_path: Path) -> None:
    scaled.sell_out("p4d.24xlarge")
    try:
        with (
            operated.pooled(scaled, POOL, "p4d.24xlarge"),
            opened(harness_on(scaled, lone_namespace, tmp_path / "home", **FOUR_GPUS)) as harness,
        ):
            run = harness.start(*WAITS)
            run.until(lambda run: "no capacity is left" in (run.status.waits_for or ""), WAIT_SECONDS)
            scaled.sell_out()
            end_once_initialized(scaled, lone_namespace, run)
            status = run.wait()
            assert status.phase is Phase.SUCCEEDED, run.text()
            assert any("initialized" in [one["state"] for one in machine] for machine in steps(run).values())
    finally:
        scaled.sell_out()


def test_plan_gives_the_reason_why_no_pool_matches(scaled: Bed, lone_namespace: str, tmp_path: Path) -> None:
    taint = {"key": "team", "value": "vision", "effect": "NoSchedule"}
    with (
        operated.pooled(scaled, POOL, "g5.12xlarge", taints=[taint]),
        opened(harness_on(scaled, lone_namespace, tmp_path / "home", **FOUR_GPUS)) as harness,
    ):
        made = harness.plan("leave", "0")
        [note] = [note for note in made.notes if note.code == "machines-none"]
        assert "NodePool gpus: its nodes have the taint team=vision:NoSchedule" in note.message
        assert [step for step in made.steps if step.kind == "machines"] == []


def test_login_that_may_not_list_pools_gets_a_plan_with_a_note(
    scaled: Bed, lone_namespace: str, tmp_path: Path
) -> None:
    limited = dataclasses.replace(scaled, context="bed-limited")
    role = rbac.role(lone_namespace, rbac.useful(()))  # the role that `windlass check --role` prints
    scaled.apply(role, rbac.binding(lone_namespace, LIMITED), namespace=lone_namespace)
    until_granted(scaled, lone_namespace, LIMITED, set(rbac.useful(())))
    with operated.pooled(scaled, POOL, "g5.12xlarge", delay=BOOTS):
        with opened(harness_on(limited, lone_namespace, tmp_path / "home", **FOUR_GPUS)) as harness:
            made = harness.plan("leave", "0")
            assert [step.kind for step in made.steps if step.kind == "machines"] == []
            assert [note for note in made.notes if note.blocks] == []
            run = harness.start("leave", "0")
            run.until(lambda run: steps(run), WAIT_SECONDS)  # read from events of the run's namespace only
            assert {one["state"] for machine in steps(run).values() for one in machine} == {"asked"}
            assert run.wait().phase is Phase.SUCCEEDED
        target = KubernetesTarget(name="bed", context=limited.context, namespace=lone_namespace)
        seen = {one.name: one for one in checks(survey(_client(limited, lone_namespace)), target)}
        assert "NodePools" in seen["not seen"].found
        seen = {one.name: one for one in checks(survey(_client(scaled, lone_namespace)), target)}
        assert seen["machines"].found == "Karpenter makes: gpus (g5.12xlarge)"


def _client(bed: Bed, namespace: str) -> Client:
    return Client(bed.context, namespace, bed.kubeconfig)
