"""EKS clusters: ministack's OIDC issuer is http, the VPC a constant, the cluster's security group only a name.

ministack also drops upgradePolicy and the bootstrap options, and deletes a cluster with node groups, which EKS refuses.
`FAKEAWS_EKS_ENDPOINT` and `FAKEAWS_EKS_CA` (base64 of PEM) name a real API server for all clusters.
"""

from __future__ import annotations

import os
from typing import Any

from ministack.services import ec2, eks

KEPT = {
    "upgradePolicy": {"supportType": "EXTENDED"},
    "deletionProtection": False,
}
"""Fields of CreateCluster that ministack drops, with EKS's defaults."""


def extend() -> None:
    """Describes clusters like EKS, with an existing security group."""
    create, delete = eks._create_cluster, eks._delete_cluster

    def created(body: dict[str, Any], creator_arn: str | None = None) -> Any:
        answer = create(body, creator_arn)
        if answer[0] != 200:
            return answer
        cluster = eks._clusters[body["name"]]
        cluster.update({field: body.get(field, default) for field, default in KEPT.items()})
        cluster.update({field: body[field] for field in ("zonalShiftConfig",) if field in body})
        access = {"authenticationMode": "CONFIG_MAP", "bootstrapClusterCreatorAdminPermissions": True}
        cluster["accessConfig"] = access | body.get("accessConfig", {})
        _place(cluster)
        if endpoint := os.environ.get("FAKEAWS_EKS_ENDPOINT"):
            cluster["endpoint"] = endpoint
        if authority := os.environ.get("FAKEAWS_EKS_CA"):
            cluster["certificateAuthority"] = {"data": authority}
        return eks._json_resp(200, {"cluster": eks._sanitize({**cluster, "status": "CREATING"})})

    def deleted(name: str) -> Any:
        if groups := [key for key in eks._nodegroups if key.startswith(f"{name}/")]:
            return eks._error(409, "ResourceInUseException", f"Cluster has nodegroups attached: {groups}")
        cluster = eks._clusters.get(name)
        for key in [key for key in eks._addons if key.startswith(f"{name}/")]:
            eks._tags.pop(eks._addons.pop(key)["addonArn"], None)
        if cluster is not None:
            group = cluster["resourcesVpcConfig"]["clusterSecurityGroupId"]
            ec2._security_groups.pop(group, None)
            ec2._tags.pop(group, None)
        return delete(name)

    eks._ministack_issuer_base = lambda: f"https://oidc.eks.{eks.get_region()}.amazonaws.com"
    eks._create_cluster, eks._delete_cluster = created, deleted


def _place(cluster: dict[str, Any]) -> None:
    """Puts the cluster into the VPC of its first subnet, with a security group like EKS's."""
    network = cluster["resourcesVpcConfig"]
    subnet = next((ec2._subnets[name] for name in network["subnetIds"] if name in ec2._subnets), None)
    if subnet is None:
        return
    network["vpcId"] = subnet["VpcId"]
    name = cluster["name"]
    asked = {
        "GroupName": [f"eks-cluster-sg-{name}-{len(name):09d}"],
        "GroupDescription": ["EKS created security group applied to ENI that is attached to EKS Control Plane"],
        "VpcId": [subnet["VpcId"]],
    }
    tags = {"aws:eks:cluster-name": name, f"kubernetes.io/cluster/{name}": "owned", "Name": asked["GroupName"][0]}
    _status, _headers, body = ec2._create_security_group(asked)
    text = body.decode() if isinstance(body, bytes) else body
    group = text.partition("<groupId>")[2].partition("</groupId>")[0]
    ec2._tags[group] = [{"Key": key, "Value": value} for key, value in tags.items()]
    network["clusterSecurityGroupId"] = group
    itself = {"IpProtocol": "-1", "IpRanges": [], "Ipv6Ranges": [], "PrefixListIds": []}
    pair = {"GroupId": group, "UserId": eks.get_account_id()}
    ec2._security_groups[group]["IpPermissions"] = [{**itself, "UserIdGroupPairs": [pair]}]
