"""The state of a cluster that another machine created is read."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.clusters.eks.test_outputs import VALUES

from windlass.clusters.eks.outputs import Outputs
from windlass.clusters.find import ManagedCluster
from windlass.clusters.status import status, summary
from windlass.clusters.terraform.state import state_resources
from windlass.clusters.working_folder import take_outputs
from windlass.runs.context import Context
from windlass.spec.parse import parse_cluster


def state(**types: dict[str, Any]) -> list[Any]:
    """Returns a state with one resource of each given type."""
    made = [
        {"mode": "managed", "type": type, "name": "main", "instances": [{"attributes": values}]}
        for type, values in types.items()
    ]
    return state_resources(json.dumps({"version": 4, "resources": made}))


def test_complete_cluster_of_another_machine_is_up(named: ManagedCluster) -> None:
    assert summary(named).state == "unknown", "its state was not read"
    terraform: Any = SimpleNamespace(outputs=lambda: VALUES)
    assert take_outputs(named, terraform) == Outputs.of(VALUES)
    assert (summary(named, 101).state, summary(named, 101).resources) == ("up", 101)
    assert named.kubeconfig.exists()
    terraform.outputs = lambda: {"name": "vision"}
    assert take_outputs(named, terraform) is None, "an up that has not ended"


def test_end_of_support_is_noted_before_an_up_has_finished(named: ManagedCluster, context: Context) -> None:
    old = replace(named, cluster=parse_cluster('name: vision\nregion: us-west-2\nkubernetes: "1.33"\n'))
    [note] = status(old, context, lambda _event: None, with_drift=False).notes
    assert note.startswith("Kubernetes 1.33 left standard support on 2026-07-29")
