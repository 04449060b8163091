"""Launch templates: ministack drops EFA interfaces, KMS keys, placement, market and capacity reservation options."""

from __future__ import annotations

from typing import Any

from ministack.services import ec2
from tests.fakeaws.emulator.extensions.shapes import model_of, parse, plain, render


def extend() -> None:
    """Stores and returns every launch template field in EC2's model."""
    asked = model_of("ec2").shape_for("RequestLaunchTemplateData")
    told = model_of("ec2").shape_for("ResponseLaunchTemplateData")

    def parsed(params: dict[str, Any], prefix: str = "LaunchTemplateData") -> dict[str, Any]:
        data: dict[str, Any] = parse(asked, plain(params), prefix)
        if "MetadataOptions" in data:
            data["MetadataOptions"]["State"] = "applied"
        return data

    ec2._parse_lt_data = parsed
    ec2._lt_data_xml = lambda data: render(told, data)
