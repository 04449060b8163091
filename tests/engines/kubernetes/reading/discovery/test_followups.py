"""Further requests complete runs of other machines that the lists of owner ConfigMaps, Jobs and pods leave unclear."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer
from tests.helpers.until import until

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.reading.discovery.discovery import look, one
from windlass.engines.kubernetes.reading.discovery.followups import ask
from windlass.engines.kubernetes.reading.discovery.phase import ENDED_SOMEHOW
from windlass.engines.kubernetes.reading.informer import Watched
from windlass.engines.kubernetes.running import markers
from windlass.runs.phase import Phase
from windlass.runs.record import Status

RUN = "digits-7f3k2"


@pytest.fixture
def server(server: ObjectServer) -> ObjectServer:
    server.owner_config_map(RUN)
    return server


def operated(server: ObjectServer, kind: str, **spec: Any) -> None:
    """Adds an owner object of a kind whose controller creates pods without Jobs."""
    api = {"MPIJob": "kubeflow.org/v2beta1", "PyTorchJob": "kubeflow.org/v1"}[kind]
    server.served.add(f"{kind.lower()}s")
    labels = {layout.MANAGED_LABEL: "windlass", layout.RUN_LABEL: RUN, layout.ATTEMPT_LABEL: "1"}
    server.put(kind, f"{RUN}-1", labels, api=api, spec=spec, status={})


REPLICAS = {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 2}}}


@pytest.mark.parametrize(
    ("kind", "spec", "pods"),
    [
        ("PyTorchJob", {"runPolicy": {"suspend": True}, **REPLICAS}, 3),
        ("MPIJob", {"runPolicy": {"suspend": True}, "mpiReplicaSpecs": {"Worker": {"replicas": 2}}}, 2),
    ],
)
def test_suspended_owner_object_of_an_operator_is_queued(
    server: ObjectServer, client: Client, kind: str, spec: dict[str, Any], pods: int
) -> None:
    operated(server, kind, **spec)
    seen = one(client, RUN)
    assert (seen.phase, seen.waits_for, seen.pods_total, seen.attempt) == (Phase.QUEUED, "Suspended", pods, 1)


def test_owner_object_of_an_operator_without_pods_is_queued(server: ObjectServer, client: Client) -> None:
    operated(server, "PyTorchJob", **REPLICAS)
    assert one(client, RUN).phase is Phase.QUEUED


def test_lost_run_names_owner_kinds_that_may_not_be_listed(server: ObjectServer, client: Client) -> None:
    assert one(client, RUN).waits_for == "its pods and their owner objects were deleted"
    server.served.add("mpijobs")
    server.forbidden.add("mpijobs")
    lost = one(client, RUN)
    assert (lost.phase, "MPIJobs, which may not be listed" in lost.waits_for) == (Phase.LOST, True)


@pytest.mark.parametrize(("how", "phase"), [("well", Phase.SUCCEEDED), ("badly", Phase.FAILED)])
def test_end_marker_shows_result_after_job_was_deleted(
    server: ObjectServer, client: Client, how: str, phase: Phase
) -> None:
    server.marker(RUN, "end", {layout.HOW_LABEL: how})
    seen = one(client, RUN)
    assert (seen.phase, seen.waits_for) == (phase, "")


def test_end_marker_without_result_is_no_success(server: ObjectServer, client: Client) -> None:
    server.marker(RUN, "end")
    seen = one(client, RUN)
    assert (seen.phase, seen.waits_for) == (Phase.LOST, ENDED_SOMEHOW)


def test_run_with_end_marker_and_stop_request_is_stopped(server: ObjectServer, client: Client) -> None:
    server.marker(RUN, "end", {layout.HOW_LABEL: "badly"})
    server.marker(RUN, "stop")
    assert one(client, RUN).phase is Phase.STOPPED


@pytest.mark.parametrize(
    ("reason", "message", "named"),
    [
        ("Nominated", "Pod should schedule on: nodeclaim/default-x7k2p", "default-x7k2p"),
        ("TriggeredScaleUp", "pod triggered scale-up: [{gpu-group 0->1 (max: 4)}]", "gpu-group 0->1"),
    ],
)
def test_pod_with_node_being_provisioned_makes_run_provisioning(
    server: ObjectServer, client: Client, reason: str, message: str, named: str
) -> None:
    server.job(RUN, "Running")
    pod = server.pod(RUN, "Pending")
    assert one(client, RUN).phase is Phase.QUEUED
    server.event("another", reason, message)
    assert one(client, RUN).phase is Phase.QUEUED, "it is of another pod"
    server.event(pod, reason, message)
    seen = one(client, RUN)
    assert (seen.phase, seen.waits_for) == (Phase.PROVISIONING, f"node provisioning: {named}")
    server.forbidden.add("events")
    assert one(client, RUN).phase is Phase.QUEUED


def test_list_of_training_runs_needs_no_further_request(server: ObjectServer, client: Client) -> None:
    server.job(RUN, "Running")
    server.pod(RUN, "Running")
    look(client)
    assert len(server.requests) == 3


def test_end_marker_has_result_as_label(server: ObjectServer, client: Client) -> None:
    markers.put_end(client, RUN, stopped=False, well=True)
    server.requests.clear()
    assert one(client, RUN).phase is Phase.SUCCEEDED
    assert len(server.requests) == 3, "the lists of runs have it"


class Curious(Watched):
    """Informer that makes further requests without delay."""

    more_seconds = 0.05


def test_informer_requests_what_its_watches_do_not_show(server: ObjectServer, client: Client) -> None:
    with closing(Curious(client)) as watching:

        def seen() -> Status:
            [found] = watching.runs()
            return found.status

        assert seen().phase is Phase.LOST
        operated(server, "PyTorchJob", runPolicy={"suspend": True}, **REPLICAS)
        until(lambda: seen().phase is Phase.QUEUED)
        server.job(RUN, "Running")
        pod = server.pod(RUN, "Pending")
        server.event(pod, "Nominated", "Pod should schedule on: nodeclaim/default-x7k2p")
        until(lambda: seen().phase is Phase.PROVISIONING)
        server.pod(RUN, "Running")
        until(lambda: seen().phase is Phase.TRAINING)


def test_informer_makes_no_further_request_without_need(server: ObjectServer, client: Client) -> None:
    assert ask(client, "", (), ()).coming == {}
    assert server.requests == []
