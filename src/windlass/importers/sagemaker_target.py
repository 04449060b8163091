"""Reads account and instance settings of a training job as the fields of a `sagemaker` target."""

from __future__ import annotations

import re
from typing import Any, Final

from windlass.errors import JobFileError
from windlass.importers.draft import Draft
from windlass.importers.source import View
from windlass.spec.targets import SageMakerTarget
from windlass.spec.yamlwriter import block_lines

NAME: Final = "aws"
REQUIRED: Final = {"region": "REGION", "role": "ROLE", "storage": "s3://BUCKET/windlass/"}
"""Required fields of a target, and the text that is written if the file does not set them."""
REGION: Final = re.compile(r"arn:aws[\w-]*:sagemaker:([a-z0-9-]+):|\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com")
GIBI: Final = 1 << 30


def read_target(view: View, draft: Draft) -> None:
    """Reads the fields of the target, with its image and its instance type."""
    resources, output = view.at("ResourceConfig"), view.at("OutputDataConfig")
    _region(view, draft)
    put(draft, "role", view.at("RoleArn"))
    put(draft, "storage", output.at("S3OutputPath"))
    put(draft, "image", view.at("AlgorithmSpecification", "TrainingImage"))
    put(draft, "instance", machines(view).at("InstanceType"))
    size = resources.at("VolumeSizeInGB")
    if isinstance(size.value, int) and not isinstance(size.value, bool):
        put(draft, "volume", size, size.value * GIBI)
    output.at("CompressionType").take_if("GZIP")
    put(draft, "kms_key", resources.at("VolumeKmsKeyId"))
    if not output.at("KmsKeyId").take_if(""):
        _key(output.at("KmsKeyId"), draft)
    vpc = view.at("VpcConfig")
    put_vpc(draft, vpc, vpc.at("Subnets"), vpc.at("SecurityGroupIds"))
    put(draft, "network_isolation", view.at("EnableNetworkIsolation"))
    put(draft, "encrypt_traffic", view.at("EnableInterContainerTrafficEncryption"))
    for tag in view.at("Tags").each():
        name, value = tag.at("Key"), tag.at("Value")
        if isinstance(name.value, str) and isinstance(value.value, str):
            tags = {**draft.target.get("tags", {}), name.value: value.value}
            if put(draft, "tags", value, tags):
                name.take()


def machines(view: View) -> View:
    """Returns the view with type and number of the instances: the only group, if instances are in groups.

    Raises JobFileError for several groups.
    """
    resources = view.at("ResourceConfig")
    first, *others = resources.at("InstanceGroups").each() or [resources]
    if others:
        raise others[0].refused("is another group of instances, and all nodes of a job are alike", "leave one group")
    if first is not resources:
        first.text("InstanceGroupName")
    return first


def put(draft: Draft, field: str, view: View, value: Any = None) -> bool:
    """Sets a field of the target to a value, or to the view's value; returns False if it is absent or invalid."""
    wanted = view.value if value is None else value
    if wanted is None:
        return False
    return _put_all(draft, {field: wanted}, view)


def put_vpc(draft: Draft, view: View, subnets: View, groups: View) -> None:
    """Sets the two fields of a VPC, which are only valid together."""
    if subnets or groups:
        found = {"subnets": subnets.value or [], "security_groups": groups.value or []}
        if _put_all(draft, found, view):
            subnets.take()
            groups.take()


def target_text(draft: Draft) -> str:
    """Returns the text to paste into targets.yaml; empty if the file sets no field of a target."""
    if not draft.target:
        return ""
    fields = {"kind": "sagemaker", **REQUIRED, **draft.target}
    if "volume" in fields:
        fields["volume"] = f"{fields['volume'] // GIBI}GiB"
    usual = {"network_isolation": False, "encrypt_traffic": False}
    said = {name: value for name, value in fields.items() if usual.get(name) is not value}
    return "\n".join(block_lines({NAME: said})) + "\n"


def report_missing(view: View, draft: Draft) -> None:
    """Reports each required field of a target that the file does not set."""
    for name, shown in REQUIRED.items():
        if name not in draft.target:
            view.at(name).remark(f"{name} of the target is missing", f"write it in place of {shown} in targets.yaml")


def _region(view: View, draft: Draft) -> None:
    for one in (view.at("TrainingJobArn"), view.at("AlgorithmSpecification", "TrainingImage")):
        found = REGION.search(one.value) if isinstance(one.value, str) else None
        if found is not None and put(draft, "region", one, found[1] or found[2]):
            return


def _key(view: View, draft: Draft) -> None:
    """Reads the KMS key of uploads; Windlass has one key for uploads and disks."""
    had = draft.target.get("kms_key")
    if had is None or had == view.value:
        put(draft, "kms_key", view)
    else:
        view.report("another key than that of the disks", "kms_key: of the target is for both")


def _put_all(draft: Draft, fields: dict[str, Any], view: View) -> bool:
    known = {"name": NAME, "region": "us-east-1", "role": "role", "storage": "s3://bucket/"}
    try:
        SageMakerTarget.model_validate({**known, **draft.target, **fields})
    except JobFileError:
        view.report(f"{' and '.join(fields)} of the target: no legal value", "write it in targets.yaml by hand")
        return False
    draft.target |= fields
    view.take()
    return True
