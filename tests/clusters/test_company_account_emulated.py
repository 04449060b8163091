"""`up` and `down` follow the rules of a company's account, under the printed policies alone (emulated)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

import pytest
from tests.clusters.policies.clusters import ACCOUNT, cluster
from tests.clusters.policies.limited import ALWAYS, OF_DEPLOYERS, LimitedUser, emulated_environ
from tests.fakeaws.emulator import Emulator, emulated_aws
from tests.fakeaws.emulator.fixtures import terraform

from windlass.clusters.policies import Purpose

__all__ = ["terraform"]
pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1500)]
PURPOSES: Final = ("secrets", "logs", "file_systems", "registry", "bucket", "disks")
BUCKET: Final = f"windlass-vision-{ACCOUNT}"


def made_keys(kms: Any) -> dict[str, str]:
    """Creates a key of the company for each purpose, with an alias that begins like names of the cluster."""
    found = {}
    for purpose in PURPOSES:
        tags = [{"TagKey": "team", "TagValue": "security"}]
        key = kms.create_key(Description=purpose, Tags=tags)["KeyMetadata"]
        kms.create_alias(AliasName=f"alias/vision-{purpose.replace('_', '-')}", TargetKeyId=key["KeyId"])
        found[purpose] = key["Arn"]
    return found


def described(kms: Any) -> list[Any]:
    """Returns all keys of the account with their state, tags, policy and rotation, and all aliases of customers."""
    keys = [
        (
            kms.describe_key(KeyId=one["KeyId"])["KeyMetadata"],
            kms.list_resource_tags(KeyId=one["KeyId"])["Tags"],
            kms.get_key_policy(KeyId=one["KeyId"], PolicyName="default")["Policy"],
            kms.get_key_rotation_status(KeyId=one["KeyId"])["KeyRotationEnabled"],
        )
        for one in kms.list_keys()["Keys"]
    ]
    return [*keys, *kms.list_aliases()["Aliases"]]


def file_of(aws: Emulator) -> dict[str, Any]:
    """Creates the boundary and the keys, and returns a cluster file that names them."""
    text = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})
    aws.client("ssm").put_parameter(Name="/team/images/system", Type="String", Value="ami-0fedcba9876543210")
    boundary = aws.client("iam").create_policy(PolicyName="vision-boundary", PolicyDocument=text)["Policy"]["Arn"]
    return {
        "name": "vision",
        "region": "us-east-1",
        "zones": ["us-east-1a", "us-east-1b"],
        "iam": {"permissions_boundary": boundary, "path": "/team/"},
        "encryption": made_keys(aws.client("kms")),
        "addons": {"coredns": "v1.13.1-eksbuild.1"},
        "system": {"ami": "/team/images/system"},
        "gpus": [
            {"name": "a10g", "instances": ["g5.12xlarge"], "provision": "node-group", "ami": "ami-0123456789abcdef0"}
        ],
        "storage": {"efs": True},
        "sagemaker": True,
    }


@pytest.fixture
def user(tmp_path: Path, terraform: dict[str, str]) -> Any:
    with emulated_aws(tmp_path / "aws", auth=True, environ=emulated_environ(tmp_path)) as aws:
        yield LimitedUser(aws, tmp_path, terraform), aws


def test_emulated_roles_have_the_boundary_and_keys_of_the_company_are_used_and_left_as_they_were(
    user: tuple[LimitedUser, Emulator],
) -> None:
    person, aws = user
    file, kms, iam = file_of(aws), aws.client("kms"), aws.client("iam")
    (person.folder / "cluster.yaml").write_text(json.dumps(file))
    person.attach_for(cluster(json.dumps(file)), Purpose.UP, Purpose.AUDIT)
    before = described(kms)

    done = person.windlass("cluster", "up", "--yes", "--no-components")
    assert done.returncode == 0, done.stdout + done.stderr
    roles = [one for one in iam.list_roles()["Roles"] if one["RoleName"].startswith("vision-")]
    assert len(roles) >= 10
    assert {one["Path"] for one in roles} == {"/team/"}
    boundaries = {
        iam.get_role(RoleName=one["RoleName"])["Role"]["PermissionsBoundary"]["PermissionsBoundaryArn"] for one in roles
    }
    assert boundaries == {file["iam"]["permissions_boundary"]}
    [profile] = iam.list_instance_profiles()["InstanceProfiles"]
    assert profile["Path"] == "/team/"
    assert used_keys(aws) == file["encryption"]
    assert described(kms) == before
    assert_nodes_join(aws)

    # what `up` has chosen is kept: the default version of coredns is another one
    changed = {name: value for name, value in file.items() if name != "addons"}
    (person.folder / "cluster.yaml").write_text(json.dumps(changed))
    done = person.windlass("cluster", "plan", "-o", "json")
    assert json.loads(done.stdout)["changes"] == [], done.stderr

    ecr = aws.client("ecr")
    ecr.put_image(repositoryName="vision", imageManifest=json.dumps({"schemaVersion": 2}), imageTag="1")
    done = person.windlass("cluster", "down", "vision", "--yes")
    assert (done.returncode, "the repository vision has 1 images" in done.stderr) == (2, True), (
        done.stdout + done.stderr
    )

    aws.client("s3").put_object(Bucket=BUCKET, Key="results/model", Body=b"weights")
    done = person.windlass("cluster", "down", "vision", "--yes", "--force", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    removed = json.loads(done.stdout.splitlines()[0])
    assert any("the repository vision has 1 images" in one for one in removed["lost"])
    assert ecr.describe_repositories()["repositories"] == []
    audit = removed["audit"]
    assert ([one["kind"] for one in audit["kept"]], audit["leaks"]) == (["bucket"], [])
    assert {one["name"].rstrip("-1234567890") for one in audit["possible"]} == {
        "windlass-vision-up",
        "windlass-vision-audit",
    }
    assert described(kms) == before
    assert iam.get_policy(PolicyArn=file["iam"]["permissions_boundary"])["Policy"]
    denied = {action for action, is_denied in person.calls() if is_denied}
    assert denied - ALWAYS - OF_DEPLOYERS == set()

    # the kept bucket is taken over with its key, and not by a cluster with another key
    other = kms.create_key()["KeyMetadata"]["Arn"]
    for bucket_key in ({"bucket": other}, {}):
        changed = {
            **file,
            "encryption": {**{p: k for p, k in file["encryption"].items() if p != "bucket"}, **bucket_key},
        }
        (person.folder / "cluster.yaml").write_text(json.dumps(changed))
        done = person.windlass("cluster", "plan")
        assert (done.returncode, "is encrypted by" in done.stderr) == (2, True), done.stdout + done.stderr
    (person.folder / "cluster.yaml").write_text(json.dumps(file))
    done = person.windlass("cluster", "plan", "-o", "json")
    assert "1 to import" in json.loads(done.stdout)["summary"], done.stderr


def assert_nodes_join(aws: Emulator) -> None:
    """Checks the AMIs and user data of nodes, and that the pods of the VPC CNI, and not nodes, have its permissions."""
    iam, eks, ec2 = aws.client("iam"), aws.client("eks"), aws.client("ec2")
    attached = {
        name: {one["PolicyName"] for one in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]}
        for name in ("vision-node", "vision-karpenter-node", "vision-vpc-cni")
    }
    assert attached["vision-vpc-cni"] == {"AmazonEKS_CNI_Policy"}
    assert "AmazonEKS_CNI_Policy" not in attached["vision-node"] | attached["vision-karpenter-node"]
    listed = eks.list_pod_identity_associations(clusterName="vision", serviceAccount="aws-node")["associations"]
    found = eks.describe_pod_identity_association(clusterName="vision", associationId=listed[0]["associationId"])
    assert found["association"]["roleArn"] == f"arn:aws:iam::{ACCOUNT}:role/team/vision-vpc-cni"
    server = eks.describe_cluster(name="vision")["cluster"]
    for name, ami in (("vision-system", "ami-0fedcba9876543210"), ("vision-gpu-a10g", "ami-0123456789abcdef0")):
        versions = ec2.describe_launch_template_versions(LaunchTemplateName=name)["LaunchTemplateVersions"]
        data = versions[0]["LaunchTemplateData"]
        user_data = base64.b64decode(data["UserData"]).decode()
        assert data["ImageId"] == ami
        addresses = server["kubernetesNetworkConfig"]["serviceIpv4Cidr"]
        for value in (server["endpoint"], server["certificateAuthority"]["data"], addresses):
            assert value in user_data


def used_keys(aws: Emulator) -> dict[str, str]:
    """Returns the key that encrypts each kind of resource, by purpose. Raises ValueError if they differ."""
    kind = "ApplyServerSideEncryptionByDefault"
    rules = aws.client("s3").get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"]
    ec2 = aws.client("ec2")
    templates = ec2.describe_launch_templates()["LaunchTemplates"]
    versions = [
        ec2.describe_launch_template_versions(LaunchTemplateId=one["LaunchTemplateId"])["LaunchTemplateVersions"][0]
        for one in templates
    ]
    [disks] = {one["LaunchTemplateData"]["BlockDeviceMappings"][0]["Ebs"]["KmsKeyId"] for one in versions}
    groups = aws.client("logs").describe_log_groups()["logGroups"]
    [logs] = {one["kmsKeyId"] for one in groups}
    [system] = aws.client("efs").describe_file_systems()["FileSystems"]
    [repository] = aws.client("ecr").describe_repositories()["repositories"]
    [secrets] = aws.client("eks").describe_cluster(name="vision")["cluster"]["encryptionConfig"]
    return {
        "secrets": secrets["provider"]["keyArn"],
        "logs": logs,
        "file_systems": system["KmsKeyId"],
        "registry": repository["encryptionConfiguration"]["kmsKey"],
        "bucket": rules[0][kind]["KMSMasterKeyID"],
        "disks": disks,
    }
