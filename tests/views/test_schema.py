"""Schemas are generated from the views, and contain the fields that users' programs rely on."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.clusters.terraform import Action, Change
from windlass.pricing.cluster import PoolCost
from windlass.views.projections import PROJECTIONS
from windlass.views.schema import PRINTED, schema_of
from windlass.views.serialise import to_json

RELIED_ON = {
    "status": "id name target host phase exit_code created_at ended_at phases ranks progress cause checkpoint "
    "warnings restarts_left waits_for condition logs_dropped output_dir attempts ledger",
    "ps": "id name target host phase exit_code created_at ended_at phases ranks progress cause checkpoint "
    "warnings restarts_left waits_for condition logs_dropped output_dir as_of stale",
    "why": "id phase verdict summary rank evidence fix others not_seen restarts warnings",
    "cost": "id phase ledger cost",
    "plan": "format run_id name target engine output_dir num_nodes procs_per_node policy job steps notes price",
    "checkpoints": "id folder checkpoints",
    "check": "ok name target nodes procs_per_node job notes",
    "doctor": "ok checks",
    "error": "error",
}
"""Fields that users' programs rely on."""


@pytest.mark.parametrize("name", RELIED_ON)
def test_every_relied_on_field_is_required(name: str) -> None:
    assert set(RELIED_ON[name].split()) <= set(main_part(schema_of(name))["required"])


def main_part(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of the view that is printed without options."""
    part = next((one for one in schema.get("anyOf", []) if "$ref" not in one or "RunId" not in one["$ref"]), schema)
    part = part.get("items", part)
    found: dict[str, Any] = schema["$defs"][part["$ref"].rsplit("/", 1)[-1]] if "$ref" in part else part
    return found


def test_nested_record_values_allow_more_fields() -> None:
    parts = schema_of("status")["$defs"]
    assert parts["RootCause"]["additionalProperties"] is True
    assert parts["RootCause"]["required"] == ["summary"]
    assert parts["Ledger"]["additionalProperties"] is False


def test_every_projection_belongs_to_a_printed_class() -> None:
    """A class that was moved or renamed would print all of its fields, including passwords in a Terraform plan."""
    printed = {name for command in PRINTED for name in titles(schema_of(command))}
    assert {name.rpartition(".")[2] for name in PROJECTIONS} <= printed


def titles(schema: dict[str, Any]) -> set[str]:
    return {schema.get("title", ""), *(one.get("title", "") for one in schema.get("$defs", {}).values())}


def test_attributes_of_resources_are_not_printed() -> None:
    found = Change("aws_db.main", "aws_db", Action.CREATE, {"password": "secret"}, {"password": "secret"}, {})
    assert to_json(found) == {"address": "aws_db.main", "action": "create", "reason": ""}
    assert set(schema_of("cluster-plan")["$defs"]["Change"]["properties"]) == {"address", "action", "reason"}


def test_amounts_are_rounded_to_cents_and_unknown_ones_are_null() -> None:
    assert to_json(PoolCost("a100", (), 43.89999999)) == {"name": "a100", "usd_per_hour": 43.9}
    assert to_json(PoolCost("p6", (), None))["usd_per_hour"] is None
