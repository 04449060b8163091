"""Load balancers: ministack assigns the same VPC to each; AWS uses the VPC of its subnets."""

from __future__ import annotations

from typing import Any

from ministack.services import alb, ec2


def extend() -> None:
    """Sets the VPC of a load balancer to that of its first subnet."""
    create = alb._create_lb

    def create_in_vpc(params: dict[str, Any]) -> Any:
        before = set(alb._lbs.keys())
        answer = create(params)
        for arn in set(alb._lbs.keys()) - before:
            balancer = alb._lbs[arn]
            mapped = alb._p(params, "SubnetMappings.member.1.SubnetId", "")
            subnet = ec2._subnets.get(next(iter(balancer["Subnets"]), mapped)) or {}
            told, balancer["VpcId"] = balancer["VpcId"], subnet.get("VpcId", balancer["VpcId"])
            status, headers, body = answer
            text = body.decode() if isinstance(body, bytes) else body
            text = text.replace(f"<VpcId>{told}</VpcId>", f"<VpcId>{balancer['VpcId']}</VpcId>")
            answer = status, headers, text.encode()
        return answer

    alb._create_lb = create_in_vpc
    for table in [value for value in vars(alb).values() if isinstance(value, dict)]:
        if table.get("CreateLoadBalancer") is create:
            table["CreateLoadBalancer"] = create_in_vpc
