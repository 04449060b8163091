"""A service gets a load balancer for chosen addresses, which ends with the service, also with nobody watching."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines.kubernetes.objectserver import ObjectServer, Request, Response, refusing, sent
from tests.helpers.clock import FakeClock

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects.exposure_manifests import AWS_CLASS, AWS_GROUP
from windlass.engines.kubernetes.running.exposed import conceal, conceal_and_wait, expose
from windlass.errors import EngineError
from windlass.plan.exposure import Exposure

MINE = Exposure(("203.0.113.7/32",))
RUN = "notebook-7f3k2"
NAME = f"{RUN}-public"


@pytest.fixture(autouse=True)
def _aws_controller(server: ObjectServer) -> None:
    def answer(request: Request) -> Response | None:
        if request.plural == "/apis":
            return sent({"groups": [{"versions": [{"groupVersion": AWS_GROUP}]}]})
        return None

    server.fails = answer


def made(server: ObjectServer, plural: str) -> Any:
    return server.objects[plural, NAME]


def test_load_balancer_takes_only_the_named_addresses_and_the_pod_of_the_service(
    server: ObjectServer, client: Client
) -> None:
    expose(client, RUN, MINE, 7200.0)
    spec = made(server, "services")["spec"]
    assert (spec["type"], spec["loadBalancerSourceRanges"]) == ("LoadBalancer", ["203.0.113.7/32"])
    assert spec["loadBalancerClass"] == AWS_CLASS
    assert spec["selector"] == {"windlass.dev/run": RUN, "app.kubernetes.io/component": "training"}
    [ingress] = made(server, "networkpolicies")["spec"]["ingress"]
    assert ingress["from"] == [{"ipBlock": {"cidr": "203.0.113.7/32"}}]
    assert [one["port"] for one in ingress["ports"]] == [spec["ports"][0]["targetPort"]]


def test_job_without_pods_ends_everything_at_the_end_of_the_service(server: ObjectServer, client: Client) -> None:
    expose(client, RUN, MINE, 7200.4)
    job = made(server, "jobs")
    assert (job["spec"]["parallelism"], job["spec"]["activeDeadlineSeconds"]) == (0, 7201)
    assert job["spec"]["ttlSecondsAfterFinished"] == 0
    for plural in ("services", "networkpolicies"):
        [owner] = made(server, plural)["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Job", job["metadata"]["uid"])
    assert conceal(client, RUN)
    assert not conceal(client, RUN)


def test_repeated_call_continues_what_a_killed_one_has_begun(server: ObjectServer, client: Client) -> None:
    expose(client, RUN, MINE, 7200.0)
    server.remove("Service", NAME)
    expose(client, RUN, MINE, 3600.0)
    assert made(server, "jobs")["spec"]["activeDeadlineSeconds"] == 7200
    assert made(server, "services")["spec"]["type"] == "LoadBalancer"


def test_job_that_the_cluster_suspends_is_refused_because_nothing_would_end_the_load_balancer(
    server: ObjectServer, client: Client
) -> None:
    server.put("Job", NAME, spec={"suspend": True})
    with pytest.raises(EngineError, match=f"the cluster suspends Job {NAME}"):
        expose(client, RUN, MINE, 7200.0)
    assert ("services", NAME) not in server.objects
    assert ("jobs", NAME) not in server.objects


def test_user_who_may_create_no_policies_has_runs_without_one(server: ObjectServer, client: Client) -> None:
    server.forbidden = {"networkpolicies"}
    expose(client, RUN, MINE, 7200.0)
    assert made(server, "services")["spec"]["type"] == "LoadBalancer"


def test_removal_takes_until_the_load_balancer_is_gone(server: ObjectServer, client: Client) -> None:
    expose(client, RUN, MINE, 7200.0)
    server.fails, clock = refusing(sent({}), "DELETE"), FakeClock()  # the Job waits for its Service
    clock.at(30, lambda: setattr(server, "fails", lambda _: None))
    assert conceal_and_wait(client, RUN, clock)
    assert ("jobs", NAME) not in server.objects
    assert not conceal_and_wait(client, RUN, clock)


def test_load_balancer_that_stays_is_an_error_with_its_name(server: ObjectServer, client: Client) -> None:
    expose(client, RUN, MINE, 7200.0)
    server.fails = refusing(sent({}), "DELETE")
    with pytest.raises(EngineError, match=f"not removed, and bills until it is: Service {NAME}"):
        conceal_and_wait(client, RUN, FakeClock())
