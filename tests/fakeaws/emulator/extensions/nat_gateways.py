"""NAT gateways: ministack returns no addresses, so Terraform would replace an imported gateway."""

from __future__ import annotations

import re
from typing import Any

from ministack.services import ec2

EMPTY = "<natGatewayAddressSet/>"
ITEM = re.compile(r"<natGatewayId>(nat-\w+)</natGatewayId>")


def extend() -> None:
    """Returns the Elastic IP of each gateway."""
    describe = ec2._describe_nat_gateways

    def described(params: dict[str, Any]) -> Any:
        status, headers, body = describe(params)
        text = body.decode() if isinstance(body, bytes) else body
        for name in ITEM.findall(text):
            before, found, after = text.partition(f"<natGatewayId>{name}</natGatewayId>")
            allocation = ec2._nat_gateways[name].get("AllocationId")
            address = (ec2._addresses.get(allocation) or {}).get("PublicIp", "")
            item = f"<item><allocationId>{allocation}</allocationId><publicIp>{address}</publicIp></item>"
            told = f"<natGatewayAddressSet>{item}</natGatewayAddressSet>" if allocation else EMPTY
            text = before + found + after.replace(EMPTY, told, 1)
        return status, headers, text.encode()

    ec2._describe_nat_gateways = described
    for handlers in [
        table for table in vars(ec2).values() if isinstance(table, dict) and "DescribeNatGateways" in table
    ]:
        handlers["DescribeNatGateways"] = described
