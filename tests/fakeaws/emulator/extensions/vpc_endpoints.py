"""VPC endpoints: ministack loses the security groups and the private DNS of an interface endpoint."""

from __future__ import annotations

import re
from typing import Any

from ministack.services import ec2

ID = re.compile(rb"<vpcEndpointId>(vpce-\w+)</vpcEndpointId>")


def extend() -> None:
    """Keeps both, and returns them."""
    create, fields = ec2._create_vpc_endpoint, ec2._vpce_fields_xml

    def created(params: dict[str, Any]) -> Any:
        status, headers, body = create(params)
        if found := ID.search(body if isinstance(body, bytes) else body.encode()):
            record = ec2._vpc_endpoints[found[1].decode()]
            record["Groups"] = ec2._parse_member_list(params, "SecurityGroupId")
            record["PrivateDns"] = ec2._p(params, "PrivateDnsEnabled") or "false"
        return status, headers, body

    def shown(record: dict[str, Any], tag: str = "item") -> str:
        groups = "".join(f"<item><groupId>{one}</groupId></item>" for one in record.get("Groups", ()))
        more = (
            f"<privateDnsEnabled>{record.get('PrivateDns', 'false')}</privateDnsEnabled><groupSet>{groups}</groupSet>"
        )
        return str(fields(record, tag)).removesuffix(f"</{tag}>") + f"{more}</{tag}>"

    ec2._create_vpc_endpoint, ec2._vpce_fields_xml = created, shown
    for handlers in [table for table in vars(ec2).values() if isinstance(table, dict) and "CreateVpcEndpoint" in table]:
        handlers["CreateVpcEndpoint"] = created
