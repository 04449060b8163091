"""An audit finds leftovers without Windlass tags by role, subnet, origin and name (emulated), and detects bad
responses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from tests.clusters.audit.planted import Network, pairs, spec
from tests.fakeaws.emulator import ACCOUNT, REGION, Emulator, emulated_aws
from tests.fakeaws.emulator.fixtures import shared_aws
from tests.servers.faulty import FORBIDDEN, HTML, Fault, fault_proxy

from windlass.clusters.audit import AuditReport, audit
from windlass.clusters.audit.finders import FINDERS
from windlass.clusters.aws import Aws

__all__ = ["shared_aws"]
pytestmark = pytest.mark.slow

OURS: Final = {"windlass.dev/cluster": "train"}
OTHERS: Final = {"windlass.dev/cluster": "train-2"}
RUN: Final = f"arn:aws:iam::{ACCOUNT}:role/train-run"
SAGEMAKER: Final = f"arn:aws:iam::{ACCOUNT}:role/train-sagemaker"
STRANGER: Final = f"arn:aws:iam::{ACCOUNT}:role/shop"


@dataclass(frozen=True)
class Account:
    """An account with leftovers of `train` that lack its tag, and the same kinds of objects of others."""

    aws: Emulator
    net: Network
    leaks: dict[str, str]
    """Evidence for the cluster's ownership, with the object id."""
    possible: dict[str, str]
    others: set[str]
    recorded: list[str]
    """Volumes recorded by an earlier command; one has been deleted since."""

    def audited(self) -> AuditReport:
        with Aws(environ=self.aws.environ) as client:
            return audit("train", client, is_ours=True, volume_ids=self.recorded, volume_names=["pvc-1"])


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    with emulated_aws(tmp_path_factory.mktemp("aws")) as aws:
        net = Network(aws, OURS)
        volumes = Volumes(aws)
        leaks = {**of_sagemaker(aws, net, "a", SAGEMAKER), **volumes.leaks, **of_ec2(aws, net), **of_names(aws)}
        possible = {
            "notebook by a role of a like name": notebook(aws, "like", f"arn:aws:iam::{ACCOUNT}:role/train-annotators"),
            "secret by name": secret(aws, "train/database", {}),
            "address by name": address(aws, {"Name": "train-old"}),
        }
        others = {
            *of_sagemaker(aws, Network(aws, OTHERS), "b", STRANGER).values(),
            notebook(aws, "theirs", RUN, OTHERS),
            secret(aws, "train-2/database", OTHERS),
            secret(aws, "shop", {}),
            volumes.theirs,
            address(aws, {"Name": "train-eip", **OTHERS}),
        }
        yield Account(aws, net, leaks, possible, others, [volumes.gone, volumes.left])


class Volumes:
    """Volumes and snapshots: of a claim, of a deleted volume, and of a volume that the cluster still has."""

    def __init__(self, aws: Emulator) -> None:
        ec2 = aws.client("ec2")

        def volume(tags: dict[str, str]) -> str:
            made = ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=9, TagSpecifications=spec("volume", tags))
            return str(made["VolumeId"])

        def snapshot(of: str) -> str:
            return str(ec2.create_snapshot(VolumeId=of)["SnapshotId"])

        claimed = volume({"kubernetes.io/created-for/pv/name": "pvc-1"})
        self.gone, self.left = volume({}), volume({})
        self.theirs = snapshot(volume(OTHERS))
        self.leaks = {
            "volume by its PersistentVolume": claimed,
            "snapshot of that": snapshot(claimed),
            "snapshot of a tagged volume": snapshot(volume(OURS)),
            "recorded volume": self.left,
            "snapshot of a recorded volume that is deleted": snapshot(self.gone),
        }
        ec2.delete_volume(VolumeId=self.gone)


