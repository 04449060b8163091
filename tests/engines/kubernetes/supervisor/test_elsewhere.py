"""Several machines share a run: each acts on what the others have done, and only one at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer
from tests.engines.kubernetes.supervisor.test_damaged import a_plan
from tests.statuses import condition_of

from windlass.engines.kubernetes.access.lease import holder_of
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.summary import summary_of
from windlass.engines.kubernetes.objects.supervisor_manifests import filled, with_digest
from windlass.engines.kubernetes.supervisor.fenced import held, lease_of
from windlass.engines.kubernetes.supervisor.record import ClusterRecord, Head, head_manifest
from windlass.errors import EngineError, NoSuchRun, UsageError
from windlass.plan.steps import CodeStep
from windlass.runs.events import RECORD_VERSION, AttemptStarted, Created, Entry, Event, RunEnded, RunResumed
from windlass.runs.phase import Phase
from windlass.runs.record import REMOVED, fold
from windlass.runs.store import Store

RUN = "digits-7f3k2"
NAMES = {"name": f"{RUN}-supervisor", "namespace": "team"}


class Cluster:
    """Cluster with a run that another machine has submitted."""

    def __init__(self, server: ObjectServer, folder: Path) -> None:
        self.server = server
        self._folder = folder
        self._open = ExitStack()
        server.owner_config_map(RUN)
        self.client = self._open.enter_context(closing(server.client(folder)))
        first = Created(RUN, "digits", "lab", "in the pods", supervisor="cluster", version=RECORD_VERSION).event(
            1, time.time()
        )
        self.events: list[Event] = [first]
        head = Head((first,), summary_of(fold([first]), {}), 0, "submitter")
        self.client.create(head_manifest(self.client.get("v1", "ConfigMap", RUN), head))
        self.submit(a_plan())

    def submit(self, plan: dict[str, Any]) -> None:
        """Replaces the supervisor's objects."""
        text, name = json.dumps(plan), layout.supervisor_name(RUN)
        for kind, api, one in (
            ("ConfigMap", "v1", filled({"metadata": NAMES}, text)),
            ("Job", "batch/v1", with_digest({"metadata": NAMES}, text)),
        ):
            self.client.delete(api, kind, name)
            self.client.create({"apiVersion": api, "kind": kind, **one})

    def close(self) -> None:
        self._open.close()

    def write(self, *entries: Entry) -> None:
        """Appends events like the run's supervisor."""
        for entry in entries:
            self.events.append(entry.event(len(self.events) + 1, time.time()))
        ClusterRecord(self.client, RUN, "pod-a").write(self.events, fold(self.events), {})

    def machine(self, name: str) -> KubernetesEngine:
        """Returns the engine of another machine, which has imported the record."""
        engine = KubernetesEngine(self._open.enter_context(Store(self._folder / name)))
        assert engine.import_run(self.client, "lab", self.server.kubeconfig(self._folder), RUN)
        return engine


@pytest.fixture
def cluster(server: ObjectServer, tmp_path: Path) -> Iterator[Cluster]:
    with closing(Cluster(server, tmp_path)) as cluster:
        yield cluster


def test_resume_with_another_number_of_nodes_updates_the_plan_on_other_machines(cluster: Cluster) -> None:
    engine = cluster.machine("a")
    cluster.write(AttemptStarted(1, 1), RunEnded(Phase.FAILED, exit_code=3))
    assert engine.store.plan(RUN).num_nodes == 1
    cluster.submit({**a_plan(), "num_nodes": 4})
    cluster.write(RunResumed("asked", nodes=4))
    assert engine.status(RUN).supervision.condition is None
    assert engine.store.plan(RUN).num_nodes == 4


def test_a_resume_in_the_record_changes_no_plan_of_the_machine_that_submitted_it(cluster: Cluster) -> None:
    engine = cluster.machine("a")
    plan = engine.store.plan(RUN)
    code = plan.only(CodeStep)
    own = replace(plan, steps=(*(step for step in plan.steps if step != code), code.replace(is_imported=False)))
    engine.store.copy(RUN, cluster.events, own.to_text())
    cluster.submit({**a_plan(), "num_nodes": 4})
    cluster.write(RunEnded(Phase.FAILED), RunResumed("asked", nodes=4))
    engine.status(RUN)
    assert engine.plan_of(RUN) == own


def test_a_run_whose_plan_cannot_be_verified_is_not_taken_over(cluster: Cluster, tmp_path: Path) -> None:
    """Without the Job of a supervisor, the plan may come from any user who may create ConfigMaps."""
    cluster.server.remove("Job", layout.supervisor_name(RUN))
    with Store(tmp_path / "home") as store:
        assert not KubernetesEngine(store).import_run(cluster.client, "lab", "/here/config", RUN)
        with pytest.raises(NoSuchRun):
            store.status(RUN)


def test_run_removed_by_another_machine_is_reported(cluster: Cluster) -> None:
    engine = cluster.machine("a")
    for kind in ("ConfigMap", "Job"):
        for name in cluster.server.names(kind):
            cluster.server.remove(kind, name)
    status = engine.status(RUN)
    assert status.phase is Phase.STOPPED
    assert condition_of(status).type == REMOVED


def test_deleted_record_is_restored_only_by_its_supervisor(cluster: Cluster, tmp_path: Path) -> None:
    engine = cluster.machine("a")
    assert lease_of(cluster.client, RUN, tmp_path / "pod").ensure()
    cluster.server.remove("ConfigMap", layout.record_name(RUN))
    status = engine.status(RUN)
    assert condition_of(status).type == "RecordDamaged"
    assert layout.record_name(RUN) not in cluster.server.names("ConfigMap")


# -- one at a time ----------------------------------------------------------------------------------------------------


@pytest.fixture
def ended(cluster: Cluster) -> Cluster:
    cluster.write(AttemptStarted(1, 1), RunEnded(Phase.FAILED, exit_code=3))
    return cluster


def test_an_ended_run_is_held_by_one_command_at_a_time(
    ended: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.engines.kubernetes.supervisor.fenced.HOLD_SECONDS", 0.0)
    status = fold(ended.events)
    first, second = (held(ended.client, status, tmp_path / name) for name in "ab")
    with first, pytest.raises(EngineError, match="is still held"), second:
        pass
    with held(ended.client, status, tmp_path / "b"):
        pass


def test_second_of_two_resumes_is_refused(ended: Cluster, tmp_path: Path) -> None:
    status = fold(ended.events)
    with held(ended.client, status, tmp_path / "a"):
        event = RunResumed("asked").event(status.last_seq + 1, time.time())
        ClusterRecord(ended.client, RUN, holder_of(tmp_path / "a")).write([event], fold([*ended.events, event]), {})
        with pytest.raises(UsageError, match="was just resumed"), held(ended.client, status, tmp_path / "b"):
            pass


def test_lease_of_a_removed_run_is_not_acquired(ended: Cluster, tmp_path: Path) -> None:
    for name in ended.server.names("ConfigMap"):
        ended.server.remove("ConfigMap", name)
    with pytest.raises(NoSuchRun, match="was removed"), held(ended.client, fold(ended.events), tmp_path / "a"):
        pass
    assert not ended.server.names("ConfigMap")
