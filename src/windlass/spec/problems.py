"""Converts validation errors of pydantic to `Problem`s: line, field path, message and the nearest known name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, ValidationError

from windlass.errors import Problem, near
from windlass.spec.positions import Path, Positions, found, spell

_RESOURCES = {
    **dict.fromkeys(("gpu", "num_gpus", "gpus_per_node", "accelerators"), "resources.gpus"),
    **dict.fromkeys(("accelerator", "accelerator_type"), "resources.gpu_type"),
    **dict.fromkeys(("cpu", "num_cpus"), "resources.cpus"),
    **dict.fromkeys(("mem", "memory_gb", "ram"), "resources.memory"),
    **dict.fromkeys(("shm_size", "shared_memory"), "resources.shm"),
    **dict.fromkeys(("instance_type", "instance_types"), "resources.instance"),
}
OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "": {
        **dict.fromkeys(("num_nodes", "nnodes", "n_nodes", "hosts", "replicas", "instance_count"), "nodes"),
        **dict.fromkeys(("nproc", "nproc_per_node", "procs", "workers", "num_workers", "slots"), "procs_per_node"),
        **dict.fromkeys(("processes", "num_processes", "ranks", "world_size"), "procs_per_node"),
        **dict.fromkeys(("script", "entrypoint", "entry_point", "program", "main"), "run"),
        **dict.fromkeys(("cmd", "args", "commands"), "command"),
        **dict.fromkeys(("timeout_seconds", "max_duration", "time_limit", "max_run"), "timeout"),
        **dict.fromkeys(("max_restarts", "retries", "retry", "backoff_limit"), "restarts"),
        **dict.fromkeys(("workdir", "working_dir", "source_dir", "src"), "code"),
        **dict.fromkeys(("docker_image", "container", "image_uri"), "image"),
        **dict.fromkeys(("envs", "environment", "environment_variables"), "env"),
        **dict.fromkeys(("inputs", "datasets", "file_mounts", "storage"), "data"),
        **dict.fromkeys(("output", "output_path", "output_dir"), "outputs"),
        **dict.fromkeys(("grace_period", "termination_grace_period", "shutdown_timeout"), "grace"),
        **dict.fromkeys(("interpreter", "python_version"), "python"),
        **dict.fromkeys(("mounts", "pvc"), "volumes"),
        **dict.fromkeys(("backend", "framework"), "launcher"),
        "namespace": "kubernetes.namespace",
        "master_port": "local.port",
        "port": "local.port",
        "warm_pool": "sagemaker.warm_pool",
        "outputs_at": "outputs.at",
        "node_labels": "node_selector",
        **dict.fromkeys(("collect", "artifacts"), "outputs.collect"),
        **{name: f"resources.{name}" for name in ("gpus", "gpu_type", "cpus", "memory", "shm", "instance")},
        **_RESOURCES,
    },
    "resources": {name: field.removeprefix("resources.") for name, field in _RESOURCES.items()},
    "nodes": {"minimum": "min", "maximum": "max", "count": "min and max"},
    "restarts": {"count": "max", "retries": "max", "when": "on", "limit": "max"},
    "checkpoint": {
        **dict.fromkeys(("interval", "save_every"), "every"),
        "keep_last": "keep",
        **dict.fromkeys(("pattern", "glob", "path"), "find"),
        **dict.fromkeys(("resume_from", "args"), "resume"),
    },
    "data": {**dict.fromkeys(("src", "path", "url", "uri", "from"), "source"), "mode": "via", "type": "via"},
    "kubernetes": {"node_labels": "node_selector"},
    "volumes": {**dict.fromkeys(("name", "pvc", "claim_name"), "claim"), "mount_path": "path", "mount": "path"},
}
"""Maps field names of other tools to fields of a job file, by section."""

MISSING = "required field missing"


def refuse(message: str, hint: str = "", at: str = "") -> PydanticCustomError:
    """Returns the error for a validator to raise: `message` ends a sentence that begins with the field. `at` names the
    field with the error, if it is another field of the same section.
    """
    return PydanticCustomError("windlass", "{message}", {"message": message, "hint": hint, "at": at})


def refuse_all(errors: Iterable[tuple[Path, PydanticCustomError]]) -> ValidationError:
    """Combines several errors of one validator, each at a path below the field that is validated."""
    # The input is omitted so that the error cannot contain the value of a secret.
    lines = [InitErrorDetails(type=error, loc=path, input=None) for path, error in errors]
    return ValidationError.from_exception_data("spec", lines, hide_input=True)


def field_names(model: type[BaseModel], path: Path) -> list[str]:
    """Returns the names of the fields under `path` in a document of this model; empty if the value has no fields."""
    here: type[BaseModel] | None = model
    for step in path:
        if isinstance(step, str):
            field_info = here.model_fields.get(step) if here else None
            here = _model_in(field_info.annotation) if field_info else None
    return list(here.model_fields) if here else []


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)


def problems_of(error: ValidationError, model: type[BaseModel], positions: Positions) -> list[tuple[int, Problem]]:
    """Converts a validation error to problems, each with its rank in the document."""
    ranked = []
    meant: set[str] = set()
    for line in error.errors(include_url=False):
        path = (*positions.below, *line["loc"])
        if path[-1:] == ("[key]",):  # pydantic adds "[key]" to the path of an invalid key
            path = path[:-1]
        if line["type"] == "default_factory_not_called":
            continue  # skipped: only a consequence of an error in another field
        if line["type"] == "too_short" and line["input"]:
            continue  # skipped: the list is too short only because an item is invalid
        context = line.get("ctx", {})
        if context.get("at"):
            path = (*path[:-1], *str(context["at"]).split("."))
        if any(path[:length] in positions.refused for length in range(1, len(path) + 1)):
            continue
        message, hint = _words(line, path[len(positions.below) :], model)
        ranked.append((positions.rank(path), Problem(positions.at(path), spell(path), message, hint)))
        if line["type"] == "extra_forbidden" and hint:
            meant.add(spell((*path[:-1], hint.removeprefix("did you mean ").removesuffix("?"))))
    # A misspelled required field is reported once: as unknown, not also as missing.
    return [(rank, problem) for rank, problem in ranked if problem.message != MISSING or problem.field not in meant]


def _words(line: ErrorDetails, path: Path, model: type[BaseModel]) -> tuple[str, str]:
    """Returns message and hint for one error of pydantic; `path` begins at `model`."""
    value, context = line["input"], line.get("ctx", {})
    match line["type"]:
        case "windlass":
            return context["message"], context["hint"]
        case "extra_forbidden":
            section = re.sub(r"\[\d+\]", "", spell(path[:-1]))
            word = str(path[-1]).lower().replace("-", "_")
            other = OTHER_NAMES.get(section, {}).get(word)
            if other is not None and other.split(".")[0] not in field_names(model, path[:-1]):
                other = None  # the suggested field exists only in job files
            return "not a field", f"did you mean {other}?" if other else near(word, field_names(model, path[:-1]))
        case "literal_error":
            choices = re.findall(r"'([^']*)'", context["expected"])
            listed = " or ".join([", ".join(choices[:-1]), choices[-1]] if choices[1:] else choices)
            if isinstance(value, str):
                fix = near(value, choices)
            else:  # the value is not text, but its text may be an allowed word
                fix = _text_hint(value) if found(value) in choices else ""
            return f"expected {listed or context['expected']}, found {found(value)}", fix
        case "dict_type" | "model_type" | "model_attributes_type" | "mapping_type":
            names = field_names(model, path)
            return f"expected a mapping, found {found(value)}", f"its fields are {', '.join(names)}" if names else ""
    if line["type"] not in _MESSAGES:
        return line["msg"][:1].lower() + line["msg"][1:], ""
    message, hint = _MESSAGES[line["type"]]
    bounds = {name: _bound(one) for name, one in context.items() if name in ("ge", "gt", "le")}
    return message.format(**{**context, **bounds}, found=found(value)), hint(value)


def _bound(number: float) -> str:
    """Formats a bound as users write it; a multiple of 1 GiB must be a size, because all other bounds are smaller."""
    gib, rest = divmod(number, 1 << 30)
    return f"{gib:g}GiB" if gib and not rest else f"{number:.15g}"


def _no_hint(_: object) -> str:
    return ""


def number_hint(value: object) -> str:
    """Returns a hint for a value that was meant as a number but has another type; empty for other values."""
    if isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,9})?", value.strip()):
        return f"write {value.strip()} without quotes"
    return ""


def _bool_hint(value: object) -> str:
    words = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
    word = words.get(str(value).lower())
    return f"write {word}" if word else ""


def _text_hint(value: object) -> str:
    if isinstance(value, PurePath):
        return "give str() of it"
    return f'write "{found(value)}"' if isinstance(value, bool | int | float) else ""


_MESSAGES: Mapping[str, tuple[str, Callable[[object], str]]] = {
    "missing": (MISSING, _no_hint),
    "invalid_key": ("not a field", lambda _: "field names are words"),
    **dict.fromkeys(
        ("int_type", "int_from_float", "int_parsing"), ("expected a whole number, found {found}", number_hint)
    ),
    **dict.fromkeys(("float_type", "float_parsing"), ("expected a number, found {found}", number_hint)),
    **dict.fromkeys(("bool_type", "bool_parsing"), ("expected true or false, found {found}", _bool_hint)),
    **dict.fromkeys(("tuple_type", "list_type"), ("expected a list, found {found}", _no_hint)),
    "too_short": ("is empty", _no_hint),
    "finite_number": ("expected a finite number, found {found}", _no_hint),
    "string_type": ("expected text, found {found}", _text_hint),
    "greater_than_equal": ("must be at least {ge}, found {found}", _no_hint),
    "greater_than": ("must be more than {gt}, found {found}", _no_hint),
    "less_than_equal": ("must be at most {le}, found {found}", _no_hint),
}
"""Maps types of pydantic errors to a message and a function that returns the hint."""