def notebook(aws: Emulator, name: str, role: str, tags: dict[str, str] | None = None, **more: Any) -> str:
    aws.client("sagemaker").create_notebook_instance(
        NotebookInstanceName=name, InstanceType="ml.t3.medium", RoleArn=role, Tags=pairs(tags or {}), **more
    )
    return name


def of_sagemaker(aws: Emulator, net: Network, prefix: str, role: str) -> dict[str, str]:
    sagemaker = aws.client("sagemaker")
    network = {"Subnets": [net.subnet], "SecurityGroupIds": [net.group]}
    notebook(aws, f"{prefix}-book", role)
    notebook(aws, f"{prefix}-book-2", STRANGER, SubnetId=net.other_subnet)
    sagemaker.create_model(ModelName=f"{prefix}-model", ExecutionRoleArn=role)
    variant = {
        "VariantName": "a",
        "ModelName": f"{prefix}-model",
        "InstanceType": "ml.g5.xlarge",
        "InitialInstanceCount": 1,
    }
    sagemaker.create_endpoint_config(EndpointConfigName=f"{prefix}-serve", ProductionVariants=[variant])
    sagemaker.create_endpoint(EndpointName=f"{prefix}-serve", EndpointConfigName=f"{prefix}-serve")
    for name, of, more in ((f"{prefix}-job", role, {}), (f"{prefix}-job-2", STRANGER, {"VpcConfig": network})):
        sagemaker.create_training_job(
            TrainingJobName=name,
            RoleArn=of,
            OutputDataConfig={"S3OutputPath": "s3://bucket/out"},
            **more,
            AlgorithmSpecification={"TrainingImage": "image", "TrainingInputMode": "File"},
            ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
            StoppingCondition={"MaxRuntimeInSeconds": 60},
        )
    sagemaker.create_processing_job(
        ProcessingJobName=f"{prefix}-process",
        RoleArn=role,
        AppSpecification={"ImageUri": "image"},
        ProcessingResources={
            "ClusterConfig": {"InstanceCount": 3, "InstanceType": "ml.m5.xlarge", "VolumeSizeInGB": 9}
        },
    )
    domain = sagemaker.create_domain(
        DomainName=f"{prefix}-studio",
        AuthMode="IAM",
        SubnetIds=["subnet-0"],
        VpcId="vpc-0",
        DefaultUserSettings={"ExecutionRole": role},
    )["DomainId"]
    sagemaker.create_cluster(
        ClusterName=f"{prefix}-pod",
        InstanceGroups=[
            {
                "InstanceCount": 2,
                "InstanceGroupName": "gpu",
                "InstanceType": "ml.p5.48xlarge",
                "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-x", "OnCreate": "on_create.sh"},
                "ExecutionRole": role,
            }
        ],
    )
    return {
        "notebook by role": f"{prefix}-book",
        "notebook by subnet": f"{prefix}-book-2",
        "endpoint by the role of its model": f"{prefix}-serve",
        "training job by role": f"{prefix}-job",
        "training job by subnet": f"{prefix}-job-2",
        "processing job by role": f"{prefix}-process",
        "domain by role": str(domain),
        "HyperPod by role": f"{prefix}-pod",
    }


