"""The real provider applies, plans, changes and destroys the configuration in an emulated account.

FSx is applied separately and not destroyed: provider 5.100 waits ten minutes for it, whatever the account responds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.clusters.eks.configuration import SERVICES, Terraform, copied_to, names
from tests.clusters.eks.inventory import inventory
from tests.fakeaws.emulator import Emulator
from tests.fakeaws.emulator.fixtures import aws, terraform  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

VALUES: dict[str, Any] = {
    "name": "vision",
    "region": "us-east-1",
    "zones": ["us-east-1a", "us-east-1b", "us-east-1c"],
    "kubernetes_version": "1.34",
    "endpoint_public_cidrs": ["203.0.113.0/24"],
    "admin_principals": ["arn:aws:iam::123456789012:role/platform"],
    "user_principals": ["arn:aws:iam::123456789012:role/research"],
    "namespace": "training",
    "gpu_pools": {
        "a10g": {"instance_types": ["g5.12xlarge", "g5.24xlarge"], "capacity": "spot"},
        "h100": {
            "instance_types": ["p5.48xlarge"],
            "efa_interfaces": 4,
            "placement_group": True,
            "parallel_pull": True,
            "labels": {"team": "vision"},
        },
        "block": {
            "instance_types": ["p5.48xlarge"],
            "capacity": "capacity-block",
            "max": 2,
            "zone": "us-east-1b",
            "capacity_reservation_id": "cr-0123456789abcdef0",
        },
    },
    "efs": {},
    "s3_mountpoint": True,
    "repositories": ["vision"],
    "sagemaker": True,
    "budget": {"limit_usd": 1000, "email": "someone@example.com"},
    "tags": {"team": "vision"},
    "bucket_force_destroy": True,
}
"""Variables with all options except FSx and S3 Files."""


@pytest.fixture
def configuration(tmp_path: Path, terraform: dict[str, str], aws: Emulator) -> Terraform:  # noqa: F811
    """Returns an initialized folder whose provider uses the emulated account."""
    login = {name: value for name, value in aws.environ.items() if name != "AWS_ENDPOINT_URL"}
    made = Terraform(copied_to(tmp_path), terraform | login)
    made.variables(with_endpoints(aws, VALUES))
    made.run("init", "-no-color")
    return made


def with_endpoints(aws: Emulator, values: dict[str, Any]) -> dict[str, Any]:  # noqa: F811
    return {**values, "endpoints": dict.fromkeys(SERVICES, aws.url)}


def planned(configuration: Terraform) -> dict[str, list[str]]:
    """Returns the actions of a plan by address, without no-ops."""
    configuration.run("plan", "-no-color", "-out", "plan")
    plan = json.loads(configuration.run("show", "-json", "plan"))
    changes = {change["address"]: change["change"]["actions"] for change in plan["resource_changes"]}
    return {address: actions for address, actions in changes.items() if actions not in (["no-op"], ["read"])}


@pytest.mark.nightly
def test_emulated_cluster_is_applied_changed_and_destroyed_without_leftovers(
    configuration: Terraform,
    aws: Emulator,  # noqa: F811
) -> None:
    before = inventory(aws)

    configuration.run("apply", "-auto-approve", "-no-color")
    outputs = {name: output["value"] for name, output in json.loads(configuration.run("output", "-json")).items()}
    assert outputs["bucket"] == "windlass-vision-123456789012"
    assert outputs["karpenter"]["queue_name"] == "vision-karpenter"
    assert len(outputs["private_subnet_ids"]) == 3
    assert_names_and_tags(aws, outputs)
    assert_policies_fit_and_name_their_resources(aws)

    configuration.run("plan", "-detailed-exitcode", "-no-color")  # exits with 2 if there are changes

    aws.client("s3").delete_public_access_block(Bucket=outputs["bucket"])
    aws.client("eks").delete_addon(clusterName="vision", addonName="coredns")
    limits = {"minSize": 0, "maxSize": 9}
    aws.client("eks").update_nodegroup_config(clusterName="vision", nodegroupName="gpu-a10g", scalingConfig=limits)
    assert planned(configuration) == {
        "aws_s3_bucket_public_access_block.main[0]": ["create"],
        'aws_eks_addon.pod["coredns"]': ["create"],
        'aws_eks_node_group.gpu["a10g"]': ["update"],
    }

    pools = {**VALUES["gpu_pools"], "h100": {**VALUES["gpu_pools"]["h100"], "max": 6, "disk_gib": 500}}
    changed = {**VALUES, "kubernetes_version": "1.35", "endpoint_public_cidrs": [], "gpu_pools": pools}
    configuration.variables(with_endpoints(aws, changed))
    actions = planned(configuration)
    assert actions["aws_eks_cluster.main"] == actions['aws_eks_node_group.gpu["h100"]'] == ["update"]
    assert [address for address, action in actions.items() if "delete" in action] == []
    configuration.run("apply", "-no-color", "plan")
    cluster = aws.client("eks").describe_cluster(name="vision")["cluster"]
    assert (cluster["version"], cluster["resourcesVpcConfig"]["endpointPublicAccess"]) == ("1.35", False)
    assert planned(configuration) == {}

    configuration.run("destroy", "-auto-approve", "-no-color")
    assert inventory(aws) == before


def assert_names_and_tags(aws: Emulator, outputs: dict[str, Any]) -> None:  # noqa: F811
    """Checks that resources with names or tags can be found by them, without the state."""
    ec2 = aws.client("ec2")
    own = [{"Name": "tag:windlass.dev/cluster", "Values": ["vision"]}]
    assert [vpc["VpcId"] for vpc in ec2.describe_vpcs(Filters=own)["Vpcs"]] == [outputs["vpc_id"]]
    assert len(ec2.describe_subnets(Filters=own)["Subnets"]) == 6
    patterns = names()
    templates = {template["LaunchTemplateName"] for template in ec2.describe_launch_templates()["LaunchTemplates"]}
    made = {"system", "gpu-a10g", "gpu-h100", "gpu-block"}
    assert templates == {f"vision-{name}" for name in made}
    roles = {role["RoleName"] for role in aws.client("iam").list_roles()["Roles"]}
    expected = {pattern.replace("{name}", "vision") for address, pattern in patterns.items() if "iam_role." in address}
    assert expected - roles == {"vision-s3-files"}


INLINE_CHARACTERS = 10_240
"""Limit of all inline policies of a role together, not counting spaces. IAM enforces it, the emulator does not."""
UNNAMED = {
    ("vision-run", "Login"),
    ("vision-karpenter", "Read"),
    ("vision-karpenter", "ReadPricesAndProfiles"),
    ("vision-load-balancer-controller", "Read"),
    ("vision-load-balancer-controller", "ListCertificates"),
    ("vision-sagemaker", "Login"),
    ("vision-sagemaker", "Metrics"),
}
"""Role statements whose actions do not support resources in AWS."""


def assert_policies_fit_and_name_their_resources(aws: Emulator) -> None:  # noqa: F811
    iam = aws.client("iam")
    unnamed = set()
    for role in [role["RoleName"] for role in iam.list_roles()["Roles"]]:
        size = 0
        for policy in iam.list_role_policies(RoleName=role)["PolicyNames"]:
            document = iam.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]
            size += len(json.dumps(document, separators=(",", ":")))
            unnamed |= {(role, statement["Sid"]) for statement in document["Statement"] if statement["Resource"] == "*"}
        assert size <= INLINE_CHARACTERS, f"the inline policies of {role} have {size} characters"
    assert unnamed == UNNAMED


@pytest.mark.nightly
def test_emulated_fsx_is_linked_to_the_bucket_and_its_second_plan_is_clean(
    configuration: Terraform,
    aws: Emulator,  # noqa: F811
) -> None:
    values = {"name": "lustre", "region": "us-east-1", "zones": VALUES["zones"], "fsx": {"import_prefix": "data/"}}
    configuration.variables(with_endpoints(aws, values))
    target = "-target=aws_fsx_data_repository_association.main"
    configuration.run("apply", "-auto-approve", "-no-color", target)
    (association,) = aws.client("fsx").describe_data_repository_associations()["Associations"]
    assert association["DataRepositoryPath"] == "s3://windlass-lustre-123456789012/data/"
    assert association["S3"]["AutoExportPolicy"]["Events"] == ["NEW", "CHANGED"]
    (system,) = aws.client("fsx").describe_file_systems()["FileSystems"]
    assert (system["Lifecycle"], system["LustreConfiguration"]["DeploymentType"]) == ("AVAILABLE", "SCRATCH_2")
    configuration.run("plan", "-detailed-exitcode", "-no-color", target)
