"""A killed command is recovered; wrong credentials and a state without the existing cluster are refused."""

from __future__ import annotations

import contextlib
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.clusters.eks.test_outputs import VALUES

from windlass.clusters.aws import Aws, Identity, NotThere
from windlass.clusters.down import down
from windlass.clusters.find import OUTPUTS, ManagedCluster
from windlass.clusters.reconcile import (
    CLUSTER,
    recover,
    recovery_lines,
    recovery_warnings,
    require_account,
    require_known,
)
from windlass.clusters.recovery import Duplicate, Foreign, Imported, Orphan, RecoveryReport
from windlass.clusters.status import status
from windlass.clusters.storage.bucket import Bucket
from windlass.clusters.terraform.folder import ClusterFolder
from windlass.clusters.terraform.state import state_resources
from windlass.clusters.up import plan_up
from windlass.errors import UsageError
from windlass.runs.context import Context
from windlass.spec.parse import parse_cluster

TEXT = "name: vision\nregion: us-west-2\n"
NAMED = ManagedCluster(parse_cluster(TEXT), TEXT, ClusterFolder.of(Path("/nowhere"), "vision"))


def clusters(*names: str) -> Aws:
    """Returns an account with these clusters."""

    def describe_cluster(name: str) -> None:
        if name not in names:
            raise NotThere(f"no cluster {name}")

    eks = SimpleNamespace(describe_cluster=describe_cluster)
    made: Any = SimpleNamespace(client=lambda _name: eks)
    return cast("Aws", made)


def test_existing_cluster_missing_in_the_state_is_not_created_again() -> None:
    with pytest.raises(
        UsageError, match="a cluster vision is in us-west-2 already, but the Terraform state"
    ) as refused:
        require_known(NAMED, (), clusters("vision"))
    assert "--recover" in (refused.value.hint or "")
    require_known(NAMED, (CLUSTER,), clusters("vision"))
    require_known(NAMED, (), clusters("vision-2"))


class Asked(Exception):
    """Raised when AWS would be queried."""


@pytest.mark.parametrize("break_lock", [False, True])
def test_lock_of_another_machine_is_released_on_request(tmp_path: Path, *, break_lock: bool) -> None:
    def aws(_context: Context) -> Aws:
        raise Asked

    scene: Any = SimpleNamespace(folder=ClusterFolder.of(tmp_path, "vision"), aws=aws)
    with pytest.raises(Asked) if break_lock else contextlib.nullcontext():
        recover(
            scene, scene, Context({}, tmp_path), lambda _event: None, bucket=None, break_lock=break_lock, is_asked=False
        )


def test_recovery_reports_what_the_user_must_check() -> None:
    report = RecoveryReport(
        imported=(Imported("aws_vpc.main", "vpc-1"),),
        untainted=("aws_eks_cluster.main",),
        duplicates=(Duplicate("aws_nat_gateway", "vision-a", ("nat-1", "nat-2"), "nat-1"),),
        orphans=(Orphan("aws_ebs_volume", "vol-1", "data"),),
        foreign=(Foreign("aws_iam_role.run", "vision-run"),),
        unknown=("aws_cloudcontrolapi_resource.s3_files",),
    )
    assert recovery_lines(report) == [
        "imported: aws_vpc.main (vpc-1)",
        "complete, and no longer tainted: aws_eks_cluster.main",
    ]
    assert recovery_warnings(report) == [
        "duplicate: aws_nat_gateway vision-a: nat-2 is in no state and bills",
        "of this cluster but in no state: aws_ebs_volume data (vol-1)",
        "has the name of aws_iam_role.run but does not belong to this cluster: vision-run",
        "not searched for: aws_cloudcontrolapi_resource.s3_files",
    ]
    assert recovery_lines(RecoveryReport()) == recovery_warnings(RecoveryReport()) == []


def state(**types: dict[str, Any]) -> list[Any]:
    """Returns a state with one resource of each given type."""
    made = [
        {"mode": "managed", "type": type, "name": "main", "instances": [{"attributes": values}]}
        for type, values in types.items()
    ]
    return state_resources(json.dumps({"version": 4, "resources": made}))


REMAINS = {"aws_eks_cluster": {"id": "vision", "arn": "arn:aws:eks:us-west-2:123456789012:cluster/vision"}}


def eks(url: str) -> dict[str, Any]:
    return {"id": "vision", "endpoint": url, "certificate_authority": [{"data": "Q0E="}]}


@pytest.mark.parametrize("backend", ["", "state: {bucket: states}\n"])
@pytest.mark.parametrize("types", [REMAINS, {}], ids=["state", "state emptied by a down that left resources"])
def test_credentials_of_another_account_can_neither_plan_nor_remove(
    named: ManagedCluster, context: Context, monkeypatch: pytest.MonkeyPatch, backend: str, types: dict[str, Any]
) -> None:
    """No resource would be found there: `up` would create everything again, `down` would report a clean removal."""
    text = f"name: vision\nregion: us-west-2\n{backend}"
    named = replace(named, cluster=parse_cluster(text), text=text)
    made = state(**types, aws_s3_bucket={"id": "b", "arn": "arn:aws:s3:::b"})
    if not types:
        (named.folder.path / OUTPUTS).write_text(json.dumps(VALUES))
    terraform: Any = SimpleNamespace(state=lambda: made, init=lambda: None)
    aws: Any = SimpleNamespace(identity=Identity("222222222222", ""))
    monkeypatch.setattr(ManagedCluster, "aws", lambda *_: nullcontext(aws))
    monkeypatch.setattr(ManagedCluster, "terraform", lambda *_: terraform)
    monkeypatch.setattr("windlass.clusters.storage.bucket.find_bucket", lambda *_, **_more: Bucket("b", exists=False))
    said = "vision is in account 123456789012, but the credentials are of account 222222222222"
    for command in (
        lambda: plan_up(named, terraform, context, lambda _event: None),
        lambda: down(named, context, lambda _event: None, lambda *_: True, cast("Any", None), force=True),
        lambda: status(named, context, lambda _event: None),
    ):
        with pytest.raises(UsageError, match=said):
            command()
    aws.identity = Identity("123456789012", "")
    require_account(named, terraform, context)


def test_state_of_another_region_is_refused_on_a_machine_without_the_folder(
    named: ManagedCluster, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terraform would find nothing in the region of the file, and drop the cluster from the shared state."""
    text = "name: vision\nregion: eu-west-1\nstate: {bucket: states, region: us-east-1}\n"
    named = replace(named, cluster=parse_cluster(text), text=text)
    made = state(
        aws_eks_cluster={"id": "vision", "arn": "arn:aws:eks:us-west-2:111111111111:cluster/vision"},
        aws_iam_role={"id": "vision-run", "arn": "arn:aws:iam::111111111111:role/vision-run"},
        aws_s3_bucket={"id": "b", "arn": "arn:aws:s3:::b"},
    )
    terraform: Any = SimpleNamespace(state=lambda: made)
    aws: Any = SimpleNamespace(identity=Identity("111111111111", ""))
    monkeypatch.setattr(ManagedCluster, "aws", lambda *_: nullcontext(aws))
    with pytest.raises(UsageError, match="vision was made in us-west-2, and its file says eu-west-1"):
        require_account(named, terraform, context)
    made = made[1:]  # only resources without a region are left
    require_account(named, terraform, context)
