"""The policies of runs, of pods and of users, in an emulated account that enforces policies."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError
from tests.clusters.policies.clusters import ACCOUNT, cluster
from tests.fakeaws.emulator import Emulator, emulated_aws

from windlass.clusters.policies import Purpose, Statement, statements

BUCKET: Final = "windlass-vision-123456789012"
DENIED: Final = {"AccessDenied", "AccessDeniedException"}
Client = Callable[[str], Any]
UNSEEN: Final = {"Key": "S3 decrypts with the caller's rights, and the emulated one does not ask for them"}
"""Statements that the emulator does not require, each with the reason."""
LAYER: Final = b"layer"
DIGEST: Final = f"sha256:{hashlib.sha256(LAYER).hexdigest()}"


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """Yields an account with a bucket, a repository, a cluster, and a user without permissions."""
    with emulated_aws(tmp_path_factory.mktemp("aws"), auth=True) as aws:
        aws.client("s3").create_bucket(Bucket=BUCKET)
        aws.client("s3").create_bucket(Bucket="another")
        aws.client("ecr").create_repository(repositoryName="vision")
        trust = json.dumps({"Version": "2012-10-17", "Statement": []})
        role = aws.client("iam").create_role(RoleName="vision-cluster", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
        vpc = aws.client("ec2").create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        subnet = aws.client("ec2").create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20")["Subnet"]["SubnetId"]
        aws.client("eks").create_cluster(name="vision", roleArn=role, resourcesVpcConfig={"subnetIds": [subnet]})
        aws.client("iam").create_user(UserName="researcher")
        yield aws


def client_of(aws: Emulator, allowed: list[Statement]) -> Client:
    """Returns a client factory for a user with exactly these statements."""
    iam = aws.client("iam")
    policy = json.dumps({"Version": "2012-10-17", "Statement": [one.as_json() for one in allowed]})
    iam.put_user_policy(UserName="researcher", PolicyName="runs", PolicyDocument=policy)
    key = iam.create_access_key(UserName="researcher")["AccessKey"]
    login = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    return lambda service: aws.client(service, **login)


def denied(act: Callable[[], object]) -> bool:
    """Whether a call is denied; any other error means that it was allowed."""
    try:
        act()
    except ClientError as error:
        return error.response["Error"]["Code"] in DENIED
    return False


def refused(client: Client, bucket: str = BUCKET) -> set[str]:
    """Returns the actions of runs that are denied."""
    calls = {**_bucket(client("s3"), bucket), **_images(client("ecr"))}
    calls["eks:DescribeCluster"] = lambda: client("eks").describe_cluster(name="vision")
    return {action for action, call in calls.items() if denied(call)}


def _bucket(s3: Any, bucket: str) -> dict[str, Callable[[], object]]:
    where = {"Bucket": bucket, "Key": "runs/1"}
    return {
        "s3:GetBucketLocation": lambda: s3.get_bucket_location(Bucket=bucket),
        "s3:ListBucket": lambda: s3.list_objects_v2(Bucket=bucket),
        "s3:ListBucketMultipartUploads": lambda: s3.list_multipart_uploads(Bucket=bucket),
        "s3:PutObject": lambda: s3.put_object(**where, Body=b"1"),
        "s3:GetObject": lambda: s3.get_object(**where),
        "s3:ListMultipartUploadParts": lambda: s3.list_parts(**where, UploadId="none"),
        "s3:AbortMultipartUpload": lambda: s3.abort_multipart_upload(**where, UploadId="none"),
        "s3:DeleteObject": lambda: s3.delete_object(**where),
    }


def _images(ecr: Any) -> dict[str, Callable[[], object]]:
    named = {"repositoryName": "vision"}
    part = {"uploadId": "none", "partFirstByte": 0, "partLastByte": 4, "layerPartBlob": base64.b64encode(LAYER)}
    return {
        "ecr:GetAuthorizationToken": lambda: ecr.get_authorization_token(),
        "ecr:BatchCheckLayerAvailability": lambda: ecr.batch_check_layer_availability(**named, layerDigests=[DIGEST]),
        "ecr:BatchGetImage": lambda: ecr.batch_get_image(**named, imageIds=[{"imageTag": "1"}]),
        "ecr:GetDownloadUrlForLayer": lambda: ecr.get_download_url_for_layer(**named, layerDigest=DIGEST),
        "ecr:DescribeImages": lambda: ecr.describe_images(**named),
        "ecr:InitiateLayerUpload": lambda: ecr.initiate_layer_upload(**named),
        "ecr:UploadLayerPart": lambda: ecr.upload_layer_part(**named, **part),
        "ecr:CompleteLayerUpload": lambda: ecr.complete_layer_upload(**named, uploadId="none", layerDigests=[DIGEST]),
        "ecr:PutImage": lambda: ecr.put_image(**named, imageManifest="{}", imageTag="1"),
    }


CALLED: Final = {*_bucket(None, ""), *_images(None), "eks:DescribeCluster"}


@pytest.mark.parametrize("purpose", [Purpose.RUNS, Purpose.PODS])
def test_the_policy_allows_exactly_what_its_statements_name_emulated(account: Emulator, purpose: Purpose) -> None:
    given = list(statements(cluster(), ACCOUNT, purpose))
    named = {action for one in given for action in one.actions if one.sid not in UNSEEN}
    assert named <= CALLED
    assert refused(client_of(account, given)) == CALLED - named


@pytest.mark.parametrize("purpose", [Purpose.RUNS, Purpose.PODS])
def test_actions_without_their_statement_are_denied_emulated(account: Emulator, purpose: Purpose) -> None:
    given = list(statements(cluster(), ACCOUNT, purpose))
    before = refused(client_of(account, given))
    for missing in (one for one in given if one.sid not in UNSEEN):
        rest = [one for one in given if one is not missing]
        assert refused(client_of(account, rest)) - before == set(missing.actions)


def test_another_bucket_is_refused_emulated(account: Emulator) -> None:
    client = client_of(account, list(statements(cluster(), ACCOUNT, Purpose.RUNS)))
    of_s3 = {action for action in CALLED if action.startswith("s3:")}
    assert refused(client, "another") & of_s3 == of_s3
