"""EKS node groups: ministack drops launchTemplate, updateConfig, nodeRepairConfig and the release version."""

from __future__ import annotations

from typing import Any

from ministack.services import ec2, eks


def extend() -> None:
    """Describes node groups like EKS."""
    create = eks._create_nodegroup

    def created(cluster_name: str, body: dict[str, Any]) -> Any:
        answer = create(cluster_name, body)
        if answer[0] != 200:
            return answer
        group = eks._nodegroups[f"{cluster_name}/{body['nodegroupName']}"]
        group["updateConfig"] = body.get("updateConfig", {"maxUnavailable": 1})
        group["releaseVersion"] = body.get("releaseVersion") or f"{group['version']}.0-20260101"
        if "nodeRepairConfig" in body:
            group["nodeRepairConfig"] = body["nodeRepairConfig"]
        if "launchTemplate" in body:
            group["launchTemplate"] = named_template(body["launchTemplate"])
            group.pop("diskSize", None)
            group["resources"].pop("remoteAccessSecurityGroup", None)
        return eks._json_resp(200, {"nodegroup": {**group, "status": "CREATING"}})

    eks._create_nodegroup = created


def named_template(asked: dict[str, str]) -> dict[str, str]:
    """Returns a launch template reference with id, name and version, as EKS describes it."""
    for template in ec2._launch_templates.values():
        if asked.get("id") == template["LaunchTemplateId"] or asked.get("name") == template["LaunchTemplateName"]:
            version = asked.get("version") or str(template["DefaultVersionNumber"])
            return {
                "id": template["LaunchTemplateId"],
                "name": template["LaunchTemplateName"],
                "version": version,
            }
    return dict(asked)
