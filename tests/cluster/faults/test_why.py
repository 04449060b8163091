"""`why` names the cause of each fault of `faults.py`, which is injected into a run on a cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bed.cluster import Bed, Cluster
from tests.cluster.faults.faults import BREAKING, FAULTS, HEALTHY, QUEUED, SCALED
from tests.cluster.faults.registry import registry_of
from tests.cluster.faults.scene import PATIENCE_SECONDS, Fault, Scene, write_script

from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.verdict import NONE, Diagnosis
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.planning.facts import boot_program, read_facts
from windlass.engines.kubernetes.planning.plan import plan
from windlass.runs.store import Store
from windlass.spec.parse import job_from_mapping
from windlass.spec.targets import KubernetesTarget

WAITS = (
    "pods-not-made",
    "not-scheduled",
    "pods-waiting",
    "queue-waits",
    "queue-pending",
    "machine-coming",
    "run-not-followed",
    "cluster-unreachable",
)
"""Verdicts on a run until its cluster has reported more; a busy cluster may answer too late for a command."""
SCHEDULED_FIRST = "unschedulable"
"""Verdict of the scheduler before the autoscaler has processed a pod."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[KubernetesEngine]:
    with Store(tmp_path / "home") as store:
        yield KubernetesEngine(store)


@pytest.fixture(scope="session")
def registry(bed: Bed) -> Iterator[str]:
    """Address of a registry for the nodes of the shared test cluster; it has no images, and refuses `private/` to all
    clients.
    """
    with registry_of(bed) as address:
        yield address


def params(rows: tuple[Fault, ...]) -> list[Any]:
    """Returns the rows as parameters; a fault whose verdict an earlier row of CI has runs at night."""
    made = []
    verdicts = set[str]()
    for row in rows:
        is_repeated = row.verdict in verdicts and row not in HEALTHY
        marks = [pytest.mark.operators] * bool(row.operator) + [pytest.mark.nightly] * is_repeated
        if not row.operator:
            verdicts.add(row.verdict)
        made.append(pytest.param(row, id=re.sub(r"[^a-z0-9]+", "-", row.name.lower()).strip("-"), marks=marks))
    return made


def asked(row: Fault, at: Scene, folder: Path) -> tuple[Diagnosis, float]:
    """Injects the fault, and calls `why` until the cluster has had time to report it; also returns the seconds of the
    last call.
    """
    engine = at.engine
    assert engine is not None
    folder.mkdir()
    write_script(folder, row)
    if row.before:
        row.before(at)
    fields = {"name": "fault", "run": "train.py", "grace": "2s", "procs_per_node": 1, **row.job}
    if "image" in fields:
        fields["image"] = fields["image"].replace("REGISTRY", at.registry)
    target = KubernetesTarget(
        **{
            "name": "bed",
            "context": at.cluster.context,
            "namespace": at.namespace,
            "image": at.cluster.image,
            "python": at.cluster.python,
            **row.target,
        }
    )
    at.run_id = f"fault-{at.namespace.rpartition('-')[2]}"
    job = job_from_mapping(fields)
    facts = read_facts(job, target, base=folder, environ={"KUBECONFIG": at.cluster.kubeconfig})
    planned = plan(job, target, facts, at.run_id, boot_program())
    if row.between:
        row.between(at)
    engine.submit(planned)
    if row.act:
        row.act(at)
    if row.ends:
        status = engine.wait(at.run_id, PATIENCE_SECONDS)
        assert status.phase.is_terminal, f"{status}\n{at.log()}"
    return answered(row, at)


