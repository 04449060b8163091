"""The emulator's extensions respond like AWS."""

from __future__ import annotations

import json
from typing import Any

import botocore.exceptions
import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.httpsession import URLLib3Session
from tests.fakeaws.emulator import Emulator
from tests.fakeaws.emulator.fixtures import shared_aws  # noqa: F401

TRUST = '{"Version": "2012-10-17", "Statement": []}'


@pytest.fixture
def aws(shared_aws: Emulator) -> Emulator:  # noqa: F811
    return shared_aws


def subnet_in(aws: Emulator) -> tuple[str, str]:
    """Creates a VPC with a subnet; returns their ids."""
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    return vpc, ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20")["Subnet"]["SubnetId"]


def cluster_in(aws: Emulator, name: str) -> dict[str, Any]:
    _vpc, subnet = subnet_in(aws)
    role = aws.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
    asked = {"roleArn": role, "resourcesVpcConfig": {"subnetIds": [subnet]}, "version": "1.34"}
    eks = aws.client("eks")
    eks.create_cluster(name=name, upgradePolicy={"supportType": "STANDARD"}, **asked)
    described: dict[str, Any] = eks.describe_cluster(name=name)["cluster"]
    return described


@pytest.mark.slow
def test_emulated_cluster_has_a_security_group_that_is_deleted_with_it(aws: Emulator) -> None:
    cluster = cluster_in(aws, "one")
    assert cluster["upgradePolicy"] == {"supportType": "STANDARD"}
    assert cluster["identity"]["oidc"]["issuer"].startswith("https://")
    group = cluster["resourcesVpcConfig"]["clusterSecurityGroupId"]
    found = aws.client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"][0]
    assert found["VpcId"] == cluster["resourcesVpcConfig"]["vpcId"]
    aws.client("eks").delete_cluster(name="one")
    with pytest.raises(botocore.exceptions.ClientError, match=r"InvalidGroup.NotFound"):
        aws.client("ec2").describe_security_groups(GroupIds=[group])


def test_an_emulated_node_group_keeps_its_launch_template_and_changes(aws: Emulator) -> None:
    cluster = cluster_in(aws, "two")
    template = aws.client("ec2").create_launch_template(LaunchTemplateName="two", LaunchTemplateData={})
    eks = aws.client("eks")
    group = {"clusterName": "two", "nodegroupName": "gpu"}
    eks.create_nodegroup(
        **group,
        nodeRole=cluster["roleArn"],
        subnets=cluster["resourcesVpcConfig"]["subnetIds"],
        capacityType="CAPACITY_BLOCK",
        launchTemplate={"id": template["LaunchTemplate"]["LaunchTemplateId"], "version": "1"},
    )
    update = eks.update_nodegroup_config(
        **group, scalingConfig={"maxSize": 9}, labels={"addOrUpdateLabels": {"a": "b"}}
    )
    answer = eks.describe_update(name="two", nodegroupName="gpu", updateId=update["update"]["id"])
    assert answer["update"]["status"] == "Successful"
    described = eks.describe_nodegroup(**group)["nodegroup"]
    assert described["launchTemplate"]["name"] == "two"
    assert described["capacityType"] == "CAPACITY_BLOCK"
    assert (described["scalingConfig"]["maxSize"], described["labels"]) == (9, {"a": "b"})
    with pytest.raises(eks.exceptions.ResourceInUseException):
        eks.delete_cluster(name="two")


def test_an_emulated_cluster_is_upgraded_by_one_minor_version_only(aws: Emulator) -> None:
    cluster_in(aws, "three")
    eks = aws.client("eks")
    with pytest.raises(eks.exceptions.InvalidParameterException):
        eks.update_cluster_version(name="three", version="1.36")
    eks.update_cluster_version(name="three", version="1.35")
    assert eks.describe_cluster(name="three")["cluster"]["version"] == "1.35"


