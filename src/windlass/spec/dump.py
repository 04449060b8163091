"""Writes a `Job` as the text of a job file, with only the fields that differ from their defaults.

The module uses no YAML library: the short forms (`nodes: 2`, `timeout: 2h`) need separate code anyway, and the text
stays the same across library versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from windlass.spec.job import Job
from windlass.spec.units import format_duration, format_size, parse_duration, parse_size
from windlass.spec.yamlwriter import literal, scalar

_DURATIONS = frozenset(("every", "timeout", "grace", "hang", "warm_pool"))
_SIZES = frozenset(("memory", "shm"))
_WIDTH = 100


def dump_job(job: Job) -> str:
    """Returns YAML text that `parse_job` reads as an equal job."""
    start: dict[str, Any] = {"command": job.command} if job.run is None else {"run": job.run}
    usual = Job(name=job.name, command=["any"])
    sized = Job(name=job.name, **start, env=job.env, nodes=job.nodes, procs_per_node=job.procs_per_node)
    by_size = {"launcher": sized.launcher}
    lines = [f"name: {scalar(job.name)}"]
    for name in Job.model_fields:
        value = getattr(job, name)
        if name in start or (
            name not in ("name", "run", "command") and value != by_size.get(name, getattr(usual, name))
        ):
            lines.append(_field(name, _short(name, value, getattr(usual, name))))
    return "\n".join(lines) + "\n"


def _short(name: str, value: object, usual: object) -> Any:
    """Returns the shortest plain data that parses to the same value."""
    if name == "nodes" and isinstance(value, BaseModel):
        low, high = getattr(value, "min", 0), getattr(value, "max", 0)
        return low if low == high else {"min": low, "max": high}
    if isinstance(value, BaseModel):
        fields = {}
        for field, info in type(value).model_fields.items():
            part = getattr(value, field)
            if info.is_required() or part != info.get_default(call_default_factory=True, validated_data={}):
                fields[field] = _short(field, part, info.default)
        plain = {"restarts": "max", "outputs": "to"}.get(name, "")
        return fields[plain] if set(fields) == {plain} else fields
    if isinstance(value, tuple):
        return [_short("", part, None) for part in value]
    if name in _DURATIONS and isinstance(value, float):
        words = format_duration(value).replace(" ", "")
        return words if parse_duration(words) == value else value
    if name in _SIZES and isinstance(value, int):
        words = format_size(value)
        return words if words[-2:] == "iB" and parse_size(words) == value else value
    return value


def _field(name: str, value: Any) -> str:
    """Formats `name: value` on one line; text of several lines as a block, a long list or mapping with one line per
    entry.
    """
    if isinstance(value, str) and (block := literal(value, "  ")) is not None:
        return "\n".join([f"{name}: {block[0]}", *block[1:]])
    line = f"{name}: {_flow(value)}"
    has_block = isinstance(value, list) and any(isinstance(part, str) and literal(part, "") for part in value)
    if (len(line) <= _WIDTH and not has_block) or not isinstance(value, list | dict) or not value:
        return line
    return "\n".join([f"{name}:", *_entries(value, "  ")])


def _entries(value: list[Any] | dict[str, Any], indent: str) -> Iterator[str]:
    """Yields the lines of a list or mapping: one for each entry, or further ones for an entry that is too long."""
    pairs = value.items() if isinstance(value, dict) else ((None, part) for part in value)
    for key, part in pairs:
        lead = f"{indent}- " if key is None else f"{indent}{scalar(key)}: "
        block = literal(part, f"{indent}  ") if isinstance(part, str) else None
        if block is not None:
            yield from (f"{lead}{block[0]}", *block[1:])
        elif len(lead + _flow(part)) <= _WIDTH or not isinstance(part, list | dict) or not part:
            yield f"{lead}{_flow(part)}"
        elif key is None:  # the first line of an entry follows its dash
            first, *rest = _entries(part, f"{indent}  ")
            yield from (f"{lead}{first.lstrip()}", *rest)
        else:
            yield from (lead.rstrip(), *_entries(part, f"{indent}  "))


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(key)}: {_flow(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(part) for part in value) + "]"
    return scalar(value)
