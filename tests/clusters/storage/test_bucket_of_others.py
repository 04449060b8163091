"""Plan, up and down leave an unmanaged bucket unchanged, and detect drift (real Terraform, emulated AWS)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from tests.clusters.audit.planted import spec
from tests.clusters.eks.inventory import inventory
from tests.fakeaws.emulator import ACCOUNT, Emulator
from tests.fakeaws.emulator.fixtures import aws, terraform

from windlass.clusters.tags import OWNER

__all__ = ["aws", "terraform"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
ADMINISTRATOR: Final = "arn:aws:iam::aws:policy/AdministratorAccess"
PARTNER: Final = "partner-results"
FILE: Final = f"name: vision\nregion: us-east-1\nstorage: {{bucket: {PARTNER}}}\ncomponents: [jobset]\n"
PROGRAM: Final = [sys.executable, "-m", "windlass", "cluster"]


class User:
    """Runs `windlass cluster` in a folder."""

    def __init__(self, folder: Path, aws: Emulator, terraform: Mapping[str, str], text: str) -> None:
        self.folder = folder
        self.environ = {
            **terraform,
            **aws.environ,
            "HOME": os.fspath(folder),
            "PWD": os.fspath(folder),
            "WINDLASS_HOME": os.fspath(folder / "home"),
        }
        (folder / "cluster.yaml").write_text(text)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *words], cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
        )

    def json(self, *words: str) -> Any:
        done = self.run(*words, "-o", "json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


def make_partners(s3: Any, key: str) -> None:
    """Creates a bucket with every setting that the cluster configuration would replace."""
    s3.create_bucket(Bucket=PARTNER)
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "Partner",
                "Effect": "Allow",
                "Principal": {"AWS": "arn:aws:iam::210987654321:root"},
                "Action": "s3:GetObject",
                "Resource": f"arn:aws:s3:::{PARTNER}/*",
            }
        ],
    }
    s3.put_bucket_policy(Bucket=PARTNER, Policy=json.dumps(policy))
    rule = {"ID": "month", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Days": 31}}
    s3.put_bucket_lifecycle_configuration(Bucket=PARTNER, LifecycleConfiguration={"Rules": [rule]})
    s3.put_bucket_tagging(Bucket=PARTNER, Tagging={"TagSet": [{"Key": "team", "Value": "partner"}]})
    sealed = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
    s3.put_bucket_encryption(Bucket=PARTNER, ServerSideEncryptionConfiguration={"Rules": [sealed]})
    s3.put_bucket_versioning(Bucket=PARTNER, VersioningConfiguration={"Status": "Suspended"})
    s3.put_object(Bucket=PARTNER, Key="theirs", Body=b"1")


def settings(s3: Any, bucket: str = PARTNER) -> dict[str, Any]:
    """Returns all bucket settings that Terraform manages."""
    calls = {
        "policy": s3.get_bucket_policy,
        "lifecycle": s3.get_bucket_lifecycle_configuration,
        "tags": s3.get_bucket_tagging,
        "encryption": s3.get_bucket_encryption,
        "versioning": s3.get_bucket_versioning,
        "objects": s3.list_object_versions,
    }
    found = {name: call(Bucket=bucket) for name, call in calls.items()}
    for answer in found.values():
        del answer["ResponseMetadata"]
    try:
        found["access"] = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    except s3.exceptions.ClientError as error:
        found["access"] = error.response["Error"]["Code"]
    return found


@pytest.mark.nightly
def test_a_plan_changes_nothing_and_imports_nothing_emulated(
    aws: Emulator,
    terraform: dict[str, str],
    tmp_path: Path,
) -> None:
    s3 = aws.client("s3")
    kept = f"windlass-vision-{ACCOUNT}"
    s3.create_bucket(Bucket=kept)
    s3.put_bucket_tagging(Bucket=kept, Tagging={"TagSet": [{"Key": OWNER, "Value": "vision"}]})
    s3.create_bucket(Bucket="states")
    before = inventory(aws)
    text = (
        "name: vision\nregion: us-east-1\nkubernetes: '1.34'\ncomponents: [jobset]\nstate: {bucket: states}\n"
        "zones: [us-east-1a, us-east-1e]\n"
        "gpus: [{name: h100, instances: [p5.48xlarge], provision: node-group, zone: us-east-1e}]\n"
    )
    plan = User(tmp_path, aws, terraform, text).json("plan")
    assert "1 to import" in plan["summary"]
    notes = "\n".join(plan["notes"])
    assert f"s3://{kept} was kept by an earlier cluster of this name and is adopted" in notes
    assert "offer h100: p5.48xlarge not offered in us-east-1e" in notes
    assert "Kubernetes 1.34 l" in notes
    assert not any("extended" in row["what"] for row in plan["price"]["rows"])
    assert inventory(aws) == before
    assert s3.list_object_versions(Bucket="states").get("Versions", []) == [], "neither a state nor a lock"
    assert s3.get_bucket_tagging(Bucket=kept)["TagSet"] == [{"Key": OWNER, "Value": "vision"}]


def assert_drift_is_found_and_put_back(user: User, aws: Emulator) -> None:
    """Opens port 22 to the world in a security group of Terraform and in the one of EKS, attaches AdministratorAccess
    to a role, and checks that all of this is reported and reverted.
    """
    ec2, iam = aws.client("ec2"), aws.client("iam")
    clean = user.json("status", "vision")
    assert (clean["drift"], clean["added"], clean["unchecked"]) == ([], [], [])
    of_eks = aws.client("eks").describe_cluster(name="vision")["cluster"]["resourcesVpcConfig"][
        "clusterSecurityGroupId"
    ]
    named = [{"Name": "group-name", "Values": ["vision-node"]}]
    nodes = ec2.describe_security_groups(Filters=named)["SecurityGroups"][0]["GroupId"]
    world = [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    for group in (nodes, of_eks):
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=world)
    iam.attach_role_policy(RoleName="vision-run", PolicyArn=ADMINISTRATOR)
    iam.put_role_policy(
        RoleName="vision-node",
        PolicyName="more",
        PolicyDocument=json.dumps(
            {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
        ),
    )

    shown = user.run("status", "vision")
    assert shown.returncode == 1
    assert "nothing" not in shown.stdout.split("OPERATOR")[0]
    found = user.json("status", "vision")
    assert {one["address"] for one in found["drift"]} == {
        'aws_iam_role_policy_attachments_exclusive.main["run"]',
        'aws_iam_role_policies_exclusive.main["node"]',
    }
    assert [one["text"] for one in found["added"]] == ["tcp 22 from 0.0.0.0/0"] * 2

    assert user.run("up", "--yes", "--no-components").returncode == 0
    assert iam.list_attached_role_policies(RoleName="vision-run")["AttachedPolicies"] == []
    assert iam.list_role_policies(RoleName="vision-node")["PolicyNames"] == []
    for one in user.json("status", "vision")["added"]:
        words = one["remedy"].split()
        group, rule = words[words.index("--group-id") + 1], words[words.index("--security-group-rule-ids") + 1]
        ec2.revoke_security_group_ingress(GroupId=group, SecurityGroupRuleIds=[rule])
    after = user.json("status", "vision")
    assert (after["drift"], after["added"]) == ([], [])


@pytest.mark.nightly
def test_unmanaged_bucket_is_unchanged_by_plan_up_and_down_emulated(
    aws: Emulator,
    terraform: dict[str, str],
    tmp_path: Path,
) -> None:
    s3, iam = aws.client("s3"), aws.client("iam")
    key = aws.client("kms").create_key()["KeyMetadata"]["Arn"]
    make_partners(s3, key)
    before, account = settings(s3), inventory(aws)
    user = User(tmp_path, aws, terraform, FILE)

    plan = user.json("plan")
    assert "s3_bucket" not in json.dumps(plan["changes"])
    assert "does not belong to this cluster (it has no tag windlass.dev/cluster)" in plan["notes"][0]
    assert (settings(s3), inventory(aws)) == (before, account)

    made = user.run("up", "--yes", "--no-components")
    assert made.returncode == 0, made.stderr[-3000:]
    assert settings(s3) == before
    rights = iam.get_role_policy(RoleName="vision-run", PolicyName="bucket")["PolicyDocument"]["Statement"]
    assert {key, f"arn:aws:s3:::{PARTNER}", f"arn:aws:s3:::{PARTNER}/*"} <= {one["Resource"] for one in rights}

    assert_drift_is_found_and_put_back(user, aws)
    assert settings(s3) == before

    named = spec("elastic-ip", {"Name": "vision-old"})
    left = aws.client("ec2").allocate_address(Domain="vpc", TagSpecifications=named)
    unproved = user.run("down", "vision", "--yes", "--force", "--delete-bucket")
    assert unproved.returncode == 1
    assert "1 object that may be of it and bill" in unproved.stdout
    assert "nothing" not in unproved.stdout
    assert (user.folder / "home" / "clusters" / "vision").is_dir()

    aws.client("ec2").release_address(AllocationId=left["AllocationId"])
    gone = user.run("down", "vision", "--yes", "--force", "--delete-bucket")
    assert not (user.folder / "home" / "clusters" / "vision").exists()
    assert gone.returncode == 0, gone.stdout[-1000:] + gone.stderr[-2000:]
    assert settings(s3) == before
    assert inventory(aws) == account
