"""Turns what pydantic refuses into `Problem`s: a place in the file, a field path, plain words and a near miss."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, ValidationError

from windlass.errors import JobFileError, Problem

Path = tuple[str | int, ...]
"""Keys and list positions from the top of the document: `("data", 0, "via")`."""

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
    "volumes": {**dict.fromkeys(("name", "pvc", "claim_name"), "claim"), "mount_path": "path", "mount": "path"},
}
"""What people used to other tools write, and what it is called here; by the section it is written in."""

MISSING = "is needed, and not there"


@dataclass(frozen=True)
class Places:
    """Where each value of one document stands, and what was already found wrong while it was read."""

    where: str
    """Name of the file or object."""
    lines: Mapping[Path, int] = field(default_factory=dict)
    """Line of each value, from 1; empty where there is no file."""
    order: Mapping[Path, int] = field(default_factory=dict)
    """Rank of each value in the document."""
    below: Path = ()
    """Where the value that is being checked stands in the document."""
    refused: frozenset[Path] = frozenset()
    """Values that the reader refused and left out; that they are missing is not reported again."""
    problems: tuple[tuple[int, Problem], ...] = ()
    """What the reader found, each with its rank."""

    @classmethod
    def of(cls, given: object, where: str) -> Places:
        """The places of an object that no file holds: the order of its keys."""
        order: dict[Path, int] = {}

        def walk(value: object, path: Path) -> None:
            order[path] = len(order)
            if isinstance(value, Mapping) and len(path) < 8:
                for key, below in value.items():
                    walk(below, (*path, str(key)))
            elif isinstance(value, list | tuple) and len(path) < 8:
                for at, below in enumerate(value):
                    walk(below, (*path, at))

        walk(given, ())
        return cls(where, order=order)

    def at(self, path: Path) -> str:
        """`job.yaml:4`, or the name alone where there are no lines."""
        for length in range(len(path), -1, -1):
            if (line := self.lines.get(path[:length])) is not None:
                return f"{self.where}:{line}"
        return self.where

    def rank(self, path: Path) -> int:
        """Sort key that puts problems in the order of the document; what is missing comes where its section begins."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.order:
                return self.order[path[:length]]
        return -1


def refuse(message: str, hint: str = "", at: str = "") -> PydanticCustomError:
    """The error that a validator raises: `message` ends a sentence that begins with the field.

    `at` names another field than the one being validated, as seen from the same section.
    """
    return PydanticCustomError("windlass", "{message}", {"message": message, "hint": hint, "at": at})


def refuse_all(errors: Iterable[tuple[Path, PydanticCustomError]]) -> ValidationError:
    """Several errors of one validator, each at a path below the field that is being validated."""
    # The input is left out, so that no value of a secret can travel inside the error.
    lines = [InitErrorDetails(type=error, loc=path, input=None) for path, error in errors]
    return ValidationError.from_exception_data("spec", lines, hide_input=True)


def found(value: object) -> str:
    """A value in a few words, as a YAML author would know it: `'two'`, `true`, `a list`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value) if len(value) <= 60 else f"{value[:40]!r}… ({len(value)} characters)"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**30 else "a very large number"
    if isinstance(value, float):
        return str(value)
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def near(word: str, choices: Iterable[str]) -> str:
    """`did you mean nodes?`, or nothing where no choice is near."""
    by_folded = {choice.lower(): choice for choice in choices}
    hits = difflib.get_close_matches(word[:80].lower(), by_folded, n=1, cutoff=0.6)
    return f"did you mean {by_folded[hits[0]]}?" if hits else ""


def spell(path: Path) -> str:
    """`("data", 0, "via")` as `data[0].via`; odd keys are shown so that a terminal survives them."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            step = step if len(step) <= 60 else f"{step[:40]}…"
            step = step if step and step.isprintable() else repr(step)
            text += f".{step}" if text else step
    return text


def field_names(model: type[BaseModel], path: Path) -> list[str]:
    """Names of the fields that stand under `path` in a document of this model; empty where it has no fields."""
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


