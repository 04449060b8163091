"""Finders select the right objects from recorded responses that no emulator gives."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tests.clusters.audit.recorded import found

from windlass.clusters.audit.report import PriceKey
from windlass.clusters.audit.scope import Scope
from windlass.clusters.aws import NotThere

SCOPE = Scope("train", "us-east-1", "123456789012", is_ours=True, vpc_ids=frozenset({"vpc-1"}))
FOREIGN = replace(SCOPE, is_ours=False, vpc_ids=frozenset())
OWNED = [{"Key": "kubernetes.io/cluster/train", "Value": "owned"}]


def instance(**more: Any) -> dict[str, Any]:
    return {"InstanceId": "i-1", "State": {"Name": "running"}, "InstanceType": "g5.xlarge", "Tags": OWNED, **more}


def instances(*each: dict[str, Any]) -> dict[str, Any]:
    return {"ec2.describe_instances": [{"Instances": list(each)}]}


def test_a_spot_node_of_karpenter_bills_by_the_spot_price_and_its_public_address() -> None:
    tags = [*OWNED, {"Key": "karpenter.sh/nodepool", "Value": "gpu"}]
    address = {"Association": {"IpOwnerId": "amazon", "PublicIp": "3.3.3.3"}}
    node = instance(Tags=tags, InstanceLifecycle="spot", NetworkInterfaces=[address])
    [one] = found("instance", FOREIGN, instances(node))
    assert one.price_keys == (PriceKey("ec2-spot", "hour", "g5.xlarge", 1.0), PriceKey("public-ipv4", "hour", "", 1.0))
    assert one.detail == "made by Karpenter, running, g5.xlarge, spot"
    assert one.remedy == "aws ec2 terminate-instances --instance-ids i-1 --region us-east-1"


def test_stopped_and_capacity_block_instances_do_not_bill_and_terminated_ones_are_skipped() -> None:
    stopped, block = instance(State={"Name": "stopped"}), instance(InstanceLifecycle="capacity-block")
    ended = instance(State={"Name": "terminated"})
    rows = found("instance", FOREIGN, instances(stopped, block, ended))
    assert [one.bills for one in rows] == [False, False]
    assert "paid in advance" in rows[1].detail


def test_capacity_reservations_bill_for_unused_capacity_and_blocks_do_not() -> None:
    ends = datetime(2026, 12, 1, 11, 30, tzinfo=UTC)
    common = {"InstanceType": "p5.48xlarge", "TotalInstanceCount": 4, "State": "active", "Tags": OWNED}
    on_demand = {**common, "CapacityReservationId": "cr-1", "AvailableInstanceCount": 3}
    block = {**on_demand, "CapacityReservationId": "cr-2", "ReservationType": "capacity-block", "EndDate": ends}
    over = {**on_demand, "CapacityReservationId": "cr-3", "State": "expired"}
    rows = found("capacity reservation", FOREIGN, {"ec2.describe_capacity_reservations": [on_demand, block, over]})
    assert [one.price_keys for one in rows] == [(PriceKey("ec2-reservation", "hour", "p5.48xlarge", 3.0),), ()]
    assert rows[1].detail == "4 x p5.48xlarge, 3 unused, capacity block, paid in advance until 2026-12-01 11:30 UTC"


def test_volumes_bill_for_iops_and_throughput_beyond_the_free_amount() -> None:
    volume = {
        "VolumeId": "vol-1",
        "State": "available",
        "Size": 500,
        "VolumeType": "gp3",
        "Iops": 4000,
        "Throughput": 725,
        "Tags": OWNED,
    }
    [one] = found("volume", FOREIGN, {"ec2.describe_volumes": [volume]})
    assert one.price_keys == (
        PriceKey("ebs", "GiB-month", "gp3", 500.0),
        PriceKey("ebs", "IOPS-month", "gp3", 1000.0),
        PriceKey("ebs", "MiBps-month", "gp3", 600.0),
    )


def test_untagged_volume_belongs_to_the_cluster_of_its_instance() -> None:
    claim = [{"Key": "kubernetes.io/created-for/pvc/name", "Value": "data"}]
    plain = {"State": "in-use", "Size": 1, "VolumeType": "gp3"}
    volumes = [
        {**plain, "VolumeId": "vol-ours", "Attachments": [{"InstanceId": "i-1"}]},
        {**plain, "VolumeId": "vol-theirs", "Tags": claim, "Attachments": [{"InstanceId": "i-2"}]},
        {**plain, "VolumeId": "vol-orphan", "Tags": claim},
        {**plain, "VolumeId": "vol-none"},
    ]
    scope = replace(FOREIGN, instance_ids=frozenset({"i-1"}), other_instance_ids=frozenset({"i-2"}))
    rows = found("volume", scope, {"ec2.describe_volumes": volumes})
    assert [(one.id, one.is_certain) for one in rows] == [("vol-ours", True), ("vol-orphan", False)]


def test_interfaces_are_recognized_by_description_instance_and_security_group() -> None:
    def interface(id: str, **more: Any) -> dict[str, Any]:
        return {"NetworkInterfaceId": id, "VpcId": "vpc-shared", "Status": "in-use", "Groups": [], **more}

    interfaces = [
        interface("eni-eks", Description="Amazon EKS train", RequesterManaged=True),
        interface("eni-eks2", Description="Amazon EKS train-2"),
        interface("eni-cni", Description="aws-K8S-i-0abc"),
        interface("eni-cni2", Description="aws-K8S-i-0def"),
        interface("eni-lb", Description="ELB net/k8s-x/1", Groups=[{"GroupId": "sg-1"}]),
        interface("eni-node", Attachment={"InstanceId": "i-0abc", "DeleteOnTermination": True}),
        interface("eni-other", Groups=[{"GroupId": "sg-1"}], TagSet=[{"Key": "eks:cluster-name", "Value": "other"}]),
    ]
    scope = replace(FOREIGN, instance_ids=frozenset({"i-0abc"}), security_group_ids=frozenset({"sg-1"}))
    rows = found("network interface", scope, {"ec2.describe_network_interfaces": interfaces})
    assert [one.id for one in rows] == ["eni-eks", "eni-cni", "eni-lb"]
    assert rows[0].remedy.startswith("goes with")


def test_address_belongs_to_the_cluster_of_its_interface() -> None:
    answers = {
        "ec2.describe_addresses": [
            {"AllocationId": "eipalloc-1", "PublicIp": "3.3.3.3", "NetworkInterfaceId": "eni-1"},
            {"AllocationId": "eipalloc-2", "PublicIp": "4.4.4.4"},
        ],
        "ec2.describe_network_interfaces": [{"NetworkInterfaceId": "eni-1", "VpcId": "vpc-1"}],
    }
    [one] = found("elastic IP address", SCOPE, answers)
    assert (one.id, one.detail) == ("eipalloc-1", "3.3.3.3, used by eni-1")


def test_classic_load_balancers_are_found_by_the_tag_of_the_cloud_provider() -> None:
    balancer = {"LoadBalancerName": "a0123", "VPCId": "vpc-9", "DNSName": "a0123.elb.amazonaws.com"}
    answers = {
        "elb.describe_load_balancers": [balancer],
        "elb.describe_tags": {"TagDescriptions": [{"LoadBalancerName": "a0123", "Tags": OWNED}]},
    }
    [one] = found("classic load balancer", FOREIGN, answers)
    assert one.price_keys == (PriceKey("elb", "hour", "classic", 1.0),)


def test_gateway_endpoints_do_not_bill_and_interface_endpoints_bill_in_each_zone() -> None:
    endpoints = [
        {"VpcEndpointId": "vpce-1", "VpcId": "vpc-1", "VpcEndpointType": "Gateway", "State": "available"},
        {"VpcEndpointId": "vpce-2", "VpcId": "vpc-1", "VpcEndpointType": "Interface", "SubnetIds": ["a", "b", "c"]},
        {"VpcEndpointId": "vpce-3", "VpcId": "vpc-1", "VpcEndpointType": "Interface", "State": "deleting"},
    ]
    rows = found("VPC endpoint", SCOPE, {"ec2.describe_vpc_endpoints": endpoints})
    assert [one.price_keys for one in rows] == [(), (PriceKey("vpc-endpoint", "hour", "interface", 3.0),)]


def test_file_systems_bill_by_storage_class() -> None:
    gib = 1024**3
    size = {"Value": 7 * gib, "ValueInStandard": 4 * gib, "ValueInIA": 2 * gib, "ValueInArchive": gib}
    system = {
        "FileSystemId": "fs-1",
        "SizeInBytes": size,
        "Tags": OWNED,
        "ThroughputMode": "provisioned",
        "ProvisionedThroughputInMibps": 100.0,
    }
    [one] = found("file system", FOREIGN, {"efs.describe_file_systems": [system]}, "efs")
    assert [(key.unit, key.dimension, key.quantity) for key in one.price_keys] == [
        ("GiB-month", "standard", 4.0),
        ("GiB-month", "ia", 2.0),
        ("GiB-month", "archive", 1.0),
        ("MiBps-month", "provisioned", 100.0),
    ]


def test_backup_is_recognized_by_its_deleted_file_system() -> None:
    gone = {"FileSystemId": "fs-1", "FileSystemType": "LUSTRE", "Tags": OWNED, "VpcId": "vpc-9"}
    backup = {"BackupId": "backup-1", "Lifecycle": "AVAILABLE", "FileSystem": gone}
    [one] = found("backup", FOREIGN, {"fsx.describe_backups": [backup]})
    assert one.price_keys == (PriceKey("fsx-backup", "GiB-month", "LUSTRE", None),)


def test_keys_pending_deletion_and_aws_keys_are_not_leaks() -> None:
    answers = {
        "kms.list_aliases": [{"AliasName": "alias/aws/ebs", "TargetKeyId": "k-aws"}],
        "kms.list_keys": [{"KeyId": "k-aws"}, {"KeyId": "k-1"}],
        "kms.describe_key": {"KeyMetadata": {"KeyManager": "CUSTOMER", "KeyState": "PendingDeletion"}},
        "kms.list_resource_tags": {"windlass.dev/cluster": "train"},
    }
    assert found("key", SCOPE, answers) == []
    answers["kms.describe_key"] = {"KeyMetadata": {"KeyManager": "CUSTOMER", "KeyState": "Disabled"}}
    [one] = found("key", SCOPE, answers)
    assert (one.id, one.price_keys) == ("k-1", (PriceKey("kms", "month", "key", 1.0),))


def test_key_of_a_bucket_without_default_encryption_is_kept_with_the_bucket() -> None:
    """A destroy that fails to delete the bucket has deleted the encryption that names the key of its objects."""
    tags = {"windlass.dev/cluster": "train", "Name": "train-bucket"}
    answers: dict[str, Any] = {
        "kms.list_keys": [{"KeyId": "k-1"}],
        "kms.describe_key": {"KeyMetadata": {"KeyManager": "CUSTOMER", "KeyState": "Enabled"}},
        "kms.list_resource_tags": tags,
        "s3.list_buckets": [{"Name": "results"}],
        "s3.get_bucket_tagging": {"windlass.dev/cluster": "train"},
    }
    [one] = found("key", SCOPE, answers)
    assert (one.kept_on_purpose, one.detail) == (True, "Enabled, encrypts s3://results")
    assert one.remedy.startswith("delete what it encrypts, then: ")

    answers["kms.describe_key"] = {"KeyMetadata": {"KeyManager": "CUSTOMER", "KeyState": "PendingDeletion"}}
    [ending] = found("key", SCOPE, answers)
    assert (ending.kept_on_purpose, "kms cancel-key-deletion" in ending.remedy) == (False, True)

    answers["s3.get_bucket_tagging"] = {"windlass.dev/cluster": "other"}
    assert found("key", SCOPE, answers) == []
    answers["s3.get_bucket_tagging"] = {"windlass.dev/cluster": "train"}
    default = {"ApplyServerSideEncryptionByDefault": {"KMSMasterKeyID": "k-2"}}
    answers["s3.get_bucket_encryption"] = {"ServerSideEncryptionConfiguration": {"Rules": [default]}}
    assert found("key", SCOPE, answers) == [], "a later key encrypts the bucket"


def test_karpenter_instance_profiles_are_recognized_by_path_and_name() -> None:
    profiles = [
        {"InstanceProfileName": "x", "Path": "/karpenter/us-east-1/train/default/"},
        {"InstanceProfileName": "y", "Path": "/karpenter/us-east-1/train-2/default/"},
        {"InstanceProfileName": "train_17046340434587383427", "Path": "/"},
        {"InstanceProfileName": "other", "Path": "/"},
    ]
    rows = found("instance profile", FOREIGN, {"iam.list_instance_profiles": profiles})
    assert [one.id for one in rows] == ["x", "train_17046340434587383427"]


def test_cluster_security_group_is_recognized_by_its_eks_name() -> None:
    groups = [
        {"GroupId": "sg-1", "GroupName": "eks-cluster-sg-train-1234567", "VpcId": "vpc-9"},
        {"GroupId": "sg-2", "GroupName": "eks-cluster-sg-train-2-1234567", "VpcId": "vpc-9"},
        {"GroupId": "sg-3", "GroupName": "default", "VpcId": "vpc-1"},
    ]
    rows = found("security group", FOREIGN, {"ec2.describe_security_groups": groups})
    assert [one.id for one in rows] == ["sg-1"]


def test_log_groups_are_recognized_by_whole_name_components() -> None:
    names = [
        "/aws/eks/train/cluster",
        "/aws/eks/train-2/cluster",
        "/aws/containerinsights/train/performance",
        "/aws/lambda/train",
    ]
    groups = [{"logGroupName": name, "arn": f"arn:{name}:*", "storedBytes": 1024**3} for name in names]
    rows = found("log group", FOREIGN, {"logs.describe_log_groups": groups})
    assert [one.id for one in rows] == [names[0], names[2]]
    assert rows[0].price_keys == (PriceKey("logs", "GiB-month", "", 1.0),)


def test_training_job_is_recognized_by_its_role() -> None:
    resources = {"InstanceType": "ml.g5.xlarge", "InstanceCount": 2}
    answers = {
        "sagemaker.list_training_jobs": [{"TrainingJobName": "j", "TrainingJobArn": "arn:j"}],
        "sagemaker.describe_training_job": {
            "RoleArn": "arn:aws:iam::1:role/train-sagemaker",
            "ResourceConfig": resources,
        },
    }
    [one] = found("training job in progress", SCOPE, answers)
    assert one.price_keys == (PriceKey("sagemaker-training", "hour", "ml.g5.xlarge", 2.0),)
    assert found("training job in progress", FOREIGN, answers) == []


def test_stopping_jobs_and_transform_jobs_of_models_with_the_role_of_the_cluster_bill() -> None:
    role = {"ExecutionRoleArn": "arn:aws:iam::1:role/train-sagemaker"}
    resources = {"InstanceType": "ml.g5.xlarge", "InstanceCount": 2}
    answers: dict[str, Any] = {
        "sagemaker.list_transform_jobs": [
            {"TransformJobName": "t", "TransformJobArn": "arn:t", "TransformJobStatus": "InProgress"},
            {"TransformJobName": "s", "TransformJobArn": "arn:s", "TransformJobStatus": "Stopping"},
        ],
        "sagemaker.describe_transform_job": {"ModelName": "m", "TransformResources": resources},
        "sagemaker.describe_model": role,
    }
    rows = found("transform job in progress", SCOPE, answers)
    assert [one.id for one in rows] == ["t", "s"]
    assert rows[0].price_keys == (PriceKey("sagemaker-transform", "hour", "ml.g5.xlarge", 2.0),)
    answers["sagemaker.describe_model"] = {"ExecutionRoleArn": "arn:aws:iam::1:role/other"}
    assert found("transform job in progress", SCOPE, answers) == []


def test_running_endpoint_without_its_configuration_or_model_may_be_of_the_cluster_and_bills() -> None:
    """SageMaker then reports neither its role nor its instance type."""
    variant = {"VariantName": "a", "CurrentInstanceCount": 2}
    answers: dict[str, Any] = {
        "sagemaker.list_endpoints": [{"EndpointName": "digits", "EndpointArn": "a", "EndpointStatus": "InService"}],
        "sagemaker.describe_endpoint": {"EndpointConfigName": "c", "ProductionVariants": [variant]},
        "sagemaker.describe_endpoint_config": NotThere("no configuration"),
    }
    [one] = found("endpoint", SCOPE, answers)
    assert (one.is_certain, one.bills, one.detail) == (False, True, "InService, 2 x ?")
    assert one.price_keys == (PriceKey("sagemaker-hosting", "hour", "", 2.0),)
    assert found("endpoint", FOREIGN, answers) == []
    assert found("endpoint", SCOPE, answers | {"sagemaker.list_tags": {"windlass.dev/cluster": "other"}}) == []

    made = {"ModelName": "m", "VariantName": "a", "InstanceType": "ml.g5.2xlarge", "InitialInstanceCount": 1}
    answers["sagemaker.describe_endpoint_config"] = {"ProductionVariants": [made]}
    answers["sagemaker.describe_model"] = NotThere("no model")
    [one] = found("endpoint", SCOPE, answers)
    assert (one.is_certain, one.detail) == (False, "InService, 2 x ml.g5.2xlarge")
    answers["sagemaker.describe_model"] = {"ExecutionRoleArn": "arn:aws:iam::1:role/other"}
    assert found("endpoint", SCOPE, answers) == []


def test_hyperpod_cluster_is_recognized_by_its_orchestrator() -> None:
    arn = "arn:aws:eks:us-east-1:123456789012:cluster/train"
    answers = {
        "sagemaker.list_clusters": [{"ClusterName": "pod", "ClusterArn": "arn:pod", "ClusterStatus": "InService"}],
        "sagemaker.describe_cluster": {
            "Orchestrator": {"Eks": {"ClusterArn": arn}},
            "InstanceGroups": [{"InstanceType": "ml.p5.48xlarge", "CurrentCount": 8}],
        },
    }
    [one] = found("HyperPod cluster", FOREIGN, answers)
    assert one.price_keys == (PriceKey("sagemaker-hyperpod", "hour", "ml.p5.48xlarge", 8.0),)
    other = replace(FOREIGN, name="rain")
    assert found("HyperPod cluster", other, answers) == []


def test_external_text_is_sanitized_and_quoted() -> None:
    tags = [*OWNED, {"Key": "Name", "Value": "a\x1b[31m\nb"}]
    group = {"AutoScalingGroupName": "a; rm -rf ~\n", "Tags": tags}
    [one] = found("autoscaling group", FOREIGN, {"autoscaling.describe_auto_scaling_groups": [group]})
    assert one.name == "a�[31m�b"
    assert one.remedy.endswith("--auto-scaling-group-name 'a; rm -rf ~�' --region us-east-1")
