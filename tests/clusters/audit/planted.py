"""Creates objects in an emulated account that a cluster leaves behind, and unrelated objects."""

from __future__ import annotations

from typing import Any

from tests.fakeaws.emulator import ACCOUNT, REGION, Emulator

Tags = dict[str, str]
TRUST = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, '
    '"Action": "sts:AssumeRole"}]}'
)
READ = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}'
ROLE = f"arn:aws:iam::{ACCOUNT}:role/service"


def pairs(tags: Tags, key: str = "Key", value: str = "Value") -> list[dict[str, str]]:
    return [{key: name, value: text} for name, text in tags.items()]


def spec(kind: str, tags: Tags) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": pairs(tags)}]


class Network:
    """A VPC with one subnet and one security group."""

    def __init__(self, aws: Emulator, tags: Tags) -> None:
        ec2 = aws.client("ec2")
        self.vpc: str = ec2.create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=spec("vpc", tags))["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(VpcId=self.vpc, CidrBlock="10.9.1.0/24", AvailabilityZone=f"{REGION}a")
        self.subnet: str = subnet["Subnet"]["SubnetId"]
        self.other_subnet: str = ec2.create_subnet(
            VpcId=self.vpc, CidrBlock="10.9.2.0/24", AvailabilityZone=f"{REGION}b"
        )["Subnet"]["SubnetId"]
        tables, gateways = spec("route-table", tags), spec("internet-gateway", tags)
        table = ec2.create_route_table(VpcId=self.vpc, TagSpecifications=tables)
        self.table: str = table["RouteTable"]["RouteTableId"]
        gateway = ec2.create_internet_gateway(TagSpecifications=gateways)
        self.gateway: str = gateway["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=self.gateway, VpcId=self.vpc)
        self.group: str = ec2.create_security_group(GroupName="nodes", Description="d", VpcId=self.vpc)["GroupId"]


def plant(aws: Emulator, net: Network, prefix: str, tags: Tags) -> dict[str, str]:
    """Creates one object of each kind, named `PREFIX-…` and tagged if possible; returns ids by kind.

    Objects without tags, such as the interface and the target group, are in the network.
    """
    return {
        **_compute(aws, net, prefix, tags),
        **_network(aws, net, prefix, tags),
        **_storage(aws, net, prefix, tags),
        **_identity(aws, prefix, tags),
        **_monitoring(aws, prefix, tags),
        **_sagemaker(aws, net, prefix, tags),
    }


def _compute(aws: Emulator, net: Network, prefix: str, tags: Tags) -> dict[str, str]:
    ec2 = aws.client("ec2")
    volume = ec2.create_volume(
        AvailabilityZone=f"{REGION}a",
        Size=200,
        VolumeType="gp3",
        Iops=4000,
        Throughput=600,
        TagSpecifications=spec("volume", tags),
    )["VolumeId"]
    instance = ec2.run_instances(
        ImageId="ami-12345678",
        InstanceType="m5.large",
        MinCount=1,
        MaxCount=1,
        SubnetId=net.subnet,
        TagSpecifications=spec("instance", tags),
    )["Instances"][0]["InstanceId"]
    template = ec2.create_launch_template(
        LaunchTemplateName=f"{prefix}-gpu",
        LaunchTemplateData={"InstanceType": "m5.large"},
        TagSpecifications=spec("launch-template", tags),
    )["LaunchTemplate"]["LaunchTemplateId"]
    placement = ec2.create_placement_group(
        GroupName=f"{prefix}-place", Strategy="cluster", TagSpecifications=spec("placement-group", tags)
    )["PlacementGroup"]["GroupId"]
    snapshot = ec2.create_snapshot(VolumeId=volume, TagSpecifications=spec("snapshot", tags))["SnapshotId"]
    return {
        "volume": volume,
        "instance": instance,
        "launch template": template,
        "placement group": placement,
        "snapshot": snapshot,
    }


def _network(aws: Emulator, net: Network, prefix: str, tags: Tags) -> dict[str, str]:
    ec2, elb = aws.client("ec2"), aws.client("elbv2")
    address = ec2.allocate_address(Domain="vpc", TagSpecifications=spec("elastic-ip", tags))["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=net.subnet, AllocationId=address, TagSpecifications=spec("natgateway", tags))
    endpoint = ec2.create_vpc_endpoint(
        VpcId=net.vpc,
        ServiceName=f"com.amazonaws.{REGION}.ecr.api",
        VpcEndpointType="Interface",
        SubnetIds=[net.subnet, net.other_subnet],
        TagSpecifications=spec("vpc-endpoint", tags),
    )
    interface = ec2.create_network_interface(
        SubnetId=net.subnet, Groups=[net.group], Description=f"ELB net/{prefix}/0123456789abcdef"
    )
    balancer = elb.create_load_balancer(Name=f"{prefix}-lb", Type="network", Subnets=[net.subnet], Tags=pairs(tags))[
        "LoadBalancers"
    ][0]["LoadBalancerArn"]
    targets = elb.create_target_group(Name=f"{prefix}-tg", Protocol="TCP", Port=80, VpcId=net.vpc)
    return {
        "elastic IP address": address,
        "NAT gateway": nat["NatGateway"]["NatGatewayId"],
        "VPC endpoint": endpoint["VpcEndpoint"]["VpcEndpointId"],
        "VPC": net.vpc,
        "security group": net.group,
        "subnet": net.subnet,
        "other subnet": net.other_subnet,
        "route table": net.table,
        "internet gateway": net.gateway,
        "network interface": interface["NetworkInterface"]["NetworkInterfaceId"],
        "load balancer": balancer,
        "target group": targets["TargetGroups"][0]["TargetGroupArn"],
    }


def _storage(aws: Emulator, net: Network, prefix: str, tags: Tags) -> dict[str, str]:
    efs, fsx, s3 = aws.client("efs"), aws.client("fsx"), aws.client("s3")
    system = efs.create_file_system(CreationToken=prefix, Tags=pairs(tags))["FileSystemId"]
    mount = efs.create_mount_target(FileSystemId=system, SubnetId=net.subnet)["MountTargetId"]
    lustre = fsx.create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[net.subnet],
        Tags=pairs(tags),
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250},
    )["FileSystem"]["FileSystemId"]
    backup = fsx.create_backup(FileSystemId=lustre, Tags=pairs(tags))["Backup"]["BackupId"]
    bucket = f"windlass-{prefix}-{ACCOUNT}"
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": pairs(tags)})
    files = aws.client("s3files").create_file_system(
        bucket=f"arn:aws:s3:::{bucket}", roleArn=ROLE, tags=pairs(tags, "key", "value")
    )["fileSystemId"]
    aws.client("ecr").create_repository(repositoryName=f"{prefix}/train", tags=pairs(tags))
    return {
        "efs file system": system,
        "mount target": mount,
        "fsx file system": lustre,
        "backup": backup,
        "bucket": bucket,
        "S3 file system": files,
        "repository": f"{prefix}/train",
    }


def _identity(aws: Emulator, prefix: str, tags: Tags) -> dict[str, str]:
    iam, kms = aws.client("iam"), aws.client("kms")
    iam.create_role(RoleName=f"{prefix}-node", AssumeRolePolicyDocument=READ, Tags=pairs(tags))
    policy = iam.create_policy(PolicyName=f"{prefix}-pods", PolicyDocument=READ, Tags=pairs(tags))["Policy"]["Arn"]
    iam.create_instance_profile(InstanceProfileName=f"{prefix}-profile", Tags=pairs(tags))
    provider = iam.create_open_id_connect_provider(
        Url=f"https://oidc.eks.{REGION}.amazonaws.com/id/{prefix.upper()}",
        ThumbprintList=["0" * 40],
        ClientIDList=["sts.amazonaws.com"],
        Tags=pairs(tags),
    )["OpenIDConnectProviderArn"]
    key = kms.create_key(Tags=pairs(tags, "TagKey", "TagValue"))["KeyMetadata"]["KeyId"]
    kms.create_alias(AliasName=f"alias/{prefix}-eks", TargetKeyId=key)
    return {
        "role": f"{prefix}-node",
        "policy": policy,
        "instance profile": f"{prefix}-profile",
        "OIDC provider": provider,
        "key": key,
    }


def _monitoring(aws: Emulator, prefix: str, tags: Tags) -> dict[str, str]:
    aws.client("logs").create_log_group(logGroupName=f"/aws/eks/{prefix}/cluster", tags=tags)
    queue = aws.client("sqs").create_queue(QueueName=f"{prefix}-karpenter", tags=tags)["QueueUrl"]
    aws.client("events").put_rule(Name=f"{prefix}-spot", ScheduleExpression="rate(1 hour)", Tags=pairs(tags))
    aws.client("cloudwatch").put_metric_alarm(
        AlarmName=f"{prefix}-alarm",
        Namespace="AWS/FSx",
        MetricName="FreeDataStorageCapacity",
        Period=300,
        EvaluationPeriods=1,
        Threshold=1,
        ComparisonOperator="LessThanThreshold",
        Statistic="Sum",
        Tags=pairs(tags),
    )
    aws.client("budgets").create_budget(
        AccountId=ACCOUNT,
        ResourceTags=pairs(tags),
        Budget={
            "BudgetName": f"{prefix}-budget",
            "BudgetType": "COST",
            "TimeUnit": "MONTHLY",
            "BudgetLimit": {"Amount": "10", "Unit": "USD"},
        },
    )
    return {
        "log group": f"/aws/eks/{prefix}/cluster",
        "queue": queue,
        "rule": f"{prefix}-spot",
        "alarm": f"{prefix}-alarm",
        "budget": f"{prefix}-budget",
    }


def _sagemaker(aws: Emulator, net: Network, prefix: str, tags: Tags) -> dict[str, str]:
    sagemaker, names = aws.client("sagemaker"), {}
    sagemaker.create_model(ModelName=f"{prefix}-model", ExecutionRoleArn=ROLE, PrimaryContainer={"Image": "image"})
    variant = {
        "VariantName": "a",
        "ModelName": f"{prefix}-model",
        "InstanceType": "ml.g5.xlarge",
        "InitialInstanceCount": 2,
    }
    sagemaker.create_endpoint_config(EndpointConfigName=f"{prefix}-config", ProductionVariants=[variant])
    sagemaker.create_endpoint(EndpointName=f"{prefix}-serve", EndpointConfigName=f"{prefix}-config", Tags=pairs(tags))
    sagemaker.create_notebook_instance(
        NotebookInstanceName=f"{prefix}-book", InstanceType="ml.t3.medium", RoleArn=ROLE, Tags=pairs(tags)
    )
    for job, keep in ((f"{prefix}-job", {}), (f"{prefix}-warm", {"KeepAlivePeriodInSeconds": 600})):
        sagemaker.create_training_job(
            TrainingJobName=job,
            RoleArn=ROLE,
            OutputDataConfig={"S3OutputPath": "s3://bucket/out"},
            AlgorithmSpecification={"TrainingImage": "image", "TrainingInputMode": "File"},
            ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30, **keep},
            StoppingCondition={"MaxRuntimeInSeconds": 60},
            Tags=pairs(tags),
        )
    domain = sagemaker.create_domain(
        DomainName=f"{prefix}-studio",
        AuthMode="IAM",
        SubnetIds=[net.subnet],
        VpcId=net.vpc,
        Tags=pairs(tags),
        DefaultUserSettings={"ExecutionRole": ROLE},
    )["DomainId"]
    sagemaker.create_app(
        DomainId=domain,
        UserProfileName="ada",
        AppType="JupyterLab",
        AppName=f"{prefix}-app",
        ResourceSpec={"InstanceType": "ml.g5.xlarge"},
    )
    sagemaker.create_cluster(
        ClusterName=f"{prefix}-pod",
        Tags=pairs(tags),
        InstanceGroups=[
            {
                "InstanceCount": 2,
                "InstanceGroupName": "gpu",
                "InstanceType": "ml.p5.48xlarge",
                "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-x", "OnCreate": "on_create.sh"},
                "ExecutionRole": ROLE,
            }
        ],
    )
    names["endpoint"], names["notebook instance"] = f"{prefix}-serve", f"{prefix}-book"
    names["training job in progress"], names["warm pool"] = f"{prefix}-job", f"{prefix}-warm"
    return names | {"domain": domain, "app": f"{domain}/ada/{prefix}-app", "HyperPod cluster": f"{prefix}-pod"}
