"""Alarms: ministack's DescribeAlarms lacks most fields in the query protocol, which Terraform uses."""

from __future__ import annotations

import json
from typing import Any

from ministack.services import cloudwatch
from tests.fakeaws.emulator.extensions.shapes import model_of, parse, plain, render


def extend() -> None:
    """Returns every field of an alarm."""
    describe = cloudwatch._describe_alarms
    operation = model_of("cloudwatch").operation_model("DescribeAlarms")

    def described(params: dict[str, Any], data: dict[str, Any], is_cbor: bool, is_json: bool = False) -> Any:
        if is_cbor or is_json:
            return describe(params, data, is_cbor, is_json)
        status, _headers, body = describe({}, parse(operation.input_shape, plain(params), "", False), False, True)
        if status != 200:
            return describe(params, data, is_cbor, is_json)
        xml = f"<DescribeAlarmsResult>{render(operation.output_shape, json.loads(body))}</DescribeAlarmsResult>"
        return cloudwatch._xml(200, "DescribeAlarmsResponse", xml)

    cloudwatch._describe_alarms = described
