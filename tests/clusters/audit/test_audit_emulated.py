"""An audit of an emulated account (not AWS) finds a cluster's leaks among objects of others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.clusters.audit.planted import ROLE, Network, pairs, plant, spec
from tests.fakeaws.emulator import ACCOUNT, REGION, Emulator, emulated_aws

from windlass.clusters.audit import AuditReport, audit
from windlass.clusters.audit.scope import ClusterNetwork
from windlass.clusters.aws import Aws

pytestmark = pytest.mark.slow

OURS = {"windlass.dev/cluster": "train", "windlass.dev/managed-by": "terraform"}


@dataclass(frozen=True)
class Scene:
    """An account with leaks of `train`, the same objects of `train-2`, and objects of no cluster."""

    aws: Emulator
    leaks: dict[str, str]
    others: dict[str, str]
    none: dict[str, str]
    report: AuditReport


def audited(aws: Emulator, name: str, **options: object) -> AuditReport:
    with Aws(environ=aws.environ) as client:
        return audit(name, client, **{"is_ours": True, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with emulated_aws(tmp_path_factory.mktemp("aws")) as aws:
        other = {"windlass.dev/cluster": "train-2"}
        leaks = plant(aws, Network(aws, OURS), "train", OURS)
        others = plant(aws, Network(aws, other), "train-2", other)
        none = plant(aws, Network(aws, {}), "shop", {"team": "train"})
        yield Scene(aws, leaks, others, none, audited(aws, "train"))


def test_every_leak_is_reported_once_emulated(scene: Scene) -> None:
    named = [one.id for one in scene.report.found]
    assert {kind: id for kind, id in scene.leaks.items() if named.count(id) != 1} == {}
    assert len(scene.leaks) >= 30
    assert scene.report.unknown == ()
    assert not scene.report.is_clean


def test_nothing_but_leaks_is_reported_emulated(scene: Scene) -> None:
    extra = [one for one in scene.report.found if one.id not in scene.leaks.values()]
    assert [one.kind for one in extra] == ["volume"], "the root volume of the planted instance"
    assert "an instance of the cluster" in extra[0].reason
    assert scene.report.possible == ()


def test_billing_objects_come_first_and_have_all_price_keys_emulated(scene: Scene) -> None:
    leaks = scene.report.leaks
    bills = [one.bills for one in leaks]
    assert bills == sorted(bills, reverse=True)
    assert {one.kind for one in leaks if one.bills} == {
        "alarm", "NAT gateway", "VPC endpoint", "elastic IP address", "instance", "snapshot", "volume", "file system",
        "S3 file system", "load balancer", "backup", "key", "HyperPod cluster", "app", "endpoint", "notebook instance",
        "training job in progress", "warm pool",
    }  # fmt: skip
    keys = {(key.service, key.dimension): key.quantity for one in leaks for key in one.price_keys}
    assert keys["sagemaker-hosting", "ml.g5.xlarge"] == 2
    assert keys["fsx-lustre", "PERSISTENT_2-250"] == 1200
    assert keys["vpc-endpoint", "interface"] == 2


def test_each_row_has_a_deletion_command_emulated(scene: Scene) -> None:
    assert [one for one in scene.report.found if not one.remedy] == []


def test_kept_bucket_is_not_a_leak_emulated(scene: Scene) -> None:
    [bucket] = scene.report.kept
    assert bucket.id == f"windlass-train-{ACCOUNT}"
    assert bucket not in scene.report.leaks


def test_audit_of_the_other_cluster_reports_its_leaks_emulated(scene: Scene) -> None:
    named = {one.id for one in audited(scene.aws, "train-2").found}
    assert set(scene.others.values()) <= named
    assert not named & {*scene.leaks.values(), *scene.none.values()}


def test_an_account_without_leaks_is_clean_emulated(scene: Scene) -> None:
    report = audited(scene.aws, "never-was")
    assert report.is_clean
    assert report.found == ()
    assert report.num_calls > 100, "every service is listed, not only what the tagging API knows"


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[Emulator]:
    with emulated_aws(tmp_path / "aws") as emulator:
        yield emulator


def make_cluster(aws: Emulator, name: str, net: Network, tags: dict[str, str] | None = None) -> None:
    subnets = {"subnetIds": [net.subnet, net.other_subnet]}
    aws.client("eks").create_cluster(name=name, roleArn=ROLE, resourcesVpcConfig=subnets, tags=tags or {})


def test_audit_of_a_foreign_cluster_finds_only_objects_that_name_it_emulated(aws: Emulator) -> None:
    net, ec2 = Network(aws, {"team": "platform"}), aws.client("ec2")
    make_cluster(aws, "theirs", net)
    make_cluster(aws, "theirs-2", net)
    plant(aws, net, "shop", {"team": "shop"})
    owned = {"kubernetes.io/cluster/theirs": "owned", "karpenter.sh/nodepool": "gpu"}
    node = ec2.run_instances(
        ImageId="ami-12345678",
        InstanceType="g5.xlarge",
        MinCount=1,
        MaxCount=1,
        SubnetId=net.subnet,
        TagSpecifications=spec("instance", owned),
    )["Instances"][0]["InstanceId"]
    claim = {"kubernetes.io/created-for/pvc/name": "data", "kubernetes.io/created-for/pv/name": "pvc-7"}
    volume = ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=9, TagSpecifications=spec("volume", claim))
    balancer = aws.client("elbv2").create_load_balancer(
        Name="k8s-web", Type="network", Subnets=[net.subnet], Tags=pairs({"elbv2.k8s.aws/cluster": "theirs"})
    )["LoadBalancers"][0]["LoadBalancerArn"]
    report = audited(aws, "theirs", is_ours=False)
    certain = {one.kind: one.id for one in report.leaks if one.kind != "volume"}
    assert certain.pop("cluster") == "theirs"
    certain.pop("security group", "")  # the emulator creates a security group for a cluster
    assert certain == {"instance": node, "load balancer": balancer}
    assert [(one.kind, one.id) for one in report.possible] == [("volume", volume["VolumeId"])]
    known = audited(aws, "theirs", is_ours=False, volume_names=["pvc-7"])
    assert volume["VolumeId"] in {one.id for one in known.leaks}


def test_objects_in_a_vpc_used_only_by_the_cluster_are_possible_emulated(aws: Emulator) -> None:
    net = Network(aws, {"team": "platform"})
    make_cluster(aws, "alone", net)
    planted = plant(aws, net, "whatever", {"team": "shop"})
    report = audited(aws, "alone", is_ours=False)
    possible = {one.id for one in report.possible}
    for kind in ("NAT gateway", "VPC", "load balancer", "efs file system", "fsx file system", "VPC endpoint"):
        assert planted[kind] in possible, kind
    assert planted["bucket"] not in {one.id for one in report.found}
    again = audited(aws, "gone", is_ours=False, network=ClusterNetwork(net.vpc))
    assert planted["NAT gateway"] not in {one.id for one in again.found}, "the VPC is used by another cluster"


def test_vpc_of_a_deleted_cluster_is_found_emulated(aws: Emulator) -> None:
    net = Network(aws, {"alpha.eksctl.io/cluster-name": "gone"})
    leaks = plant(aws, net, "anything", {"team": "platform"})
    in_network = {"instance", "NAT gateway", "VPC endpoint", "VPC", "security group", "network interface",
                  "load balancer", "target group", "efs file system", "mount target", "fsx file system", "backup",
                  "domain", "app", "subnet", "route table", "internet gateway"}  # fmt: skip
    report = audited(aws, "gone", is_ours=False)
    named = {one.id for one in report.leaks}
    expected = {kind: id for kind, id in leaks.items() if kind in in_network}
    assert {kind: id for kind, id in expected.items() if id not in named} == {}


def test_leftovers_of_controllers_are_recognized_by_their_tags_emulated(aws: Emulator) -> None:
    net, ec2, elb = Network(aws, {"team": "platform"}), aws.client("ec2"), aws.client("elbv2")
    controller = pairs({"elbv2.k8s.aws/cluster": "train", "service.k8s.aws/stack": "web/web"})
    balancer = elb.create_load_balancer(Name="k8s-web-web-1", Type="network", Subnets=[net.subnet], Tags=controller)
    targets = elb.create_target_group(Name="k8s-web-web-2", Protocol="TCP", Port=80, VpcId=net.vpc, Tags=controller)
    node = ec2.run_instances(
        ImageId="ami-12345678",
        InstanceType="g5.xlarge",
        MinCount=1,
        MaxCount=1,
        SubnetId=net.subnet,
        TagSpecifications=spec("instance", {"eks:eks-cluster-name": "train", "karpenter.sh/nodepool": "gpu"}),
    )["Instances"][0]["InstanceId"]
    claim = {"kubernetes.io/cluster/train": "owned", "kubernetes.io/created-for/pvc/name": "data"}
    volume = ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=9, TagSpecifications=spec("volume", claim))
    template = ec2.create_launch_template(
        LaunchTemplateName="eks-0123",
        LaunchTemplateData={"InstanceType": "m5.large"},
        TagSpecifications=spec("launch-template", {"eks:cluster-name": "train"}),
    )["LaunchTemplate"]["LaunchTemplateId"]
    aws.client("iam").create_instance_profile(InstanceProfileName="train_17046340434587383427")
    aws.client("logs").create_log_group(logGroupName="/aws/containerinsights/train/performance")
    group = ec2.create_security_group(GroupName="k8s-web", Description="d", VpcId=net.vpc)["GroupId"]
    ec2.create_tags(Resources=[group], Tags=controller)
    interface = ec2.create_network_interface(SubnetId=net.subnet, Groups=[group], Description="ELB net/k8s-web-web-1/0")
    report = audited(aws, "train")
    assert {one.id for one in report.leaks if one.kind != "volume"} == {
        balancer["LoadBalancers"][0]["LoadBalancerArn"],
        targets["TargetGroups"][0]["TargetGroupArn"],
        node,
        template,
        "train_17046340434587383427",
        "/aws/containerinsights/train/performance",
        group,
        interface["NetworkInterface"]["NetworkInterfaceId"],
    }
    assert volume["VolumeId"] in {one.id for one in report.leaks}
    assert report.possible == ()


def test_all_pages_of_a_listing_are_read_emulated(aws: Emulator) -> None:
    names = {f"serve-{number:02d}" for number in range(23)}  # the emulator returns ten per page
    sagemaker = aws.client("sagemaker")
    for name in names:
        sagemaker.create_endpoint_config(
            EndpointConfigName=name,
            ProductionVariants=[
                {
                    "VariantName": "a",
                    "ModelName": "m",
                    "ServerlessConfig": {"MemorySizeInMB": 1024, "MaxConcurrency": 1},
                }
            ],
        )
        sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name, Tags=pairs(OURS))
    found = audited(aws, "train").leaks
    assert {one.name for one in found} == names
    assert {one.bills for one in found} == {False}, "serverless endpoints bill for use alone"


def test_deleted_objects_are_no_longer_found_emulated(aws: Emulator) -> None:
    ec2 = aws.client("ec2")
    tags = spec("instance", OURS)
    made = ec2.run_instances(
        ImageId="ami-12345678", InstanceType="m5.large", MinCount=1, MaxCount=1, TagSpecifications=tags
    )
    node = made["Instances"][0]["InstanceId"]
    key = aws.client("kms").create_key(Tags=pairs(OURS, "TagKey", "TagValue"))["KeyMetadata"]["KeyId"]
    assert {one.kind for one in audited(aws, "train").leaks} == {"instance", "volume", "key"}
    ec2.terminate_instances(InstanceIds=[node])
    aws.client("kms").schedule_key_deletion(KeyId=key)
    assert {one.kind for one in audited(aws, "train").leaks} - {"volume"} == set()


def test_existing_objects_of_others_are_omitted_unless_they_have_the_tag_of_the_cluster_emulated(aws: Emulator) -> None:
    kms, iam = aws.client("kms"), aws.client("iam")
    theirs, ours = (
        kms.create_key()["KeyMetadata"],
        kms.create_key(Tags=pairs(OURS, "TagKey", "TagValue"))["KeyMetadata"],
    )
    kms.create_alias(AliasName="alias/train-secrets", TargetKeyId=theirs["KeyId"])
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    boundary = iam.create_policy(PolicyName="train-boundary", PolicyDocument=document)["Policy"]["Arn"]
    assert {one.id for one in audited(aws, "train").possible} == {theirs["KeyId"], boundary}
    report = audited(aws, "train", existing={theirs["KeyId"], ours["KeyId"], boundary})
    assert (report.possible, [one.id for one in report.leaks]) == ((), [ours["KeyId"]])


def test_bucket_key_is_kept_and_its_pending_deletion_is_a_leak_emulated(
    aws: Emulator,
) -> None:
    kms, s3, bucket = aws.client("kms"), aws.client("s3"), f"windlass-train-{ACCOUNT}"
    key, spare = (kms.create_key(Tags=pairs(OURS, "TagKey", "TagValue"))["KeyMetadata"]["KeyId"] for _ in range(2))
    kms.create_alias(AliasName="alias/windlass/train/bucket", TargetKeyId=key)
    s3.create_bucket(Bucket=bucket)
    rule = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "alias/windlass/train/bucket"}
    s3.put_bucket_encryption(
        Bucket=bucket,
        ServerSideEncryptionConfiguration={"Rules": [{"ApplyServerSideEncryptionByDefault": rule}]},
    )
    kms.schedule_key_deletion(KeyId=spare)
    report = audited(aws, "train")
    assert (report.leaks, report.is_clean) == ((), True), "a pending key that encrypts nothing is none"
    [kept] = [one for one in report.kept if one.kind == "key"]
    assert (kept.id, kept.bills, kept.detail) == (key, True, f"Enabled, encrypts s3://{bucket}")

    system = aws.client("efs").create_file_system(CreationToken="x", Encrypted=True, KmsKeyId=spare)["FileSystemId"]
    kms.schedule_key_deletion(KeyId=key, PendingWindowInDays=7)
    report = audited(aws, "train")
    assert not report.is_clean
    found = {one.id: one for one in report.leaks}
    assert set(found) == {key, spare}
    assert [found[key].bills, found[key].kept_on_purpose] == [False, False]
    assert f"encrypts s3://{bucket}" in found[key].detail
    assert found[key].detail.startswith("PendingDeletion until 20")
    assert f"encrypts {system}" in found[spare].detail
    assert f"aws kms cancel-key-deletion --key-id {key}" in found[key].remedy


def test_an_existing_vpc_is_never_claimed_while_the_cluster_exists_and_after_it_emulated(aws: Emulator) -> None:
    tags = {"Name": "shared-main", "karpenter.sh/discovery": "shared", "kubernetes.io/cluster/shared": "owned"}
    net = Network(aws, tags)
    of_others = plant(aws, net, "shop", {"team": "shop"})
    endpoint = aws.client("ec2").create_vpc_endpoint(
        VpcId=net.vpc,
        ServiceName="com.amazonaws.us-east-1.ecr.api",
        VpcEndpointType="Interface",
        SubnetIds=[net.subnet],
        TagSpecifications=spec("vpc-endpoint", {"Name": "shared-ecr", **tags}),
    )["VpcEndpoint"]["VpcEndpointId"]
    group = aws.client("ec2").create_security_group(
        GroupName="shared-node",
        Description="d",
        VpcId=net.vpc,
        TagSpecifications=spec("security-group", {"windlass.dev/cluster": "shared"}),
    )["GroupId"]
    theirs = {net.vpc, net.subnet, net.other_subnet, net.table, net.gateway, net.group, endpoint, *of_others.values()}

    known = ClusterNetwork(existing_vpc_id=net.vpc)
    for report in (audited(aws, "shared", network=known), audited(aws, "gone", network=known)):
        assert theirs.isdisjoint({one.id for one in report.found})
    assert [one.id for one in audited(aws, "shared", network=known).found] == [group]

    make_cluster(aws, "shared", net, {"windlass.dev/existing-vpc": net.vpc})
    assert theirs.isdisjoint({one.id for one in audited(aws, "shared").found}), "another machine has no outputs"