def problems_of(error: ValidationError, model: type[BaseModel], places: Places) -> list[tuple[int, Problem]]:
    """Each problem with its rank in the document."""
    ranked = []
    meant: set[str] = set()
    for line in error.errors(include_url=False):
        path = (*places.below, *line["loc"])
        if line["type"] == "default_factory_not_called":
            continue  # only says that another field is wrong
        context = line.get("ctx", {})
        if context.get("at"):
            path = (*path[:-1], *str(context["at"]).split("."))
        if any(path[:length] in places.refused for length in range(1, len(path) + 1)):
            continue
        message, hint = _words(line, path[len(places.below) :], model)
        ranked.append((places.rank(path), Problem(places.at(path), spell(path), message, hint)))
        if line["type"] == "extra_forbidden" and hint:
            meant.add(spell((*path[:-1], hint.removeprefix("did you mean ").removesuffix("?"))))
    # A field under a wrong name is one mistake, not a wrong field and a missing one.
    return [(rank, problem) for rank, problem in ranked if problem.message != MISSING or problem.field not in meant]


def in_order(ranked: Iterable[tuple[int, Problem]]) -> JobFileError:
    """One error with all problems in the order of the document, none of them twice."""
    return JobFileError(list(dict.fromkeys(problem for _, problem in sorted(ranked, key=lambda item: item[0]))))


def _words(line: ErrorDetails, path: Path, model: type[BaseModel]) -> tuple[str, str]:
    """Message and hint for one error of pydantic; `path` begins at `model`."""
    value, context = line["input"], line.get("ctx", {})
    match line["type"]:
        case "windlass":
            return context["message"], context["hint"]
        case "missing":
            return MISSING, ""
        case "extra_forbidden":
            section = re.sub(r"\[\d+\]", "", spell(path[:-1]))
            word = str(path[-1]).lower().replace("-", "_")
            other = OTHER_NAMES.get(section, {}).get(word)
            return "not a field", f"did you mean {other}?" if other else near(word, field_names(model, path[:-1]))
        case "invalid_key":
            return "not a field", "field names are words"
        case "literal_error":
            choices = re.findall(r"'([^']*)'", context["expected"])
            message = f"expected {' or '.join([', '.join(choices[:-1]), choices[-1]] if choices[1:] else choices)}"
            return f"{message}, found {found(value)}", near(value, choices) if isinstance(value, str) else ""
        case "int_type" | "int_from_float" | "int_parsing":
            return f"expected a whole number, found {found(value)}", _number_hint(value)
        case "float_type" | "float_parsing":
            return f"expected a number, found {found(value)}", _number_hint(value)
        case "finite_number":
            return f"expected a finite number, found {found(value)}", ""
        case "bool_type" | "bool_parsing":
            return f"expected true or false, found {found(value)}", _bool_hint(value)
        case "string_type":
            return f"expected text, found {found(value)}", f'write "{found(value)}"' if _is_scalar(value) else ""
        case "tuple_type" | "list_type":
            return f"expected a list, found {found(value)}", ""
        case "dict_type" | "model_type" | "model_attributes_type" | "mapping_type":
            names = field_names(model, path)
            return f"expected a mapping, found {found(value)}", f"its fields are {', '.join(names)}" if names else ""
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}, found {found(value)}", ""
        case "greater_than":
            return f"must be more than {context['gt']:g}, found {found(value)}", ""
        case "less_than_equal":
            return f"must be at most {context['le']:.15g}, found {found(value)}", ""
    text = line["msg"]
    return text[:1].lower() + text[1:], ""


def _is_scalar(value: object) -> bool:
    return isinstance(value, bool | int | float)


def _number_hint(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,9})?", value.strip()):
        return f"write {value.strip()} without quotes"
    return ""


def _bool_hint(value: object) -> str:
    words = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
    word = words.get(str(value).lower())
    return f"write {word}" if word else ""
