"""The objects of a run are deleted in a fixed order."""

from __future__ import annotations

from typing import Any, cast

import pytest

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Unreachable
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.running import shutdown
from windlass.errors import EngineError

RUNTIME = {"metadata": {"name": "r-1"}}
JOBSET, POD = {"metadata": {"name": "r-1"}}, {"metadata": {"name": "r-1-n-0-x"}, "status": {"phase": "Running"}}


class RecordingClient:
    """Client that records deletions."""

    def __init__(self, **found: list[dict[str, Any]]) -> None:
        self._found = {"JobSet": [JOBSET], "Pod": [POD], **found}
        self.deleted: list[tuple[str, str, bool]] = []

    def find(self, _api: str, kind: str, _selector: str) -> dict[str, Any]:
        return {"items": self._found.get(kind, [])}

    def delete(self, _api: str, kind: str, name: str, *, is_owned_first: bool = False) -> bool:
        self.deleted.append((kind, name, is_owned_first))
        return True


def test_removal_deletes_pods_first_and_owner_config_map_last() -> None:
    client = RecordingClient()
    shutdown.remove(cast("Client", client), "r")
    load_balancer = ("Job", "r-public", True)
    owner = ("ConfigMap", "r", False)
    assert client.deleted == [("JobSet", "r-1", True), load_balancer, owner, ("Pod", "r-1-n-0-x", False)]


def test_runtime_is_deleted_with_its_trainjob_and_kept_by_a_stop() -> None:
    found = {"TrainingRuntime": [RUNTIME], "TrainJob": [RUNTIME], "Pod": []}
    removed, stopped = RecordingClient(**found), RecordingClient(**found)
    shutdown.remove(cast("Client", removed), "r")
    kinds = [("TrainingRuntime", True), ("TrainJob", True), ("JobSet", True), ("Job", True), ("ConfigMap", False)]
    assert [(kind, is_first) for kind, _, is_first in removed.deleted] == kinds
    shutdown.delete_owner_objects(cast("Client", stopped), "r")
    assert [(kind, is_first) for kind, _, is_first in stopped.deleted] == [("TrainJob", False), ("JobSet", False)]


def beside(name: str, ours: str, other: str | None = "running") -> dict[str, Any]:
    """Returns a pod with a sidecar, in these states of both containers."""
    states = {"node": ours, **({"istio-proxy": other} if other else {})}
    return {
        "metadata": {"name": name, "annotations": {layout.CONTAINER_ANNOTATION: "node"}},
        "spec": {"containers": [{"name": one} for one in states]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": one, "state": {state: {}}} for one, state in states.items()],
        },
    }


def test_pods_that_a_sidecar_keeps_running_are_deleted_once_the_ranks_have_ended() -> None:
    pods = [beside("r-1-0", "terminated"), beside("r-1-1", "terminated", "terminated")]
    client = RecordingClient(Job=[{"metadata": {"name": "r-1"}}], JobSet=[], Pod=pods)
    noted: list[str] = []
    shutdown.delete_pods_with_sidecars(cast("Client", client), "r", noted.extend)
    assert noted == ["istio-proxy"]
    assert [(kind, name) for kind, name, _ in client.deleted] == [("Job", "r-1"), ("Pod", "r-1-0")]


def test_pods_without_a_sidecar_are_kept_with_their_logs() -> None:
    client = RecordingClient(Pod=[beside("r-1-0", "terminated", None), beside("r-1-1", "running", None)])
    shutdown.delete_pods_with_sidecars(cast("Client", client), "r", lambda names: pytest.fail(f"noted {names}"))
    assert client.deleted == []


def test_sidecars_are_noted_before_a_deletion_whose_answer_may_be_lost() -> None:
    class Dropping(RecordingClient):
        def delete(self, *_args: Any, **_options: Any) -> Any:
            raise Unreachable("the connection broke")

    noted: list[str] = []
    client = Dropping(Job=[{"metadata": {"name": "r-1"}}], JobSet=[], Pod=[beside("r-1-0", "terminated")])
    with pytest.raises(Unreachable):
        shutdown.delete_pods_with_sidecars(cast("Client", client), "r", noted.extend)
    assert noted == ["istio-proxy"]


def test_ranks_that_still_run_beside_a_sidecar_are_waited_for() -> None:
    client = RecordingClient(Pod=[beside("r-1-0", "terminated"), beside("r-1-1", "running")])
    with pytest.raises(EngineError, match="r-1-1 have not ended yet"):
        shutdown.delete_pods_with_sidecars(cast("Client", client), "r", lambda names: pytest.fail(f"noted {names}"))
    assert client.deleted == []
