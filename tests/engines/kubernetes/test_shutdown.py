"""In which order the objects of a run are deleted."""

from __future__ import annotations

from typing import Any, cast

from windlass.engines.kubernetes.api.client import Client
from windlass.engines.kubernetes.workloads import shutdown

RUNTIME = {"metadata": {"name": "r-1"}}
JOBSET, POD = {"metadata": {"name": "r-1"}}, {"metadata": {"name": "r-1-n-0-x"}, "status": {"phase": "Running"}}


class Asked:
    """A client that notes what is deleted."""

    def __init__(self, **found: list[dict[str, Any]]) -> None:
        self._found = {"JobSet": [JOBSET], "Pod": [POD], **found}
        self.deleted: list[tuple[str, str, bool]] = []

    def find(self, _api: str, kind: str, _selector: str) -> dict[str, Any]:
        return {"items": self._found.get(kind, [])}

    def delete(self, _api: str, kind: str, name: str, *, is_owned_first: bool = False) -> bool:
        self.deleted.append((kind, name, is_owned_first))
        return True


def test_a_run_is_removed_pods_first_and_its_anchor_once_no_job_can_lose_its_pods() -> None:
    asked = Asked()
    shutdown.remove(cast("Client", asked), "r")
    assert asked.deleted == [("JobSet", "r-1", True), ("ConfigMap", "r", False), ("Pod", "r-1-n-0-x", False)]


def test_a_runtime_is_deleted_with_its_trainjob_and_kept_where_a_run_is_stopped() -> None:
    found = {"TrainingRuntime": [RUNTIME], "TrainJob": [RUNTIME], "Pod": []}
    removed, stopped = Asked(**found), Asked(**found)
    shutdown.remove(cast("Client", removed), "r")
    kinds = [("TrainingRuntime", True), ("TrainJob", True), ("JobSet", True), ("ConfigMap", False)]
    assert [(kind, is_first) for kind, _, is_first in removed.deleted] == kinds
    shutdown.delete_makers(cast("Client", stopped), "r")
    assert [(kind, is_first) for kind, _, is_first in stopped.deleted] == [("TrainJob", False), ("JobSet", False)]
