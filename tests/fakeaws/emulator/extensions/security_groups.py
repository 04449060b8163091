"""Security group rules: ministack never revokes an egress rule of protocol "-1" whose request contains ports.

The Go SDK sends ports 0 with protocol "-1", which EC2 ignores; in ministack the default egress rule remained.
"""

from __future__ import annotations

from typing import Any

from ministack.services import ec2


def extend() -> None:
    """Compares rules for all protocols without their ports."""
    strip = ec2._strip_descriptions

    def without_ports(rule: dict[str, Any]) -> dict[str, Any]:
        stripped: dict[str, Any] = strip(rule)
        if rule.get("IpProtocol") == "-1":
            stripped.pop("FromPort", None)
            stripped.pop("ToPort", None)
        return stripped

    ec2._strip_descriptions = without_ports
