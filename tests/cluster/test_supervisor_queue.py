"""A Kueue that manages Jobs without a queue suspends a supervisor's Job, which the target's supervisor queue admits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call, home, windlass
from tests.cluster import objects, operated
from tests.cluster.bed.api import answers
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.host import wait_for
from tests.cluster.bed.operators import KUEUE
from tests.cluster.bed.sharing import operating
from tests.cluster.harnesses import set_up

from windlass.runs.phase import Phase

__all__ = ["home", "windlass"]

JOB = {"name": "digits", "command": ["true"], "queue": "narrow", "resources": {"cpus": 0.4}}
WAIT_SECONDS = 240.0

pytestmark = [pytest.mark.operators, pytest.mark.timeout(900)]


@pytest.fixture
def strict(lone_bed: Bed) -> Iterator[Bed]:
    """Test cluster whose Kueue manages all Jobs."""
    with operating(lone_bed, KUEUE.name):
        file = Path(KUEUE.file(lone_bed.layout))
        lone_bed.stop_program(KUEUE.name)
        file.write_text(json.dumps({**json.loads(file.read_text()), "manageJobsWithoutQueueName": True}))
        lone_bed.start_program(KUEUE.name)
        wait_for(lambda: answers(lone_bed.layout.address, *KUEUE.health), "Kueue to be ready again", WAIT_SECONDS)
        yield lone_bed


def test_kueue_admits_a_supervisor_by_the_queue_of_its_target(
    strict: Bed, lone_namespace: str, windlass: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", strict.kubeconfig)
    Path("job.yaml").write_text(json.dumps(JOB))

    def target(**fields: str) -> None:
        its = {
            "kind": "kubernetes",
            "context": strict.context,
            "namespace": lone_namespace,
            "image": strict.image,
            "python": strict.python,
            **fields,
        }
        Path("targets.yaml").write_text(json.dumps({"lab": its}))

    def blockers() -> list[str]:
        notes = windlass("plan", "--on", "lab", "-o", "json").json["notes"]
        return [one["code"] for one in notes if one["blocks"]]

    def is_suspended(job: str) -> bool:
        spec: dict[str, Any] = json.loads(strict.kubectl("get", "job", job, "-n", lone_namespace, "-o", "json"))["spec"]
        return bool(spec.get("suspend"))

    set_up(strict, lone_namespace)
    flavor, cluster_queue, queue = operated.queue("narrow", lone_namespace, "1")
    [group] = cluster_queue["spec"]["resourceGroups"]
    group["coveredResources"].append("memory")  # the supervisor's pod requests memory
    group["flavors"][0]["resources"].append({"name": "memory", "nominalQuota": "1Gi"})
    strict.apply(flavor, cluster_queue, queue, namespace=lone_namespace)
    target()
    wait_for(lambda: blockers() == ["supervisor-suspended"], "Kueue to answer", WAIT_SECONDS)
    target(supervisor_queue="narrow")
    wait_for(lambda: not blockers(), "the queue to serve", WAIT_SECONDS)
    other = operated.queued_job(strict, "other", "narrow", objects.SLEEP, "980m")
    strict.apply(other, namespace=lone_namespace)
    wait_for(lambda: not is_suspended("other"), "the other Job to be admitted", WAIT_SECONDS)
    run_id = windlass("run", "--on", "lab", "-d", "-q").out.strip()
    says = "queue narrow has not admitted it: couldn't assign flavors"
    wait_for(lambda: says in windlass("status", run_id).out, "the command to say what it waits for", WAIT_SECONDS)
    assert is_suspended(f"{run_id}-supervisor")
    strict.kubectl("delete", "job", "other", "-n", lone_namespace, "--wait=false")
    wait_for(
        lambda: windlass("status", run_id, "-o", "json").json["phase"] == Phase.SUCCEEDED, "the run's end", WAIT_SECONDS
    )
