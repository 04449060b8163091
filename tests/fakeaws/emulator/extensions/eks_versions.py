"""EKS catalogues: ministack lacks DescribeAddonVersions and DescribeClusterVersions, and add-on versions."""

from __future__ import annotations

from typing import Any

from ministack.services import eks

CLUSTER_VERSIONS = ("1.36", "1.35", "1.34", "1.33")
ADDONS = {
    "vpc-cni": ("v1.21.1-eksbuild.1", "v1.20.4-eksbuild.1"),
    "coredns": ("v1.13.1-eksbuild.1", "v1.12.4-eksbuild.1"),
    "kube-proxy": ("v1.35.0-eksbuild.2", "v1.34.0-eksbuild.4"),
    "eks-pod-identity-agent": ("v1.3.10-eksbuild.2", "v1.3.9-eksbuild.3"),
    "aws-ebs-csi-driver": ("v1.55.0-eksbuild.1", "v1.54.0-eksbuild.1"),
    "aws-efs-csi-driver": ("v3.0.0-eksbuild.1", "v2.1.15-eksbuild.1"),
    "aws-fsx-csi-driver": ("v1.8.0-eksbuild.1", "v1.7.0-eksbuild.1"),
    "aws-mountpoint-s3-csi-driver": ("v2.3.0-eksbuild.1", "v1.15.0-eksbuild.1"),
}
"""Invented builds, newest first. The default is the last one, so that tests can tell default and newest apart."""


def extend() -> None:
    """Serves both catalogues, and sets the default version of an add-on without one."""
    handle, create = eks._handle_request_sync, eks._create_addon

    def handled(method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]) -> Any:
        asked = {name: value[0] if isinstance(value, list) else value for name, value in query.items()}
        if method == "GET" and path == "/addons/supported-versions":
            names = [name for name in ADDONS if asked.get("addonName", name) == name]
            return eks._json_resp(200, {"addons": [_addon(name) for name in names]})
        if method == "GET" and path == "/cluster-versions":
            return eks._json_resp(200, {"clusterVersions": [_version(version) for version in CLUSTER_VERSIONS]})
        return handle(method, path, headers, body, query)

    def created(cluster_name: str, body: dict[str, Any]) -> Any:
        versions = ADDONS.get(body.get("addonName", ""))
        if versions is None:
            return eks._error(400, "InvalidParameterException", f"Addon {body.get('addonName')} is not supported")
        return create(cluster_name, {"addonVersion": versions[-1], **body})

    eks._handle_request_sync, eks._create_addon = handled, created


def _addon(name: str) -> dict[str, Any]:
    return {
        "addonName": name,
        "type": "storage" if "csi" in name else "networking",
        "owner": "aws",
        "publisher": "eks",
        "addonVersions": [
            {
                "addonVersion": build,
                "architecture": ["amd64", "arm64"],
                "compatibilities": [
                    {"clusterVersion": version, "platformVersions": ["*"], "defaultVersion": build == ADDONS[name][-1]}
                    for version in CLUSTER_VERSIONS
                ],
                "requiresConfiguration": False,
            }
            for build in ADDONS[name]
        ],
    }


def _version(version: str) -> dict[str, Any]:
    return {
        "clusterVersion": version,
        "clusterType": "eks",
        "defaultVersion": version == "1.35",
        "versionStatus": "STANDARD_SUPPORT",
        "status": "standard-support",
    }
