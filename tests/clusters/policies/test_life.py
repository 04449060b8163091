"""The printed policies allow exactly the calls of a cluster's whole life cycle (emulated)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.clusters.policies.clusters import ACCOUNT, cluster
from tests.clusters.policies.life import FILE, life, recorded
from tests.clusters.policies.limited import LimitedUser, emulated_environ
from tests.clusters.policies.unseen import UNSEEN
from tests.fakeaws.emulator import emulated_aws
from tests.fakeaws.emulator.fixtures import terraform  # noqa: F401

from windlass.clusters.policies import ArnScope, Purpose, Statement, statements
from windlass.clusters.policies.runs import of_pods


def allowed(purpose: Purpose) -> set[str]:
    return {action for one in statements(cluster(), ACCOUNT, purpose) for action in one.actions}


def seen() -> set[str]:
    """Returns the actions called by `up`, `status`, a change, a recovery and `down`, without the audit."""
    found = recorded()
    return set().union(*(found[phase] for phase in ("up", "status", "change", "recover"))) | (
        found["down"] - found["audit"]
    )


def test_unused_policy_actions_have_a_reason() -> None:
    assert allowed(Purpose.UP) - seen() - set(UNSEEN) == set()
    assert all(UNSEEN.values())


def test_reasons_exist_only_for_allowed_and_unused_actions() -> None:
    assert set(UNSEEN) & seen() == set()
    assert set(UNSEEN) - allowed(Purpose.UP) == set()


def test_all_recorded_calls_are_allowed() -> None:
    found = recorded()
    assert seen() - allowed(Purpose.UP) == set()
    assert found["down"] - allowed(Purpose.UP) - allowed(Purpose.AUDIT) == set()
    assert found["audit"] - allowed(Purpose.AUDIT) == set()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_policies_suffice_for_the_life_cycle_of_a_cluster_emulated(
    tmp_path: Path,
    terraform: dict[str, str],  # noqa: F811
) -> None:
    with emulated_aws(tmp_path / "aws", auth=True, environ=emulated_environ(tmp_path)) as aws:
        user = LimitedUser(aws, tmp_path, terraform)
        made = cluster(json.dumps(FILE))
        user.attach_for(made, Purpose.UP, Purpose.AUDIT)
        known = set().union(*recorded().values())
        for phase, actions, wrong in life(user, aws.client("s3")):
            assert not wrong, f"{phase}: {wrong}"
            assert actions - known == set(), f"{phase}: record again: python -m tests.clusters.policies.life FOLDER"
            if phase == "up":
                assert_role_of_pods(aws.client("iam"), aws.client("kms"), ArnScope.of(made, ACCOUNT))


def assert_role_of_pods(iam: Any, kms: Any, scope: ArnScope) -> None:
    """Checks that Terraform created the role that `windlass cluster policy --for runs` prints."""
    [key] = [
        one["TargetKeyId"]
        for one in kms.list_aliases()["Aliases"]
        if one["AliasName"] == "alias/windlass/vision/bucket"
    ]
    found = iam.get_role_policy(RoleName="vision-run", PolicyName="bucket")["PolicyDocument"]["Statement"]
    assert normal(found) == normal(_json(of_pods(scope, scope.arn("kms", f"key/{key}"))))


def _json(found: Any) -> list[dict[str, Any]]:
    return [one.as_json() for one in found if isinstance(one, Statement)]


def normal(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Normalizes statements: single values become lists."""

    def several(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: several(inner) for name, inner in value.items()}
        return sorted(value) if isinstance(value, list) else [value]

    return sorted((several(one) for one in found), key=lambda one: str(one["Sid"]))
