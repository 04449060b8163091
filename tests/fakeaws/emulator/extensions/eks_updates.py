"""EKS updates: ministack lacks UpdateCluster*, UpdateNodegroup* and DescribeUpdate."""

from __future__ import annotations

import json
import re
import urllib.parse
import uuid
from typing import Any

from ministack.services import eks
from tests.fakeaws.emulator.extensions.eks_node_groups import named_template

ROUTE = re.compile(
    r"/clusters/(?P<cluster>[^/]+)(?:/node-groups/(?P<group>[^/]+))?"
    r"/(?P<verb>updates|update-config|update-version)(?:/(?P<update>[^/]+))?"
)
REPLACED = ("logging", "upgradePolicy", "scalingConfig", "updateConfig", "nodeRepairConfig", "deletionProtection")
"""Request fields that replace the whole old value."""


def extend() -> None:
    """Serves the update operations; each update has succeeded by the time it is described."""
    updates: dict[str, dict[str, Any]] = {}
    handle, update_addon = eks._handle_request_sync, eks._update_addon

    def record(kind: str) -> Any:
        update = {
            "id": str(uuid.uuid4()),
            "status": "Successful",
            "type": kind,
            "params": [],
            "createdAt": eks._now(),
            "errors": [],
        }
        updates[update["id"]] = update
        return eks._json_resp(200, {"update": {**update, "status": "InProgress"}})

    def addon_updated(*arguments: Any) -> Any:
        answer = update_addon(*arguments)
        return record("AddonUpdate") if answer[0] == 200 else answer

    def handled(method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]) -> Any:
        route = ROUTE.fullmatch(urllib.parse.unquote(path))
        if route is None:
            return handle(method, path, headers, body, query)
        if method == "GET":
            return _described(updates, route["update"])
        if route["group"]:
            group = eks._nodegroups.get(f"{route['cluster']}/{route['group']}")
            if group is None:
                return eks._error(404, "ResourceNotFoundException", f"No node group found for name: {route['group']}.")
            return _changed_group(group, json.loads(body or b"{}")) or record(_kind(route["verb"]))
        cluster = eks._clusters.get(route["cluster"])
        if cluster is None:
            return eks._error(404, "ResourceNotFoundException", f"No cluster found for name: {route['cluster']}.")
        return _changed_cluster(cluster, json.loads(body or b"{}")) or record(_kind(route["verb"]))

    eks._handle_request_sync, eks._update_addon = handled, addon_updated


def _kind(verb: str) -> str:
    return "ConfigUpdate" if verb == "update-config" else "VersionUpdate"


def _described(updates: dict[str, dict[str, Any]], name: str | None) -> Any:
    if name is None:
        return eks._json_resp(200, {"updateIds": list(updates)})
    if name not in updates:
        return eks._error(404, "ResourceNotFoundException", f"No update found for ID: {name}")
    return eks._json_resp(200, {"update": updates[name]})


def _changed_cluster(cluster: dict[str, Any], body: dict[str, Any]) -> Any:
    """Changes the cluster record; returns an error, or None."""
    if version := body.get("version"):
        steps = int(version.split(".")[1]) - int(cluster["version"].split(".")[1])
        if steps not in (0, 1):
            message = f"Unsupported Kubernetes minor version update from {cluster['version']} to {version}"
            return eks._error(400, "InvalidParameterException", message)
        cluster["version"] = version
    cluster["resourcesVpcConfig"].update(body.get("resourcesVpcConfig", {}))
    cluster["accessConfig"] = {**cluster.get("accessConfig", {}), **body.get("accessConfig", {})}
    cluster.update({field: body[field] for field in REPLACED if field in body})
    return None


def _changed_group(group: dict[str, Any], body: dict[str, Any]) -> Any:
    """Changes the node group record; returns an error, or None."""
    group["scalingConfig"] = {**group["scalingConfig"], **body.pop("scalingConfig", {})}
    group.update({field: body[field] for field in (*REPLACED, "version", "releaseVersion") if field in body})
    if "launchTemplate" in body:
        group["launchTemplate"] = named_template(body["launchTemplate"])
    labels, taints = body.get("labels", {}), body.get("taints", {})
    group["labels"].update(labels.get("addOrUpdateLabels", {}))
    for name in labels.get("removeLabels", []):
        group["labels"].pop(name, None)
    gone = {(taint["key"], taint["effect"]) for values in taints.values() for taint in values}
    kept = [taint for taint in group["taints"] if (taint["key"], taint["effect"]) not in gone]
    group["taints"] = kept + taints.get("addOrUpdateTaints", [])
    return None
