"""A Terraform plan that would delete users' files is refused."""

from __future__ import annotations

import pytest

from windlass.clusters.plan import addon_notes, require_kept
from windlass.clusters.terraform import Action, Change, PlanSummary
from windlass.errors import UsageError


def change(kind: str, action: Action) -> Change:
    return Change(f"{kind}.main", kind, action, {}, {}, {})


@pytest.mark.parametrize("action", [Action.DELETE, Action.REPLACE])
def test_plan_that_deletes_user_files_is_refused(action: Action) -> None:
    losing = PlanSummary((change("aws_efs_file_system", action), change("aws_subnet", action)))
    with pytest.raises(UsageError, match=f"the plan would {action} aws_efs_file_system.main, with all its data"):
        require_kept(losing)


def test_plan_that_deletes_a_kms_key_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the plan would delete aws_kms_key\.main"):
        require_kept(PlanSummary((change("aws_kms_key", Action.DELETE),)))


def test_plan_without_data_loss_is_accepted() -> None:
    require_kept(PlanSummary((change("aws_efs_file_system", Action.UPDATE), change("aws_subnet", Action.REPLACE))))


def test_plan_names_the_exact_version_of_each_addon() -> None:
    after = {"addon_name": "coredns", "addon_version": "v1.12.4-eksbuild.1"}
    made = Change('aws_eks_addon.pod["coredns"]', "aws_eks_addon", Action.CREATE, {}, after, {})
    notes = addon_notes([made, change("aws_vpc", Action.CREATE)])
    assert notes == ["EKS add-ons, kept until addons: or kubernetes: changes: coredns v1.12.4-eksbuild.1"]
    assert addon_notes([change("aws_vpc", Action.CREATE)]) == []
