"""What `cluster down` refuses, and what a recovery tells."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from windlass.clusters.aws import Aws, NotThere
from windlass.clusters.eks.contents import Contents
from windlass.clusters.find import Named
from windlass.clusters.plan import require_kept
from windlass.clusters.reconcile import CLUSTER, recover, recovery_lines, require_known
from windlass.clusters.recovery import Duplicate, Foreign, Imported, Orphan, RecoveryReport
from windlass.clusters.removal_checks import require_exported, require_idle
from windlass.clusters.terraform import Action, Change, PlanSummary
from windlass.clusters.terraform.folder import ClusterFolder
from windlass.clusters.up import require_programs
from windlass.errors import MissingPart, UsageError
from windlass.runs.context import Context
from windlass.spec.parse import parse_cluster

TEXT = "name: vision\nregion: us-west-2\n"
NAMED = Named(parse_cluster(TEXT), TEXT, ClusterFolder.of(Path("/nowhere"), "vision"))
WITH_EFS = Contents(has_cluster=True, efs_ids=("fs-1",))


def account(size_bytes: int) -> Aws:
    """An account whose file system has so much in it."""
    efs = SimpleNamespace(
        describe_file_systems=lambda FileSystemId: {"FileSystems": [{"SizeInBytes": {"Value": size_bytes}}]}  # noqa: N803
    )
    made: Any = SimpleNamespace(client=lambda _name: efs)
    return cast("Aws", made)


def test_active_runs_are_named() -> None:
    runs = tuple(f"digits-{at} is training" for at in range(7))
    with pytest.raises(UsageError, match=r"7 runs use vision: digits-0 is training; .*; and 2 more"):
        require_idle(NAMED, runs)


def test_a_cluster_that_does_not_answer_is_not_taken_for_idle() -> None:
    with pytest.raises(
        UsageError, match=r"was not looked at \(its API server .* refused\): whether runs use it"
    ) as refused:
        require_idle(NAMED, (), "its API server does not answer: refused")
    assert "--force" in (refused.value.hint or "")


def test_an_idle_cluster_may_go() -> None:
    require_idle(NAMED, ())


def test_files_of_users_in_efs_are_not_deleted_unasked() -> None:
    with pytest.raises(UsageError, match=r"fs-1 has 12,000\.0 MB, which go with it"):
        require_exported(WITH_EFS, account(12_000_000_000))


@pytest.mark.parametrize("found", [Contents(), Contents(has_cluster=True), WITH_EFS])
def test_an_empty_file_system_or_none_is_no_reason(found: Contents) -> None:
    require_exported(found, account(6144))


def clusters(*names: str) -> Aws:
    """An account with these clusters."""

    def describe_cluster(name: str) -> None:
        if name not in names:
            raise NotThere(f"no cluster {name}")

    eks = SimpleNamespace(describe_cluster=describe_cluster)
    made: Any = SimpleNamespace(client=lambda _name: eks)
    return cast("Aws", made)


def test_a_cluster_that_the_state_lacks_is_not_made_a_second_time() -> None:
    with pytest.raises(UsageError, match="a cluster vision is in us-west-2 already, and the state") as refused:
        require_known(NAMED, (), clusters("vision"))
    assert "--recover" in (refused.value.hint or "")
    require_known(NAMED, (CLUSTER,), clusters("vision"))
    require_known(NAMED, (), clusters("vision-2"))


class Asked(Exception):
    """AWS is looked at."""


@pytest.mark.parametrize("break_lock", [False, True])
def test_a_lock_that_another_machine_left_is_released_where_that_is_asked_for(
    tmp_path: Path, *, break_lock: bool
) -> None:
    def aws(_context: Context) -> Aws:
        raise Asked

    scene: Any = SimpleNamespace(folder=ClusterFolder.of(tmp_path, "vision"), aws=aws)
    with pytest.raises(Asked) if break_lock else contextlib.nullcontext():
        recover(
            scene, scene, Context({}, tmp_path), lambda _event: None, bucket=None, break_lock=break_lock, is_asked=False
        )


def test_programs_that_operators_need_are_missed_before_anything_is_made(tmp_path: Path) -> None:
    context = Context({"PATH": str(tmp_path)}, tmp_path)
    for program in ("helm", "aws"):
        with pytest.raises(MissingPart, match=f"{program} is not installed"):
            require_programs(context)
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    require_programs(context)


def test_a_recovery_tells_what_a_person_has_to_look_at() -> None:
    report = RecoveryReport(
        imported=(Imported("aws_vpc.main", "vpc-1"),),
        untainted=("aws_eks_cluster.main",),
        duplicates=(Duplicate("aws_nat_gateway", "vision-a", ("nat-1", "nat-2"), "nat-1"),),
        orphans=(Orphan("aws_ebs_volume", "vol-1", "data"),),
        foreign=(Foreign("aws_iam_role.run", "vision-run"),),
        unknown=("aws_cloudcontrolapi_resource.s3_files",),
    )
    assert recovery_lines(report) == [
        "found again: aws_vpc.main (vpc-1)",
        "complete, and kept: aws_eks_cluster.main",
        "made twice: aws_nat_gateway vision-a: nat-2 is in no state, and bills",
        "of this cluster, and in no state: aws_ebs_volume data (vol-1)",
        "has the name of aws_iam_role.run, and is not of this cluster: vision-run",
        "not looked for: aws_cloudcontrolapi_resource.s3_files",
    ]
    assert recovery_lines(RecoveryReport()) == []


def change(kind: str, action: Action) -> Change:
    return Change(f"{kind}.main", kind, action, {}, {}, {})


@pytest.mark.parametrize("action", [Action.DELETE, Action.REPLACE])
def test_a_plan_that_loses_files_of_users_is_refused(action: Action) -> None:
    losing = PlanSummary((change("aws_efs_file_system", action), change("aws_subnet", action)))
    with pytest.raises(UsageError, match=f"the plan would {action} aws_efs_file_system.main, with all that is in it"):
        require_kept(losing)


def test_a_plan_that_deletes_a_key_loses_what_it_encrypts() -> None:
    with pytest.raises(UsageError, match=r"the plan would delete aws_kms_key\.main"):
        require_kept(PlanSummary((change("aws_kms_key", Action.DELETE),)))


def test_a_plan_that_changes_the_rest_is_no_loss() -> None:
    require_kept(PlanSummary((change("aws_efs_file_system", Action.UPDATE), change("aws_subnet", Action.REPLACE))))
