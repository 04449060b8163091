"""Makes docs/reference/ from the code: the job file, the command line, the Python API, exit codes and errors.

`--check` writes nothing and ends with 1 where a page is not as it would be made.
"""

from __future__ import annotations

import dataclasses
import enum
import html
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from windlass import errors
from windlass.errors import RunEnded, WindlassError
from windlass.spec.docstrings import field_docstrings

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
HEADER = "<!-- Made by `make docs` from the code. Edit the docstrings there, not this page. -->\n\n"
CALL_WIDTH = 80  # what the site shows on a desk without scrolling


def main(argv: list[str]) -> int:
    """Writes the pages, or with `--check` only compares them; returns the exit code."""
    stale = [name for name, make in PAGES.items() if is_stale(FOLDER / name, HEADER + make().rstrip() + "\n")]
    if "--check" in argv:
        for name in stale:
            print(f"docs/reference/{name} is not as the code says; run: make docs", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (FOLDER / name).write_text(HEADER + PAGES[name]().rstrip() + "\n")
        print(f"docs: made reference/{name} anew")
    return 0


def anchored(anchor: str, code: str) -> str:
    """A word of a list as a link to itself, so that pages and users can refer to it."""
    return f'<a id="{anchor}" href="#{anchor}">{cell(f"`{code}`")}</a>'


def cell(text: str) -> str:
    """Text in a table. A bar ends a cell, and no escape of one works in code for all readers of Markdown."""
    code = re.sub(r"`([^`]*\|[^`]*)`", lambda found: f"<code>{html.escape(found[1], quote=False)}</code>", text)
    return " ".join(code.replace("|", "&#124;").split())


def is_stale(path: Path, text: str) -> bool:
    """Whether the page differs from the text that it should have."""
    return not path.exists() or path.read_text() != text


# -- job-file.md ------------------------------------------------------------------------------------------------------


def job_file_page() -> str:
    """Every field of a job file: what is written, and what it means."""
    schema = importlib.import_module("windlass.spec.schema").job_schema()
    words = "Every field that a `job.yaml` may have. `windlass schema` prints the same as JSON Schema, for editors."
    return file_page("Job file", words, schema, "job")


def cluster_file_page() -> str:
    """Every field of a cluster file."""
    schema = importlib.import_module("windlass.spec.schema").cluster_schema()
    words = "Every field that a `cluster.yaml` may have. `windlass schema --cluster` prints the same as JSON Schema."
    return file_page("Cluster file", words, schema, "cluster")


def targets_file_page() -> str:
    """Every field of each kind of target."""
    schema = importlib.import_module("windlass.spec.schema").targets_schema()
    definitions = schema["$defs"]
    kinds = [choice["$ref"].rsplit("/", 1)[-1] for choice in schema["additionalProperties"]["oneOf"]]
    parts = ["# Targets file\n", TARGETS_WORDS]
    for kind in kinds:
        parts += [f"## {kind}\n", definitions[kind].get("description", "") + "\n"]
        parts += [fields_table(definitions[kind], definitions, kind)]
    used = dict.fromkeys(name for kind in kinds for name in references(definitions[kind]))
    for name in used:
        if "properties" in definitions[name]:
            words = definitions[name].get("description", "")
            parts += [f"## {name}\n", words + "\n", fields_table(definitions[name], definitions, name)]
    return "\n".join(parts)


TARGETS_WORDS = """A `targets.yaml` names where jobs run; `--on NAME` chooses, and `windlass targets` lists them. Each
name has a mapping with its `kind` and the fields of that kind:

```yaml title="targets.yaml"
lab:
  kind: kubernetes
  context: lab
  namespace: team-a
aws:
  kind: sagemaker
  region: us-east-1
  role: arn:aws:iam::123456789012:role/training
  storage: s3://bucket/windlass/
```

Files are read in this order, and the first that has a name counts: `targets.yaml` in the working folder,
`~/.config/windlass/targets.yaml` (below `$XDG_CONFIG_HOME` where that is set), and those of
[clusters](../guides/make-a-cluster.md) that Windlass has made. `local`, this machine, is always there and needs no
line. A target holds no secret: credentials stay where `kubectl` and the AWS tools keep them. `windlass schema
--targets` prints the same as JSON Schema, for editors.
"""


def file_page(title: str, words: str, schema: Mapping[str, Any], name: str) -> str:
    """A page with a table for the document of a schema, and one for each of its parts."""
    parts = [f"# {title}\n", f"{words}\n", fields_table(schema, schema["$defs"], name)]
    used = dict.fromkeys(name for part in (schema, *schema["$defs"].values()) for name in references(part))
    for name in used:
        part = schema["$defs"][name]
        if "properties" in part:
            parts += [f"## {name}\n", part.get("description", "") + "\n", fields_table(part, schema["$defs"], name)]
    return "\n".join(parts)


def fields_table(part: Mapping[str, Any], definitions: Mapping[str, Any], owner: str) -> str:
    """A table with a row for each field of one part of the schema."""
    rows = ["| field | written as | meaning |", "|---|---|---|"]
    needed = part.get("required", [])
    for name, field in part["properties"].items():
        # A field that says no more than the part it holds has that part's words.
        words = field.get("description") or definitions.get(next(references(field), ""), {}).get("description", "")
        first = anchored(f"{owner.lower()}.{name}", name) + (" (needed)" if name in needed else "")
        rows.append(f"| {first} | {written_as(field)} | {cell(words)} |")
    return "\n".join(rows) + "\n"


def references(part: Any) -> Iterator[str]:
    """Names of the definitions that a piece of schema points to, in its order."""
    if isinstance(part, Mapping):
        if "$ref" in part:
            yield part["$ref"].rsplit("/", 1)[-1]
        for key, value in part.items():
            if key != "$defs":
                yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def written_as(field: Mapping[str, Any]) -> str:
    """A piece of JSON Schema in a few words: `whole number`, `list of text`, a link to the part that it points to."""
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in field:
            words = [written_as(choice) for choice in field[key] if choice.get("type") != "null"]
            return " or ".join(dict.fromkeys(words))
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {written_as(field.get('items', {}))}"
    if isinstance(field.get("type"), list):
        return " or ".join(written_as({**field, "type": kind}) for kind in field["type"] if kind != "null")
    return WORDS.get(field.get("type", ""), "anything")


WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "object": "mapping",
}


