"""Karpenter provisions nodes when a job needs them; they train like other nodes and are deleted after it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster import operated
from tests.cluster.bed.cluster import Bed
from tests.cluster.bed.host import wait_for
from tests.cluster.bed.machines import NEVER_READY

pytestmark = [pytest.mark.operators, pytest.mark.timeout(900)]


POOL = "gpus"


def nodes(bed: Bed) -> list[dict[str, Any]]:
    """Returns the nodes that Karpenter has provisioned."""
    found: list[dict[str, Any]] = bed.api.get(f"/api/v1/nodes?labelSelector=karpenter.sh/nodepool={POOL}")["items"]
    return found


def events(bed: Bed) -> list[str]:
    """Returns the events of nodes and NodeClaims."""
    return [str(each.get("message")) for each in bed.api.get("/api/v1/namespaces/default/events")["items"]]


def test_nodes_are_provisioned_for_a_job_and_deleted_after_it(scaled: Bed, lone_namespace: str) -> None:
    with operated.pooled(scaled, POOL, "g5.12xlarge", "p4d.24xlarge"):
        scaled.apply(*operated.hungry(scaled, lone_namespace, 4), namespace=lone_namespace)
        made = wait_for(lambda: nodes(scaled), "a node", 240)
        # The cheapest instance type with the GPUs is chosen; spot is cheaper than on-demand.
        labels = made[0]["metadata"]["labels"]
        assert labels["node.kubernetes.io/instance-type"] == "g5.12xlarge"
        assert labels["karpenter.sh/capacity-type"] == "spot"
        scaled.kubectl("wait", "-n", lone_namespace, "--for=condition=complete", "job/digits", "--timeout=240s")
        wait_for(lambda: not nodes(scaled), "the nodes to go", 240)


def test_sold_out_instance_type_is_not_provisioned(scaled: Bed, lone_namespace: str) -> None:
    scaled.sell_out("p4d.24xlarge")
    try:
        with operated.pooled(scaled, POOL, "p4d.24xlarge"):
            scaled.apply(*operated.hungry(scaled, lone_namespace, 8), namespace=lone_namespace)
            wait_for(lambda: any("no capacity is left" in said for said in events(scaled)), "a refusal", 240)
            assert not nodes(scaled)
            scaled.sell_out()
            wait_for(lambda: nodes(scaled), "a node after all", 240)
    finally:
        scaled.sell_out()


def test_node_that_never_gets_ready_is_not_initialized(scaled: Bed, lone_namespace: str) -> None:
    with operated.pooled(scaled, POOL, "g5.12xlarge", labels={NEVER_READY: "true"}):
        scaled.apply(*operated.hungry(scaled, lone_namespace, 4), namespace=lone_namespace)
        claim = wait_for(lambda: _registered(scaled), "a node", 240)
        assert _condition(claim, "Initialized") != "True"
        assert {_condition(node, "Ready") for node in nodes(scaled)} <= {None, "Unknown", "False"}


def _registered(bed: Bed) -> dict[str, Any] | None:
    """Returns a NodeClaim whose node has registered."""
    claims = bed.api.get("/apis/karpenter.sh/v1/nodeclaims")["items"]
    return next((each for each in claims if _condition(each, "Registered") == "True"), None)


def _condition(each: dict[str, Any], kind: str) -> str | None:
    return next((it["status"] for it in each.get("status", {}).get("conditions", ()) if it["type"] == kind), None)
