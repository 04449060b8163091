"""`cluster down` handles a bucket whose owner AWS does not report, and ends when it is interrupted."""

from __future__ import annotations

import json
import signal
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.clusters.components.fakecluster import FakeCluster
from tests.clusters.storage.test_fsx_export import SYSTEM, Fsx
from tests.clusters.test_drain import deleted, service, volume
from tests.helpers.clock import FakeClock

from windlass.clusters.aws import AwsError
from windlass.clusters.down import down
from windlass.clusters.drain import drain
from windlass.clusters.find import ManagedCluster
from windlass.clusters.plan import ClusterPlan
from windlass.clusters.storage.bucket import Bucket
from windlass.clusters.terraform import Interrupted, Plan, PlanSummary, StopRequests
from windlass.clusters.terraform.state import state_resources
from windlass.clusters.working_folder import write_folder
from windlass.runs.context import Context


def test_bucket_with_unknown_owner_is_not_deleted(
    named: ManagedCluster, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **_more: Any) -> Bucket:
        raise AwsError("its tags cannot be read")

    class Prepared(Exception):
        """Raised when Terraform would be prepared."""

    def prepared(*_: Any) -> None:
        raise Prepared

    write_folder(named, context, bucket=Bucket("b", exists=True, owner="vision"))
    monkeypatch.setattr(ManagedCluster, "aws", lambda *_: nullcontext())
    monkeypatch.setattr(ManagedCluster, "terraform", prepared)
    monkeypatch.setattr("windlass.clusters.storage.bucket.find_bucket", refuse)
    for is_to_delete, error in ((True, AwsError), (False, Prepared)):
        with pytest.raises(error):
            down(named, context, lambda _event: None, lambda *_: True, cast("Any", None), delete_bucket=is_to_delete)


class InterruptedFsx(Fsx):
    """FSx whose export task is under way when the user presses Ctrl-C."""

    def describe_data_repository_tasks(self, TaskIds: tuple[str, ...] = (), **_: Any) -> Any:  # noqa: N803
        if TaskIds:
            signal.raise_signal(signal.SIGINT)
        return {"DataRepositoryTasks": []}


def substitute(monkeypatch: pytest.MonkeyPatch, fsx: Fsx, bucket: Bucket) -> None:
    """Makes AWS this FSx and this bucket, and Terraform a state with the file system, which must not be destroyed."""
    system: dict[str, Any] = {"mode": "managed", "type": "aws_fsx_lustre_file_system", "name": "main"}
    system["instances"] = [{"attributes": {"id": SYSTEM}}]
    state = state_resources(json.dumps({"version": 4, "resources": [system]}))
    plan = Plan(Path("x"), PlanSummary(()), True, "")
    terraform: Any = SimpleNamespace(init=lambda: None, state=lambda: state, plan=lambda **_: plan, apply=pytest.fail)
    monkeypatch.setattr(ManagedCluster, "aws", lambda *_: nullcontext(fsx.aws()))
    monkeypatch.setattr(ManagedCluster, "terraform", lambda *_: terraform)
    monkeypatch.setattr("windlass.clusters.storage.bucket.find_bucket", lambda *_, **_more: bucket)


@pytest.mark.parametrize("is_asked", [True, False])
def test_ctrl_c_at_the_question_or_during_the_export_removes_nothing(
    named: ManagedCluster, context: Context, monkeypatch: pytest.MonkeyPatch, *, is_asked: bool
) -> None:
    """The export of a large file system takes hours, after which the drain would delete volumes."""
    fsx = InterruptedFsx("/")
    substitute(monkeypatch, fsx, Bucket("b", exists=False))

    def confirm(*_: Any) -> bool:
        if is_asked:
            signal.raise_signal(signal.SIGINT)
        return True

    with StopRequests() as stop, pytest.raises(Interrupted, match="nothing was removed"):
        down(named, context, lambda _event: None, confirm, stop, force=True)
    assert len(fsx.tasks) == (0 if is_asked else 1)


@pytest.mark.parametrize("is_to_delete", [True, False])
def test_question_names_the_bucket_that_is_deleted(
    named: ManagedCluster, context: Context, monkeypatch: pytest.MonkeyPatch, *, is_to_delete: bool
) -> None:
    substitute(monkeypatch, Fsx("/"), Bucket("b", exists=True, owner="vision", key_arn="arn:x"))
    notes: list[str] = []

    def confirm(plan: ClusterPlan, _usage: Any) -> bool:
        notes.extend(plan.notes)
        return False

    with StopRequests() as stop:
        assert down(named, context, lambda _e: None, confirm, stop, force=True, delete_bucket=is_to_delete) is None
    assert notes == (["s3://b is deleted with all its objects"] if is_to_delete else [])


def test_ctrl_c_during_the_drain_deletes_no_further_objects(tmp_path: Path) -> None:
    with closing(FakeCluster()) as cluster:
        service(cluster)
        volume(cluster, "data")

        def press(step: Any) -> None:
            if step.what == "wait":
                signal.raise_signal(signal.SIGINT)

        with StopRequests() as stop, pytest.raises(Interrupted), stop.interruptible("stopped while draining"):
            drain(cluster.client(tmp_path), press, clock=FakeClock())
        assert deleted(cluster) == ["web"]