# -- cli.md -----------------------------------------------------------------------------------------------------------


def command_line_page() -> str:
    """What every command says when asked for help: sentences, examples, and tables of its options and commands."""
    cli = importlib.import_module("windlass.cli.main").cli
    parts = ["# Command line\n", "Each command prints this with `-h` or `--help`.\n"]
    top = click.Context(cli, info_name="windlass", **cli.context_settings)
    for words, command, context in commands(cli, top):
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        parts += [f"## {' '.join(words)}\n", f"```text\n{usage}\n```\n", *help_of(command)]
        options = list(options_of(command, context, "-".join(words[1:] or words)))
        parts += ["\n".join(["| option | meaning |", "|---|---|", *options, ""])] if options else []
        if isinstance(command, click.Group):
            parts += ["\n".join(["| command | what it does |", "|---|---|", *below(command, context, words), ""])]
    return "\n".join(parts)


def help_of(command: click.Command) -> Iterator[str]:
    """The paragraphs of a command's help; one that is not wrapped, after `\\b`, is a block of text."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        kept = textwrap.dedent(paragraph.removeprefix("\b\n").removeprefix("Example:\n"))
        yield f"```text\n{kept}\n```\n" if kept != paragraph else f"{paragraph}\n"


def options_of(command: click.Command, context: click.Context, prefix: str) -> Iterator[str]:
    """A row for each option, as its help has it; an anchor is the command and the long name: `run---restarts`."""
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if isinstance(option, click.Option) and record is not None and "--help" not in option.opts:
            yield f"| {anchored(f'{prefix}-{max(option.opts, key=len)}', record[0])} | {cell(record[1])} |"


def below(group: click.Group, context: click.Context, words: tuple[str, ...]) -> Iterator[str]:
    """A row for each command of a group, as its help lists it."""
    table = importlib.import_module("windlass.cli.main").COMMANDS
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            meaning = command.get_short_help_str(200) if context.parent else table[name].help
            yield f"| [{name}](#{'-'.join((*words, name))}) | {meaning} |"


def commands(
    command: click.Command, context: click.Context, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    """A command and all below it, in the order of their help."""
    words = (*above, context.info_name or "")
    yield words, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                inner = click.Context(below, info_name=name, parent=context)
                yield from commands(below, inner, words)


# -- exit-codes.md and errors.md --------------------------------------------------------------------------------------


def error_classes() -> Iterator[type[WindlassError]]:
    """All errors of Windlass, in the order of the file."""
    for value in vars(errors).values():
        if inspect.isclass(value) and issubclass(value, WindlassError):
            yield value


def exit_codes_page() -> str:
    """Which number a command ends with, and why."""
    by_code: dict[int, list[type[WindlassError]]] = {}
    for error in error_classes():
        by_code.setdefault(error.exit_code, []).append(error)
    by_code[RunEnded.exit_code].remove(RunEnded)  # only ever raised as one of those below it
    rows = ["| code | when | error in Python |", "|---|---|---|", "| 0 | it was done | |"]
    for code, found in sorted(by_code.items()):
        names = ", ".join(f"[`{error.__name__}`](errors.md#{error.__name__.lower()})" for error in found)
        rows.append(f"| {code} | {EXIT_WORDS[code]} | {names} |")
    return "\n".join(["# Exit codes\n", "They are fixed: a script may rely on them.\n", *rows, ""])


EXIT_WORDS = {
    1: "a failure of Windlass, or of a tool that it uses",
    2: "wrong use, a bad job file, or no valid login; nothing was started",
    100: "the run failed",
    101: "the run has not finished",
    102: "no such run",
    103: "the run was stopped",
}


def errors_page() -> str:
    """The tree of errors and what each means."""
    parts = ["# Errors\n", f"```text\n{inspect.getdoc(errors)}\n```\n"]
    for error in error_classes():
        base = error.__bases__[0].__name__
        parts += [
            f"## {error.__name__}\n",
            f"Subclass of `{base}`. Exit code {error.exit_code}.\n",
            documentation(error) + "\n",
        ]
    return "\n".join(parts)


# -- python-api.md ----------------------------------------------------------------------------------------------------


def python_api_page() -> str:
    """Everything that `import windlass` offers: functions, then classes, then errors."""
    windlass = importlib.import_module("windlass")
    offered = {name: getattr(windlass, name) for name in windlass.__all__ if not name.startswith("_")}
    raised = [name for name, value in offered.items() if inspect.isclass(value) and issubclass(value, WindlassError)]
    functions = [name for name, value in offered.items() if inspect.isfunction(value)]
    classes = [name for name in offered if name not in raised and name not in functions]
    parts = ["# Python API\n", "What `import windlass` offers. Names that are not here are not promised.\n"]
    for name in functions:
        parts += [f"## {name}\n", f"```python\n{call(name, offered[name])}\n```\n", documentation(offered[name]) + "\n"]
    for name in classes:
        text = documentation(offered[name]).partition("\n\nArgs:\n")[
            0
        ]  # those of a Job are on the page of the job file
        parts += [f"## {name}\n", text + "\n", *members(offered[name]), ""]
    links = ", ".join(f"[{name}](errors.md#{name.lower()})" for name in raised)
    return "\n".join([*parts, f"## Errors\n\n{links}.\n"])


TRAIN: Mapping[str, tuple[str, ...]] = {
    "windlass.train": ("report", "stream"),
    "windlass.train.checkpoint": ("Checkpoint", "Preempted"),
    "windlass.train.sampler": ("BatchSampler",),
}
"""What a training script may import, by module."""
TRAIN_WORDS = """What a training script may import. It works the same under Windlass, under torchrun and on its own, and
needs no package but those that the script has: Windlass puts it on the path of each rank itself. Guides:
[make a script resumable](../guides/make-a-script-resumable.md), [stream data](../guides/stream-data.md). Names that are
not here are not promised.
"""


def train_api_page() -> str:
    """Everything that `windlass.train` offers to scripts."""
    parts = ["# Training library\n", TRAIN_WORDS]
    for module, names in TRAIN.items():
        for name in names:
            value = getattr(importlib.import_module(module), name)
            is_raised = inspect.isclass(value) and issubclass(value, BaseException)
            called = "" if is_raised else f"\n\n{call(name, value)}"
            parts += [f"## {name}\n", f"```python\nfrom {module} import {name}{called}\n```\n"]
            parts += [with_lists(documentation(value)) + "\n"]
            parts += [*members(value), ""] if inspect.isclass(value) and not is_raised else []
    return "\n".join(parts)


def with_lists(text: str) -> str:
    """A docstring whose sections of arguments and errors are lists."""
    lines, is_list = [], False
    for line in text.splitlines():
        if line in ("Args:", "Raises:"):
            is_list = True
            lines += [line, ""]
        elif is_list and (found := re.match(r"    (\w+): (.*)", line)):
            lines.append(f"- `{found[1]}`: {found[2]}")
        elif is_list and line.startswith("        "):
            lines.append(f"  {line.strip()}")
        else:
            is_list = is_list and not line
            lines.append(line)
    return "\n".join(lines)


def members(owner: type[Any]) -> Iterator[str]:
    """A list of a class's values, fields, properties and methods."""
    if issubclass(owner, enum.Enum):
        yield ", ".join(f"`{member.value}`" for member in owner) + ".\n"
    elif issubclass(owner, BaseModel):
        yield "Takes the fields of the [job file](job-file.md) as keywords, and has them as attributes.\n"
    elif dataclasses.is_dataclass(owner):
        notes = field_docstrings(owner)
        for field in dataclasses.fields(owner):
            note = f" – {' '.join(notes[field.name].split())}" if field.name in notes else ""
            yield f"- {anchored(f'{owner.__name__}.{field.name}', f'{field.name}: {field.type}')}{note}"
    inherited = {name for base in (enum.Enum, str, BaseModel) if issubclass(owner, base) for name in dir(base)}
    for name, member in inspect.getmembers(owner):
        if name.startswith("_") or name == "model_rebuild" or (name in inherited and name not in vars(owner)):
            continue
        if isinstance(member, property) and member.fget:
            written = f"{name}: {inspect.signature(member.fget).return_annotation}"
        elif inspect.isfunction(member) or inspect.ismethod(member):
            written = f"{name}{signature(member)}"
        else:
            continue
        yield f"- {anchored(f'{owner.__name__}.{name}', written)} – {one_line(member)}"


def call(name: str, value: Callable[..., Any]) -> str:
    """A function's first line; with a line for each parameter where it is long."""
    words = signature(value)
    whole, (inner, end) = f"def {name}{words}: ...", words[1:].rsplit(") ->", 1)
    if len(whole) <= CALL_WIDTH:
        return whole
    parameters = re.split(r", (?=[*/]|\w+: )", inner)
    return "\n".join([f"def {name}(", *(f"    {one}," for one in parameters), f") ->{end}: ..."])


def signature(value: Callable[..., Any]) -> str:
    """How it is called, annotations without their quotes."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(value)))
    return re.sub(r"^\(self(, )?", "(", text)


def documentation(value: object) -> str:
    """Its docstring, indents removed."""
    return (inspect.getdoc(value) or "").strip()


def one_line(value: object) -> str:
    """Its docstring, for a list."""
    return " ".join(documentation(value).split())


PAGES: dict[str, Callable[[], str]] = {
    "job-file.md": job_file_page,
    "cluster-file.md": cluster_file_page,
    "targets-file.md": targets_file_page,
    "cli.md": command_line_page,
    "exit-codes.md": exit_codes_page,
    "errors.md": errors_page,
    "python-api.md": python_api_page,
    "train-api.md": train_api_page,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
