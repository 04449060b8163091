"""Audits by cluster name reject invalid names and credentials of other accounts."""

from __future__ import annotations

import json

import pytest
from tests.clusters.eks.test_outputs import VALUES

from windlass.clusters.audit.named import audit_named, audited_network
from windlass.clusters.audit.scope import ClusterNetwork
from windlass.clusters.aws import Aws, Identity
from windlass.clusters.eks.outputs import Outputs
from windlass.clusters.find import FILE, OUTPUTS, ManagedCluster
from windlass.errors import UsageError
from windlass.runs.context import Context

TEXT = "name: vision\nregion: us-west-2\nstate: {bucket: states}\n"


def test_audit_with_credentials_of_another_account_is_refused(
    named: ManagedCluster, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an audit would find nothing and look clean."""
    (named.folder.path / FILE).write_text(TEXT)
    (named.folder.path / OUTPUTS).write_text(json.dumps(VALUES))
    owner = Outputs.of(VALUES).account_id
    monkeypatch.setattr(Aws, "identity", Identity("222222222222", ""))
    with pytest.raises(
        UsageError, match=f"vision is in account {owner}, but the credentials are of account 222222222222"
    ):
        audit_named("vision", "", context, is_ours=True)


@pytest.mark.parametrize("name", ["", "Vi*", "x\x1b[31my", "--region", "a/b", "a" * 101])
def test_audit_refuses_invalid_cluster_names(context: Context, name: str) -> None:
    with pytest.raises(UsageError, match="is not a name of a cluster"):
        audit_named(name, "us-west-2", context, is_ours=False)


OWN, EXISTING = Outputs.of(VALUES), Outputs.of({**VALUES, "vpc_managed": False})


@pytest.mark.parametrize(
    ("outputs", "in_state", "in_file", "expected"),
    [
        (OWN, None, None, ClusterNetwork("vpc-1", ("subnet-1", "subnet-2"))),
        (OWN, "vpc-1", "vpc-0a", ClusterNetwork("vpc-1", ("subnet-1", "subnet-2"))),
        (EXISTING, None, None, ClusterNetwork(existing_vpc_id="vpc-1")),
        (EXISTING, None, "vpc-1", ClusterNetwork(existing_vpc_id="vpc-1")),
        (None, None, "vpc-0a", ClusterNetwork(existing_vpc_id="vpc-0a")),
        (None, "vpc-1", "vpc-0a", ClusterNetwork("vpc-1")),
        (None, None, None, ClusterNetwork()),
    ],
)
def test_terraform_decides_whose_vpc_it_is_and_not_an_edited_file(
    outputs: Outputs | None, in_state: str | None, in_file: str | None, expected: ClusterNetwork
) -> None:
    assert audited_network(outputs, in_state, in_file) == expected
