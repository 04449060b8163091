"""Parses requests and formats responses of AWS's query protocols with botocore's models, without losing fields."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from botocore.model import ListShape, ServiceModel, Shape, StructureShape
from botocore.session import Session


@functools.cache
def model_of(service: str) -> ServiceModel:
    """Returns the botocore model of a service, such as `ec2`."""
    return Session().get_service_model(service)


def plain(params: Mapping[str, Any]) -> dict[str, str]:
    """Converts form parameters from lists, as ministack stores them, to single values."""
    return {name: value[0] if isinstance(value, list) else value for name, value in params.items() if value}


def parse(shape: Shape, params: Mapping[str, str], prefix: str = "", is_ec2: bool = True) -> Any:
    """Parses the value of `shape` from form parameters below `prefix`, with boto3's member names."""
    if isinstance(shape, StructureShape):
        found = {}
        for name, member in shape.members.items():
            key = f"{prefix}.{_wire_name(member, name, is_ec2)}".lstrip(".")
            if any(given == key or given.startswith(f"{key}.") for given in params):
                found[name] = parse(member, params, key, is_ec2)
        return found
    if isinstance(shape, ListShape):
        return _parse_list(shape, params, prefix, is_ec2)
    text = params[prefix]
    match shape.type_name:
        case "boolean":
            return text.lower() == "true"
        case "integer" | "long":
            return int(text)
        case "double" | "float":
            return float(text)
    return text


def _parse_list(shape: ListShape, params: Mapping[str, str], prefix: str, is_ec2: bool) -> list[Any]:
    if not is_ec2 and not shape.serialization.get("flattened"):
        prefix = f"{prefix}.{shape.member.serialization.get('name', 'member')}"
    values: list[Any] = []
    while any(given == (key := f"{prefix}.{len(values) + 1}") or given.startswith(f"{key}.") for given in params):
        values.append(parse(shape.member, params, key, is_ec2))
    return values


def _wire_name(member: Shape, name: str, is_ec2: bool) -> str:
    located = str(member.serialization.get("name", name))
    if not is_ec2:
        return located
    return str(member.serialization.get("queryName", located[:1].upper() + located[1:]))


def render(shape: Shape, value: Any) -> str:
    """Returns the XML inside the element of `value`; members that are not in `shape` are omitted."""
    if isinstance(shape, StructureShape):
        return "".join(
            f"<{tag}>{render(member, value[name])}</{tag}>"
            for name, member in shape.members.items()
            if value.get(name) is not None and (tag := member.serialization.get("name", name))
        )
    if isinstance(shape, ListShape):
        tag = shape.member.serialization.get("name", "member")
        return "".join(f"<{tag}>{render(shape.member, item)}</{tag}>" for item in value)
    return escape(str(value).lower() if isinstance(value, bool) else str(value))
