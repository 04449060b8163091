"""The owner of a bucket is determined from an emulated account's responses, and never guessed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.fakeaws.emulator import ACCOUNT, Emulator
from tests.fakeaws.emulator.fixtures import shared_aws
from tests.servers.faulty import FORBIDDEN, HTML, PASS, Fault, Request, fault_proxy

from windlass.clusters.aws import Aws, AwsError, Identity, NoAnswer
from windlass.clusters.storage.bucket import Bucket, find_bucket, require_usable
from windlass.clusters.tags import OWNER
from windlass.errors import UsageError
from windlass.spec.cluster import Cluster
from windlass.spec.parse import parse_cluster

__all__ = ["shared_aws"]
pytestmark = pytest.mark.slow


def cluster(storage: str = "") -> Cluster:
    return parse_cluster(f"name: vision\nregion: us-east-1\n{storage}")


def named(bucket: str) -> Cluster:
    return cluster(f"storage: {{bucket: {bucket}}}\n")


def seen(aws: Emulator, of: Cluster, before: Mapping[str, Any] | None = None, *, is_unfinished: bool = False) -> Bucket:
    with Aws("us-east-1", environ=aws.environ) as client:
        return find_bucket(client, of, before or {}, is_unfinished=is_unfinished)


def made(aws: Emulator, name: str, tags: Mapping[str, str] | None = None) -> str:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=name)
    if tags:
        s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": [{"Key": key, "Value": tags[key]} for key in tags]})
    return name


def test_missing_bucket_is_created_emulated(shared_aws: Emulator) -> None:
    assert seen(shared_aws, cluster()) == Bucket(f"windlass-vision-{ACCOUNT}", exists=False)


def test_bucket_belongs_to_the_cluster_only_by_its_tag_emulated(shared_aws: Emulator) -> None:
    own, others = made(shared_aws, "own", {OWNER: "vision"}), made(shared_aws, "others", {OWNER: "vision-2"})
    team, bare = made(shared_aws, "team", {"team": "vision"}), made(shared_aws, "bare")
    assert seen(shared_aws, named(own)).is_managed
    found = {name: seen(shared_aws, named(name)) for name in (others, team, bare)}
    assert {name: (one.exists, one.is_managed, one.owner) for name, one in found.items()} == {
        others: (True, False, "vision-2"),
        team: (True, False, ""),
        bare: (True, False, ""),
    }


def test_untagged_empty_bucket_of_a_killed_up_belongs_to_the_cluster_emulated(
    shared_aws: Emulator,
) -> None:
    bare = named(made(shared_aws, "killed"))
    before = {"bucket_name": "killed", "bucket_managed": True}
    assert seen(shared_aws, bare, before, is_unfinished=True).is_managed
    assert not seen(shared_aws, bare, before).is_managed
    assert not seen(shared_aws, bare, {"bucket_managed": False}, is_unfinished=True).is_managed
    shared_aws.client("s3").put_object(Bucket="killed", Key="a", Body=b"1")
    assert not seen(shared_aws, bare, before, is_unfinished=True).is_managed


def test_key_of_an_unmanaged_bucket_is_found_emulated(shared_aws: Emulator) -> None:
    made(shared_aws, "sealed")
    for key, arn in (
        ("arn:aws:kms:us-east-1:1:key/a", "arn:aws:kms:us-east-1:1:key/a"),
        ("alias/x", ""),
        ("k-1", f"arn:aws:kms:us-east-1:{ACCOUNT}:key/k-1"),
    ):
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
        configuration = {"Rules": [rule]}
        shared_aws.client("s3").put_bucket_encryption(Bucket="sealed", ServerSideEncryptionConfiguration=configuration)
        assert seen(shared_aws, named("sealed")).key_arn == arn


def test_options_that_change_bucket_settings_are_refused_for_an_unmanaged_bucket() -> None:
    foreign = Bucket("partner", exists=True, is_managed=False)
    with pytest.raises(UsageError, match=r"s3_files changes the notifications of s3://partner.*has no tag") as refused:
        require_usable(foreign, cluster("storage: {bucket: partner, s3_files: true}\n"))
    assert "windlass.dev/cluster=vision" in (refused.value.hint or "")
    require_usable(foreign, named("partner"))
    require_usable(Bucket("own", exists=True), cluster("storage: {bucket: own, fsx: true}\n"))


class Elsewhere:
    """S3 with a bucket in us-west-2 that is tagged with the cluster."""

    identity, region = Identity(ACCOUNT, ""), "us-east-1"

    def client(self, _service: str) -> Any:
        return self

    def head_bucket(self, Bucket: str) -> Any:  # noqa: N803
        return {"BucketRegion": "us-west-2"}

    def get_bucket_tagging(self, Bucket: str) -> Any:  # noqa: N803
        return {"TagSet": [{"Key": OWNER, "Value": "vision"}]}


def test_bucket_of_an_equally_named_cluster_in_another_region_is_refused() -> None:
    aws: Any = Elsewhere()
    found = find_bucket(aws, cluster(), {}, is_unfinished=False)
    assert not found.is_managed
    with pytest.raises(UsageError, match="is of a cluster vision in us-west-2, and this one is in us-east-1"):
        require_usable(found, cluster())


def test_existing_key_belongs_to_a_managed_bucket_and_not_to_one_of_others_emulated(shared_aws: Emulator) -> None:
    key = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/1-a"
    text = f"encryption: {{bucket: {key}}}\n"
    assert seen(shared_aws, cluster(text)).variables() == {"bucket_managed": True, "bucket_key_arn": key}
    bucket = made(shared_aws, "of-others", {OWNER: "audio"})
    found = seen(shared_aws, cluster(f"storage: {{bucket: {bucket}}}\n{text}"))
    with pytest.raises(UsageError, match=r"changes the encryption of s3://of-others, .* its tag .* is audio"):
        require_usable(found, cluster(text))


def of_tagging(fault: Fault) -> Callable[[Request], Fault]:
    return lambda request: fault if "tagging" in request.query else PASS


EMPTY = Fault(status=200)


@pytest.mark.parametrize(
    ("fault", "error"), [(FORBIDDEN, AwsError), (HTML, NoAnswer), (EMPTY, NoAnswer)], ids=["403", "html", "nothing"]
)
def test_unreadable_bucket_tags_are_an_error_emulated(
    shared_aws: Emulator, fault: Fault, error: type[AwsError]
) -> None:
    name = made(shared_aws, "silent", {OWNER: "vision"})
    with fault_proxy(int(shared_aws.url.rpartition(":")[2])) as proxy:
        proxy.fault = of_tagging(fault)
        environ = {**shared_aws.environ, "AWS_ENDPOINT_URL": proxy.endpoint}
        with Aws("us-east-1", environ=environ) as client, pytest.raises(error):
            find_bucket(client, named(name), {}, is_unfinished=False)
