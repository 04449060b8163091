"""`why` reports what it could not read in a cluster, against an API server on loopback."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer
from tests.engines.kubernetes.planning.test_plan import FACTS, TARGET

from windlass.cli.formatting import painter
from windlass.cli.whytext import why_lines
from windlass.diagnose.diagnose import diagnose
from windlass.diagnose.verdict import Diagnosis
from windlass.engines.kubernetes.planning.plan import plan
from windlass.engines.kubernetes.reading.observe import observe
from windlass.runs.events import entry_of
from windlass.runs.store import RunWriter, Store
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget
from windlass.views.verdict import Why

RUN = "digits-7f3k2"


@pytest.fixture
def server(server: ObjectServer) -> ObjectServer:
    server.owner_config_map(RUN)
    server.served.add("jobsets")
    server.put("JobSet", f"{RUN}-1", api="jobset.x-k8s.io/v1alpha2", spec={}, status={})
    server.pod(RUN, "Running")
    return server


@pytest.fixture
def writer(tmp_path: Path, server: ObjectServer) -> Iterator[RunWriter]:
    """Yields the record of a run that trains on the server."""
    target = TARGET.model_copy(update={"namespace": "team"})
    assert isinstance(target, KubernetesTarget)
    facts = dataclasses.replace(FACTS, kubeconfig=server.kubeconfig(tmp_path / "kube"))
    made = plan(Job(name="digits", run="train.py"), target, facts, RUN, "boot")
    with Store(tmp_path / "home") as store:
        writer = store.create(RUN, name="digits", target="lab", output_dir="out", plan=made.to_text(), time=1e9)
        writer.append(
            entry_of("attempt", {"number": 1, "world_size": 1, "nodes": [[0]], "members": [0], "reason": None})
        )
        writer.append(entry_of("phase", {"phase": "training"}))
        yield writer
        writer.close()


def why(writer: RunWriter) -> Diagnosis:
    return diagnose(observe(writer.store, writer.status))


def unseen(writer: RunWriter) -> tuple[str, ...]:
    """Returns what could not be read in the cluster."""
    return observe(writer.store, writer.status).not_seen


def test_nothing_is_unseen_if_everything_is_readable(writer: RunWriter) -> None:
    found = why(writer)
    assert (found.verdict.code, unseen(writer)) == ("none", ())
    assert found.verdict.summary == "the run is training; nothing is wrong so far"


def test_forbidden_reads_are_reported_with_reason(writer: RunWriter, server: ObjectServer) -> None:
    server.forbidden |= {"nodes", "events"}
    found = why(writer)
    assert sorted(one.split(": ")[0] for one in unseen(writer)) == ["events cannot be listed", "nodes cannot be listed"]
    assert all("forbidden" in one for one in unseen(writer))
    assert found.verdict.summary == "the run is training; nothing is wrong in what could be read"
    assert set(unseen(writer)) <= set(found.not_seen)
    lines = why_lines(Why(writer.status, found, ()), painter(sys.stdout))
    assert any("not seen" in line and "cannot be listed" in line for line in lines)


def test_unlistable_pods_and_unreachable_server_are_reported(writer: RunWriter, server: ObjectServer) -> None:
    server.forbidden.add("pods")
    assert ["pods is forbidden" in one for one in unseen(writer)] == [True]
    server.stop()
    assert [one.startswith("the cluster: ") for one in unseen(writer)] == [True]


def test_logs_not_yet_read_by_a_new_supervisor_are_reported(writer: RunWriter) -> None:
    writer.append(entry_of("adopted", {}))
    assert ["may not be read yet" in one for one in unseen(writer)] == [True]
    writer.append(entry_of("phase", {"phase": "checkpointing"}))
    assert unseen(writer) == ()


def test_missing_owner_object_is_not_unseen(writer: RunWriter, server: ObjectServer) -> None:
    server.remove("JobSet", f"{RUN}-1")
    assert unseen(writer) == ()


def test_unreadable_cause_of_waiting_pods_is_reported(writer: RunWriter, server: ObjectServer) -> None:
    server.served |= {"nodepools", "nodeclaims"}
    server.apis["karpenter.sh"] = ["karpenter.sh/v1"]
    server.forbidden.add("nodepools")
    server.pod(RUN, "Pending")
    assert [one.split(": ")[0] for one in unseen(writer)] == ["NodePools cannot be listed"]