def test_an_emulated_launch_template_keeps_every_field(aws: Emulator) -> None:
    ec2 = aws.client("ec2")
    interfaces = [
        {"DeviceIndex": 0, "NetworkCardIndex": 0, "InterfaceType": "efa", "Groups": ["sg-1", "sg-2"]},
        {"DeviceIndex": 1, "NetworkCardIndex": 1, "InterfaceType": "efa-only", "Groups": ["sg-2"]},
    ]
    data = {
        "NetworkInterfaces": interfaces,
        "Placement": {"GroupName": "gpu"},
        "InstanceMarketOptions": {"MarketType": "capacity-block"},
        "CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}},
        "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"KmsKeyId": "key", "Throughput": 600}}],
    }
    ec2.create_launch_template(LaunchTemplateName="all", LaunchTemplateData=data)
    versions = ec2.describe_launch_template_versions(LaunchTemplateName="all", Versions=["$Latest"])
    assert versions["LaunchTemplateVersions"][0]["LaunchTemplateData"] == data


def test_an_emulated_flow_log_keeps_its_role_and_tags(aws: Emulator) -> None:
    vpc, _subnet = subnet_in(aws)
    ec2 = aws.client("ec2")
    tags = [{"Key": "a", "Value": "b"}]
    ec2.create_flow_logs(
        ResourceIds=[vpc],
        ResourceType="VPC",
        TrafficType="REJECT",
        LogGroupName="flow",
        MaxAggregationInterval=60,
        DeliverLogsPermissionArn="arn:aws:iam::123456789012:role/flow",
        TagSpecifications=[{"ResourceType": "vpc-flow-log", "Tags": tags}],
    )
    (found,) = ec2.describe_flow_logs(Filters=[{"Name": "resource-id", "Values": [vpc]}])["FlowLogs"]
    assert (found["MaxAggregationInterval"], found["Tags"], found["LogGroupName"]) == (60, tags, "flow")


def test_emulated_services_repeat_a_lost_response(aws: Emulator) -> None:
    """This also holds for services without client tokens."""
    _vpc, subnet = subnet_in(aws)
    efs = aws.client("efs")
    id = efs.create_file_system(CreationToken="a")["FileSystemId"]
    sent: list[AWSPreparedRequest] = []
    efs.meta.events.register("before-send.efs.CreateMountTarget", lambda request, **_: sent.append(request))
    made = efs.create_mount_target(FileSystemId=id, SubnetId=subnet)["MountTargetId"]
    with pytest.raises(efs.exceptions.MountTargetConflict):
        efs.create_mount_target(FileSystemId=id, SubnetId=subnet)
    first, refused = (URLLib3Session().send(one) for one in sent)
    assert (first.status_code, json.loads(first.content)["MountTargetId"]) == (200, made)
    assert refused.status_code == 409


def test_emulated_fsx_advances_its_states_and_forgets_deleted_objects(aws: Emulator) -> None:
    _vpc, subnet = subnet_in(aws)
    fsx = aws.client("fsx")
    created = fsx.create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[subnet],
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
    )["FileSystem"]
    name = created["FileSystemId"]
    assert [_state(fsx, name) for _ in range(3)] == ["CREATING", "AVAILABLE", "AVAILABLE"]
    association = fsx.create_data_repository_association(
        FileSystemId=name,
        FileSystemPath="/data",
        DataRepositoryPath="s3://bucket",
        S3={"AutoExportPolicy": {"Events": ["NEW", "CHANGED"]}},
    )["Association"]
    assert association["S3"]["AutoExportPolicy"]["Events"] == ["NEW", "CHANGED"]
    task = fsx.create_data_repository_task(FileSystemId=name, Type="EXPORT_TO_REPOSITORY", Report={"Enabled": False})[
        "DataRepositoryTask"
    ]["TaskId"]
    states = [fsx.describe_data_repository_tasks(TaskIds=[task])["DataRepositoryTasks"][0] for _ in range(3)]
    assert [state["Lifecycle"] for state in states] == ["PENDING", "EXECUTING", "SUCCEEDED"]
    backup = fsx.create_backup(FileSystemId=name, Tags=[{"Key": "a", "Value": "b"}])["Backup"]
    assert fsx.list_tags_for_resource(ResourceARN=backup["ResourceARN"])["Tags"] == [{"Key": "a", "Value": "b"}]
    fsx.delete_file_system(FileSystemId=name)
    assert _state(fsx, name) == "DELETING"
    with pytest.raises(fsx.exceptions.FileSystemNotFound):
        _state(fsx, name)
    assert [found["BackupId"] for found in fsx.describe_backups()["Backups"]] == [backup["BackupId"]]


def _state(fsx: Any, name: str) -> str:
    return str(fsx.describe_file_systems(FileSystemIds=[name])["FileSystems"][0]["Lifecycle"])