def of_ec2(aws: Emulator, net: Network) -> dict[str, str]:
    ec2, iam = aws.client("ec2"), aws.client("iam")
    iam.create_instance_profile(InstanceProfileName="train-karpenter-node")
    node = ec2.run_instances(
        ImageId="ami-12345678",
        InstanceType="g5.xlarge",
        MinCount=1,
        MaxCount=1,
        IamInstanceProfile={"Name": "train-karpenter-node"},
    )["Instances"][0]["InstanceId"]
    bare = ec2.run_instances(
        ImageId="ami-12345678", InstanceType="g5.xlarge", MinCount=1, MaxCount=1, SubnetId=net.subnet
    )["Instances"][0]["InstanceId"]
    efs = aws.client("efs").create_file_system(CreationToken="no-name")["FileSystemId"]
    aws.client("efs").create_mount_target(FileSystemId=efs, SubnetId=net.subnet)
    fsx = aws.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[net.subnet],
        LustreConfiguration={"DeploymentType": "SCRATCH_2"},
    )["FileSystem"]["FileSystemId"]
    nat = ec2.create_nat_gateway(SubnetId=net.subnet, AllocationId=address(aws, {}))["NatGateway"]["NatGatewayId"]
    balancer = aws.client("elbv2").create_load_balancer(Name="k8s-web", Type="network", Subnets=[net.subnet])
    image = ec2.create_snapshot(
        VolumeId=ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=8)["VolumeId"],
        Description=f"Created by CreateImage({bare}) for ami-0abc",
    )["SnapshotId"]
    return {
        "instance by instance profile": node,
        "instance by subnet": bare,
        "EFS by the subnet of a mount target": efs,
        "FSx by subnet": fsx,
        "NAT gateway by VPC": nat,
        "snapshot of an image of a node": image,
        "load balancer by VPC": balancer["LoadBalancers"][0]["LoadBalancerArn"],
    }


def of_names(aws: Emulator) -> dict[str, str]:
    ssm = aws.client("ssm")
    ssm.put_parameter(Name="/shop/token", Value="x", Type="String", Tier="Advanced", Tags=pairs(OURS))
    aws.client("logs").create_log_group(logGroupName="/aws/eks/train/cluster")
    return {
        "secret by tag": secret(aws, "database", OURS),
        "parameter by tag": "/shop/token",
        "log group by the name that EKS gives": "/aws/eks/train/cluster",
    }


def secret(aws: Emulator, name: str, tags: dict[str, str]) -> str:
    made = aws.client("secretsmanager").create_secret(Name=name, SecretString="x", Tags=pairs(tags))
    return str(made["ARN"])


def address(aws: Emulator, tags: dict[str, str]) -> str:
    made = aws.client("ec2").allocate_address(Domain="vpc", TagSpecifications=spec("elastic-ip", tags))
    return str(made["AllocationId"])


def test_untagged_leftovers_are_found_by_what_they_use_emulated(account: Account) -> None:
    report = account.audited()
    certain = {one.id: one.reason for one in report.leaks}
    assert len(account.leaks) >= 20
    assert {kind: id for kind, id in account.leaks.items() if id not in certain} == {}
    assert account.others & {one.id for one in report.found} == set()
    assert report.unknown == ()
    assert not report.is_clean


def test_object_found_by_name_only_is_possible_and_not_clean_emulated(account: Account) -> None:
    report = account.audited()
    possible = {one.id for one in report.possible}
    assert set(account.possible.values()) <= possible
    assert all(one.bills for one in report.possible if one.id in account.possible.values())


EMPTY: Final = Fault(status=200)
LATE: Final = Fault(delay_seconds=30)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(FORBIDDEN, id="403"),
        pytest.param(HTML, id="html"),
        pytest.param(EMPTY, id="nothing"),
        pytest.param(LATE, id="late", marks=pytest.mark.nightly),
        pytest.param(Fault(loses_answer=True), id="lost", marks=pytest.mark.nightly),
    ],
)
def test_service_with_bad_or_late_responses_is_unknown_and_never_clean_emulated(
    shared_aws: Emulator, fault: Fault
) -> None:
    """Every response is late, or would parse as an empty list but does not come from AWS."""
    with fault_proxy(int(shared_aws.url.rpartition(":")[2])) as proxy:
        environ = {**shared_aws.environ, "AWS_ENDPOINT_URL": proxy.endpoint}
        with Aws(environ=environ) as client:
            assert client.identity.account_id == ACCOUNT
        with Aws(environ=environ, read_seconds=1, attempts=0) as lied_to:
            lied_to.identity = client.identity
            proxy.fault = lambda _request: fault
            report = audit("never-was", lied_to, is_ours=True)
    assert report.found == ()
    assert {one.kind for one in FINDERS} - {one.kind for one in report.unknown} == set()
    assert not report.is_clean
