"""Reads `field_hints.txt`: the meaning of fields that a job file lacks, and what to do instead."""

from __future__ import annotations

import functools
import re
from pathlib import Path as File
from typing import Final, Literal, NamedTuple

from windlass.spec.positions import Path

Table = Literal[
    "field",
    "beside",
    "other kind",
    "torchx",
    "torchx resource",
    "sky",
    "sky resource",
    "sagemaker",
]
_NOT_WHOLE: Final = frozenset(("labels", "annotations", "matchLabels"))
"""Mappings whose entries are reported one by one."""


class Hint(NamedTuple):
    """Explanation for a field that a job file does not have."""

    meaning: str
    """Purpose of the field."""
    instead: str
    """The field or action that replaces the imported field."""
    is_handled: bool = False
    """Whether the user need not do anything: Windlass does the same itself, or does not need the field."""


_UNKNOWN: Final = Hint("a job file has no such field", "windlass schema prints the existing fields")


@functools.cache
def hints(table: Table) -> dict[str, Hint]:
    """Returns the hints of one table, by the name of the field, kind or volume."""
    found: dict[str, Hint] = {}
    for line in File(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            named, names, verdict, meaning, instead = line.split(" | ")
            if named == table:
                found |= dict.fromkeys(names.split(), Hint(meaning, instead, verdict == "handled"))
    return found


def is_one_thing(path: Path) -> bool:
    """Whether one hint covers all fields below this path."""
    known = next((step for step in reversed(path) if step in hints("field")), None)
    return known is not None and known not in _NOT_WHOLE


def hint_of(path: Path) -> Hint:
    """Returns the hint for a field that no importer reads, by the innermost known name in its path."""
    return next((hints("field")[str(step)] for step in reversed(path) if step in hints("field")), _UNKNOWN)


def secret_name(variable: str) -> str:
    """Returns the name of the secret that this variable provides on this machine: `hf-token` for `HF_TOKEN`."""
    return re.sub(r"[^a-z0-9]+", "-", variable.lower()).strip("-")


def secret_hint(variable: str, *, of_sagemaker: bool = False) -> str:
    """Explains how ranks get a variable whose value a job file does not contain."""
    name = secret_name(variable)
    if of_sagemaker:
        value = f'\'{{"{variable}": "…"}}\''
        return f"secrets: [{name}], and aws secretsmanager create-secret --name {name} --secret-string {value}"
    kept = f"kubectl create secret generic {name} --from-literal={variable}=…"
    return f"secrets: [{name}], and on this machine export {variable}=…, on a cluster {kept}"
