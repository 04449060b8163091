"""Flow logs: ministack drops the role, the aggregation interval, the format and the tags (type `vpc-flow-log`)."""

from __future__ import annotations

from typing import Any

from ministack.services import ec2
from tests.fakeaws.emulator.extensions.shapes import model_of, parse, plain, render

DEFAULTS = {
    "MaxAggregationInterval": 600,
    "LogFormat": "${version} ${account-id} ${interface-id} ${srcaddr} ${dstaddr} ${srcport} ${dstport} ${protocol} "
    "${packets} ${bytes} ${start} ${end} ${action} ${log-status}",
    "DeliverLogsStatus": "SUCCESS",
}


def extend() -> None:
    """Stores and returns every field of a flow log."""
    asked = model_of("ec2").shape_for("CreateFlowLogsRequest")
    told = model_of("ec2").shape_for("FlowLog")
    create, tag = ec2._create_flow_logs, ec2._parse_tag_specs

    def created(params: dict[str, Any]) -> Any:
        before = set(ec2._flow_logs.keys())
        answer = create(params)
        for name in set(ec2._flow_logs.keys()) - before:
            ec2._flow_logs[name].update(DEFAULTS | parse(asked, plain(params)))
        return answer

    def described(params: dict[str, Any]) -> Any:
        filters = ec2._parse_filters(params)
        names = ec2._parse_member_list(params, "FlowLogId")
        found = [
            {**record, "Tags": ec2._tags.get(name, [])}
            for name, record in ec2._flow_logs.items()
            if (not names or name in names)
            and ec2._resource_matches_tag_filters(name, filters)
            and record["ResourceId"] in filters.get("resource-id", [record["ResourceId"]])
        ]
        items = "".join(f"<item>{render(told, record)}</item>" for record in found)
        return ec2._xml(200, "DescribeFlowLogsResponse", f"<flowLogSet>{items}</flowLogSet>")

    def tagged(params: dict[str, Any], kind: str, name: str) -> None:
        tag(params, "vpc-flow-log" if kind == "flow-log" else kind, name)

    ec2._create_flow_logs, ec2._describe_flow_logs, ec2._parse_tag_specs = created, described, tagged
    for handlers in [table for table in vars(ec2).values() if isinstance(table, dict) and "CreateFlowLogs" in table]:
        handlers |= {"CreateFlowLogs": created, "DescribeFlowLogs": described}
