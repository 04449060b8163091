"""Instance type offerings: ministack lacks DescribeInstanceTypeOfferings."""

from __future__ import annotations

from typing import Any

from ministack.core.responses import get_region
from ministack.services import ec2
from tests.fakeaws.emulator.extensions.shapes import model_of, parse, plain, render

EVERYWHERE = ("m7i.large", "m5.large", "t3.medium", "c5.large", "g4dn.xlarge", "g5.xlarge", "g5.12xlarge", "g6.xlarge")
IN_ZONES = {"p4d.24xlarge": "bc", "p5.48xlarge": "f", "trn1.32xlarge": "d"}
"""Types that only some zones offer, by zone letters. Types in neither table are offered nowhere."""
ZONES = "abcdef"


def extend() -> None:
    """Serves DescribeInstanceTypeOfferings by zone or region."""
    asked = model_of("ec2").shape_for("DescribeInstanceTypeOfferingsRequest")
    told = model_of("ec2").shape_for("InstanceTypeOffering")

    def described(params: dict[str, Any]) -> Any:
        request = parse(asked, plain(params))
        kind = request.get("LocationType", "region")
        wanted = {
            name for one in request.get("Filters", ()) if one["Name"] == "instance-type" for name in one["Values"]
        }
        zones = {**dict.fromkeys(EVERYWHERE, ZONES), **IN_ZONES}
        found = [
            {"InstanceType": name, "LocationType": kind, "Location": f"{get_region()}{letter}"}
            for name, letters in zones.items()
            if not wanted or name in wanted
            for letter in (letters if kind == "availability-zone" else ("",))
        ]
        items = "".join(f"<item>{render(told, one)}</item>" for one in found)
        return ec2._xml(
            200, "DescribeInstanceTypeOfferingsResponse", f"<instanceTypeOfferingSet>{items}</instanceTypeOfferingSet>"
        )

    for handlers in [table for table in vars(ec2).values() if isinstance(table, dict) and "CreateFlowLogs" in table]:
        handlers["DescribeInstanceTypeOfferings"] = described
