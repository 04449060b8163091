"""Converts Terraform outputs into a target, a kubeconfig and the configuration of components. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from windlass.errors import EngineError
from windlass.spec.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Karpenter:
    """Terraform outputs for Karpenter."""

    queue_name: str
    """SQS queue with spot interruptions and other instance events."""
    instance_profile: str


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Connection settings of a cluster's API server."""

    name: str
    region: str
    endpoint: str
    certificate_authority: str
    """CA certificate (PEM) in base64."""
    namespace: str
    """Namespace of the runs."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Terraform outputs that other packages use."""

    name: str
    region: str
    endpoint: str
    certificate_authority: str
    """CA certificate (PEM) in base64."""
    vpc_id: str
    private_subnet_ids: tuple[str, ...]
    zones: tuple[str, ...]
    node_security_group_id: str
    bucket: str
    namespace: str
    run_role_arn: str
    """Role of the runs' pods."""
    kubernetes_version: str = ""
    addon_versions: Mapping[str, str] | None = None
    """Versions of the EKS add-ons, by name."""
    vpc_managed: bool = True
    """Whether Terraform created the VPC; false for an existing one."""
    proxy_environment: Mapping[str, str] | None = None
    """Environment variables of the proxy. This field and the ones below are None if absent: Terraform omits null
    outputs."""
    load_balancer_controller_role_arn: str | None = None
    """Role of the AWS Load Balancer Controller."""
    efs_id: str | None = None
    efs_access_point_id: str | None = None
    fsx_id: str | None = None
    fsx_dns_name: str | None = None
    fsx_mount_name: str | None = None
    sagemaker_role_arn: str | None = None
    karpenter: Karpenter | None = None

    @property
    def account_id(self) -> str:
        """AWS account of the cluster."""
        return self.run_role_arn.split(":")[4]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Outputs:
        """Builds the outputs from `terraform output`. Raises EngineError if one is missing."""
        known = {field.name: field.default is MISSING for field in fields(cls)}
        if missing := sorted(name for name, is_needed in known.items() if is_needed and values.get(name) is None):
            raise EngineError(
                f"Terraform has no outputs {', '.join(missing)}: the cluster is not complete", "windlass cluster up"
            )
        found = {name: values[name] for name in known if values.get(name) is not None}
        chosen: dict[str, Any] = {name: value for name, value in found.items() if known[name] or value != ""}
        for name in ("private_subnet_ids", "zones"):
            chosen[name] = tuple(chosen[name])
        if karpenter := chosen.get("karpenter"):
            chosen["karpenter"] = Karpenter(**{field.name: karpenter[field.name] for field in fields(Karpenter)})
        return cls(**chosen)


FSX_PATH = "/"
"""Folder of FSx for Lustre that is linked to the bucket: the root, so that an export includes every file. Must equal
`fsx_path` in clusters/eks/fsx.tf."""
EFS_CLAIM = "efs"
FSX_CLAIM = "fsx"
"""Name of the claim for FSx for Lustre in the namespace of the runs, created by the component `storage`."""


def target(outputs: Outputs, cluster: Cluster, kubeconfig_path: str) -> dict[str, Any]:
    """Returns the cluster's Kubernetes target as an entry of `targets.yaml`."""
    entry: dict[str, Any] = {
        "kind": "kubernetes",
        "context": outputs.name,
        "kubeconfig": kubeconfig_path,
        "namespace": outputs.namespace,
        "region": outputs.region,
        "storage": f"s3://{outputs.bucket}/windlass/",
    }
    if proxy := outputs.proxy_environment:
        # Programs read one case or the other.
        entry["env"] = {**proxy, **{name.lower(): value for name, value in proxy.items()}}
    claim = FSX_CLAIM if outputs.fsx_id else EFS_CLAIM if outputs.efs_id else None
    if claim is not None:
        entry["data"] = {"claim": claim}
    if outputs.fsx_id and cluster.storage.fsx is not None:
        entry["file_systems"] = [
            {
                "kind": "lustre",
                "id": outputs.fsx_id,
                "source": f"s3://{outputs.bucket}/{cluster.storage.fsx.prefix}",
                "path": FSX_PATH,
                "dns_name": outputs.fsx_dns_name,
                "mount_name": outputs.fsx_mount_name,
            }
        ]
    return entry


def sagemaker_target(outputs: Outputs) -> dict[str, Any] | None:
    """Returns the SageMaker target of the cluster; None if no SageMaker role was requested."""
    if outputs.sagemaker_role_arn is None:
        return None
    storage = f"s3://{outputs.bucket}/sagemaker/"
    return {"kind": "sagemaker", "region": outputs.region, "role": outputs.sagemaker_role_arn, "storage": storage}


def kubeconfig(outputs: ApiServer | Outputs) -> dict[str, Any]:
    """Returns a kubeconfig that requests a token from AWS at each use, so the file contains no secret."""
    arguments = ["eks", "get-token", "--cluster-name", outputs.name, "--region", outputs.region, "--output", "json"]
    login = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "aws",
        "args": arguments,
        "interactiveMode": "Never",
        "provideClusterInfo": False,
        "installHint": "install the AWS command line, version 2: https://docs.aws.amazon.com/cli/",
    }
    server = {"server": outputs.endpoint, "certificate-authority-data": outputs.certificate_authority}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": outputs.name,
        "clusters": [{"name": outputs.name, "cluster": server}],
        "users": [{"name": outputs.name, "user": {"exec": login}}],
        "contexts": [
            {
                "name": outputs.name,
                "context": {"cluster": outputs.name, "user": outputs.name, "namespace": outputs.namespace},
            }
        ],
    }
