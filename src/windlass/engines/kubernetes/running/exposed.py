"""Exposes a service, such as a notebook, by a load balancer that ends at the service's time limit."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.access.optional import groups_of
from windlass.engines.kubernetes.objects.exposure_manifests import (
    AWS_GROUP,
    exposure_name,
    exposure_owner,
    public_policy,
    public_service,
)
from windlass.engines.kubernetes.objects.manifests import owned
from windlass.errors import EngineError
from windlass.runs.clock import Clock

if TYPE_CHECKING:
    from windlass.engines.kubernetes.access.client import Client
    from windlass.plan.exposure import Exposure

JOB: Final = ("batch/v1", "Job")
LOOK_SECONDS: Final = 2.0
REMOVE_SECONDS: Final = 300.0
"""Seconds that the cluster may take to remove a load balancer."""


def expose(client: Client, run_id: str, exposure: Exposure, seconds: float) -> None:
    """Creates the load balancer of a service.

    `seconds` is the time until the service ends. Repeating the call continues what a killed one has begun. Raises
    EngineError.
    """
    made = exposure_owner(run_id, client.namespace, max(1, math.ceil(seconds)))
    owner = client.create_if_absent(made) or client.get(*JOB, exposure_name(run_id))
    if owner["spec"].get("suspend"):
        # The deadline of a suspended Job does not count, so nothing would end the load balancer.
        conceal(client, run_id)
        raise EngineError(
            f"the cluster suspends Job {exposure_name(run_id)}, which would end the load balancer",
            "ask its administrator to let Kueue manage only jobs with a queue",
        )
    has_controller = AWS_GROUP in groups_of(client.call("GET", "/apis"))
    policy = owned(public_policy(run_id, client.namespace, exposure), owner, is_first=True)
    try:
        client.create_if_absent(policy)
    except Refused as error:
        if error.status != HTTPStatus.FORBIDDEN:  # without that right, the run's pods have no policy either
            raise
    service = public_service(run_id, client.namespace, exposure, has_aws_controller=has_controller)
    client.create_if_absent(owned(service, owner, is_first=True))


def conceal(client: Client, run_id: str) -> bool:
    """Requests the removal of a service's load balancer; returns whether there is one. Raises EngineError."""
    return client.delete(*JOB, exposure_name(run_id), is_owned_first=True)


def conceal_and_wait(client: Client, run_id: str, clock: Clock | None = None) -> bool:
    """Removes the load balancer of a service and waits until it is gone; returns whether there was one. Raises
    EngineError, also if it is still there after REMOVE_SECONDS.
    """
    clock, was_there = clock or Clock(), False
    give_up = clock.monotonic() + REMOVE_SECONDS
    while conceal(client, run_id):  # The Job is the last of the objects that goes.
        was_there = True
        if clock.monotonic() > give_up:
            raise EngineError(
                f"the load balancer of {run_id} is not removed, and bills until it is: Service {exposure_name(run_id)}",
                f"see: {client.kubectl} -n {client.namespace} describe service {exposure_name(run_id)}",
            )
        clock.wait(LOOK_SECONDS)
    return was_there
