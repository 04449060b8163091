"""Turns the models of this room into JSON Schema (draft 2020-12), for editors and for `windlass schema`.

The schema is made from the models, so it cannot drift from them. What it cannot say (a name that would be taken twice,
a pattern that does not compile) the parser says.
"""

from __future__ import annotations

from typing import Any

from windlass.spec.job import Job
from windlass.spec.targets import KINDS

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """The schema of a job file."""
    schema = Job.model_json_schema()
    schema["$schema"] = DRAFT
    schema["title"] = "Windlass job"
    schema["description"] = "A training job: the script, its size, and what it needs. Only name and run are required."
    schema["oneOf"] = [
        {"required": ["run"], "properties": {"run": {"type": "string"}, "command": {"type": "null"}}},
        {"required": ["command"], "properties": {"command": {"type": "array"}, "run": {"type": "null"}}},
    ]
    schema["properties"]["nodes"]["default"] = 1
    schema["properties"]["restarts"]["default"] = 0
    return schema


def targets_schema() -> dict[str, Any]:
    """The schema of a targets file."""
    definitions: dict[str, Any] = {}
    for kind, model in KINDS.items():
        schema = model.model_json_schema()
        definitions |= schema.pop("$defs", {})
        name = schema["properties"].pop("name")
        # In the file the name is the key, and the kind is always written.
        schema["required"] = ["kind", *(field for field in schema.get("required", []) if field != "name")]
        definitions[kind] = schema
    return {
        "$schema": DRAFT,
        "title": "Windlass targets",
        "description": "Where jobs may run, by the names that --on takes. local is always there.",
        "type": "object",
        "propertyNames": {"pattern": name["pattern"]},
        "properties": {"local": {"$ref": "#/$defs/local"}},
        "additionalProperties": {"oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in KINDS]},
        "$defs": definitions,
    }