def answered(row: Fault, at: Scene) -> tuple[Diagnosis, float]:
    assert at.engine is not None
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        began = time.perf_counter()
        seen = at.engine.observe(at.run_id)
        found = diagnose(seen)
        seconds = time.perf_counter() - began
        waits = (*WAITS, NONE, SCHEDULED_FIRST) if row in SCALED else (*WAITS, NONE)
        is_early = found.verdict.code in waits and not row.ends and not seen.status.phase.is_terminal
        is_right = found.verdict.code == row.verdict and (not row.phase or seen.status.phase == row.phase)
        if is_right or not (is_early or found.verdict.code == row.verdict) or time.monotonic() > give_up:
            return found, seconds
        time.sleep(1)


def judged(row: Fault, at: Scene, folder: Path, record_property: Any) -> Diagnosis:
    assert at.engine is not None
    with at.mends:
        try:
            found, seconds = asked(row, at, folder)
            status = at.engine.store.status(at.run_id)
        finally:
            at.mends.close()
            if at.run_id:
                end(at)
    record_property("why", (row.name, row.verdict, found.verdict.code, round(seconds, 2)))
    said = "\n".join([str(found.verdict), *map(str, found.others)])
    assert found.verdict.code == row.verdict, said
    told = "\n".join([found.verdict.summary, *found.verdict.evidence, found.verdict.fix])
    assert [word for word in row.words if word not in told] == [], said
    assert not row.phase or status.phase == row.phase
    return found


def end(at: Scene) -> None:
    """Stops the run, which must be possible in any state."""
    assert at.engine is not None
    if at.run_id in {status.id for status in at.engine.store.statuses()}:
        at.engine.stop(at.run_id, now=True)
        assert at.engine.wait(at.run_id, PATIENCE_SECONDS).phase.is_terminal


@pytest.mark.parametrize("row", params((*FAULTS, *QUEUED)))
def test_why_names_the_injected_fault(
    row: Fault,
    cluster: Cluster,
    namespace: str,
    engine: KubernetesEngine,
    tmp_path: Path,
    record_property: Any,
    request: pytest.FixtureRequest,
) -> None:
    at = Scene(cluster, namespace, engine=engine)
    if "REGISTRY" in str(row.job):
        at.registry = request.getfixturevalue("registry")
    if row.operator:
        request.getfixturevalue("operator")(row.operator)
    found = judged(row, at, tmp_path / "job", record_property)
    assert found.verdict.fix
    if not row.ends:
        return
    cluster.kubectl("-n", namespace, "delete", "jobs,pods,events", "--all", "--force", "--grace-period=0")
    again = diagnose(engine.observe(at.run_id)).verdict
    assert again.code == row.verdict, f"after its objects were removed: {again}"


@pytest.mark.operators
@pytest.mark.timeout(900)
@pytest.mark.parametrize("row", params(SCALED))
def test_why_names_the_reason_for_missing_nodes(
    row: Fault, scaled: Bed, lone_namespace: str, engine: KubernetesEngine, tmp_path: Path, record_property: Any
) -> None:
    at = Scene(scaled, lone_namespace, engine=engine)
    found = judged(row, at, tmp_path / "job", record_property)
    assert found.verdict.fix
    if row.ends:
        scaled.kubectl("-n", lone_namespace, "delete", "jobs,pods,events", "--all", "--force", "--grace-period=0")
        again = diagnose(engine.observe(at.run_id)).verdict
        assert again.code == row.verdict, f"after its objects were removed: {again}"


@pytest.mark.parametrize("row", params(BREAKING))
def test_why_names_a_broken_cluster(
    row: Fault, lone_bed: Bed, lone_namespace: str, engine: KubernetesEngine, tmp_path: Path, record_property: Any
) -> None:
    judged(row, Scene(lone_bed, lone_namespace, engine=engine), tmp_path / "job", record_property)


@pytest.mark.parametrize("row", params(HEALTHY))
def test_why_finds_no_fault_in_a_healthy_run(
    row: Fault, cluster: Cluster, namespace: str, engine: KubernetesEngine, tmp_path: Path, record_property: Any
) -> None:
    found = judged(row, Scene(cluster, namespace, engine=engine), tmp_path / "job", record_property)
    assert found.others == ()
