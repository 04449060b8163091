"""A bucket of others in an emulated account (real Terraform): plan, up and down leave it as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from tests.fakeaws.emulator import ACCOUNT, Emulator
from tests.fakeaws.emulator.fixtures import aws, terraform
from tests.infra.eks.inventory import inventory

from windlass.infra.tags import OWNER

__all__ = ["aws", "terraform"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
PARTNER: Final = "partner-results"
FILE: Final = f"name: vision\nregion: us-east-1\nstorage: {{bucket: {PARTNER}}}\ncomponents: [jobset]\n"
PROGRAM: Final = [sys.executable, "-m", "windlass", "cluster"]


class User:
    """Runs `windlass cluster` in a folder."""

    def __init__(self, folder: Path, aws: Emulator, terraform: Mapping[str, str], text: str) -> None:
        self.folder = folder
        self.environ = {
            **terraform, **aws.environ, "HOME": os.fspath(folder), "PWD": os.fspath(folder),
            "WINDLASS_HOME": os.fspath(folder / "home"),
        }  # fmt: skip
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
    """A bucket with each setting that the configuration of a cluster would replace."""
    s3.create_bucket(Bucket=PARTNER)
    policy = {"Version": "2012-10-17", "Statement": [{
        "Sid": "Partner", "Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::210987654321:root"},
        "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{PARTNER}/*",
    }]}  # fmt: skip
    s3.put_bucket_policy(Bucket=PARTNER, Policy=json.dumps(policy))
    rule = {"ID": "month", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Days": 31}}
    s3.put_bucket_lifecycle_configuration(Bucket=PARTNER, LifecycleConfiguration={"Rules": [rule]})
    s3.put_bucket_tagging(Bucket=PARTNER, Tagging={"TagSet": [{"Key": "team", "Value": "partner"}]})
    sealed = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
    s3.put_bucket_encryption(Bucket=PARTNER, ServerSideEncryptionConfiguration={"Rules": [sealed]})
    s3.put_bucket_versioning(Bucket=PARTNER, VersioningConfiguration={"Status": "Suspended"})
    s3.put_object(Bucket=PARTNER, Key="theirs", Body=b"1")


def settings(s3: Any, bucket: str = PARTNER) -> dict[str, Any]:
    """All of a bucket that Terraform manages of one."""
    calls = {
        "policy": s3.get_bucket_policy, "lifecycle": s3.get_bucket_lifecycle_configuration,
        "tags": s3.get_bucket_tagging, "encryption": s3.get_bucket_encryption, "versioning": s3.get_bucket_versioning,
        "objects": s3.list_object_versions,
    }  # fmt: skip
    found = {name: call(Bucket=bucket) for name, call in calls.items()}
    for answer in found.values():
        del answer["ResponseMetadata"]
    try:
        found["access"] = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    except s3.exceptions.ClientError as error:
        found["access"] = error.response["Error"]["Code"]
    return found


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
    text = "name: vision\nregion: us-east-1\ncomponents: [jobset]\nstate: {bucket: states}\n"
    plan = User(tmp_path, aws, terraform, text).json("plan")
    assert "1 to import" in plan["summary"]
    assert plan["notes"] == [f"s3://{kept} is taken over, which an earlier cluster of this name has kept"]
    assert inventory(aws) == before
    assert s3.list_object_versions(Bucket="states").get("Versions", []) == [], "neither a state nor a lock"
    assert s3.get_bucket_tagging(Bucket=kept)["TagSet"] == [{"Key": OWNER, "Value": "vision"}]


@pytest.mark.nightly
def test_a_bucket_of_others_is_untouched_by_plan_up_and_down_emulated(
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
    assert "is not of this cluster (it has no tag windlass.dev/cluster)" in plan["notes"][0]
    assert (settings(s3), inventory(aws)) == (before, account)

    made = user.run("up", "--yes", "--no-components")
    assert made.returncode == 0, made.stderr[-3000:]
    assert settings(s3) == before
    rights = iam.get_role_policy(RoleName="vision-run", PolicyName="bucket")["PolicyDocument"]["Statement"]
    assert {key, f"arn:aws:s3:::{PARTNER}", f"arn:aws:s3:::{PARTNER}/*"} <= {one["Resource"] for one in rights}

    gone = user.run("down", "vision", "--yes", "--force", "--delete-bucket")
    assert gone.returncode == 0, gone.stdout[-1000:] + gone.stderr[-2000:]
    assert settings(s3) == before
    assert inventory(aws) == account
