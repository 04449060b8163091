"""Generates the JSON Schema (draft 2020-12) of job, targets and cluster files, for editors and `windlass schema`.

The schema is generated from the models. Rules that a schema cannot express, such as unique names or valid regular
expressions, are checked only by the parser.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from windlass.spec.docstrings import field_docstrings
from windlass.spec.job import Job
from windlass.spec.sections import Section
from windlass.spec.targets import KINDS

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """Returns the schema of a job file."""
    schema = _described(Job)
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


def job_settings() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Maps the field names that `--set` accepts (`resources.gpus`) to their descriptions and allowed values."""
    schema = job_schema()
    return dict(_settings(schema, schema["$defs"]))


def _settings(
    part: dict[str, Any], definitions: dict[str, Any], above: str = ""
) -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    for name, field in part["properties"].items():
        inner = [definitions[one["$ref"].rsplit("/", 1)[-1]] for one in _choices(field) if "$ref" in one]
        nested = [one for one in inner if "properties" in one]
        flat = [one for one in (*_choices(field), *inner) if "$ref" not in one and "properties" not in one]
        if any(one.get("type") != "null" for one in flat) or not nested:
            values = tuple(str(value) for one in flat for value in one.get("enum", ()))
            values += ("true", "false") if any(one.get("type") == "boolean" for one in flat) else ()
            yield f"{above}{name}", (" ".join(field.get("description", "").split()), values)
        for one in nested:
            yield from _settings(one, definitions, f"{above}{name}.")


def _choices(field: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the alternative schemas of a field, or its only schema."""
    return next((field[key] for key in ("anyOf", "oneOf", "allOf") if key in field), [field])


def targets_schema() -> dict[str, Any]:
    """Returns the schema of a targets file."""
    definitions: dict[str, Any] = {}
    for kind, model in KINDS.items():
        schema = _described(model)
        definitions |= schema.pop("$defs", {})
        name = schema["properties"].pop("name")
        # In the file, the name of a target is its key, and `kind` is required.
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


def cluster_schema() -> dict[str, Any]:
    """Returns the schema of a cluster file."""
    from windlass.spec.cluster import Cluster

    schema = _described(Cluster)
    schema["$schema"] = DRAFT
    schema["title"] = "Windlass cluster"
    schema["description"] = "An EKS cluster for training. Only name and region are required."
    return schema


def _described(model: type[Section]) -> dict[str, Any]:
    """Returns the schema of a model, with the field docstrings of its source as descriptions."""
    schema = model.model_json_schema()
    parts = {part.__name__: part for part in _all(Section)}
    for name, found in ((model.__name__, schema), *schema.get("$defs", {}).items()):
        owners = [one for one in parts[name].__mro__ if issubclass(one, Section)] if name in parts else []
        words = {field: text for owner in reversed(owners) for field, text in field_docstrings(owner).items()}
        if name in parts:  # fields of the model itself precede fields of its base classes
            own = vars(parts[name])["__annotations__"]
            found["properties"] = dict(sorted(found["properties"].items(), key=lambda field: field[0] not in own))
        for field, one in found.get("properties", {}).items():
            if field in words and "description" not in one:
                one["description"] = inspect.cleandoc(words[field])
    return schema


def _all(part: type[Section]) -> Iterator[type[Section]]:
    for one in part.__subclasses__():
        yield one
        yield from _all(one)
