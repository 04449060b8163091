"""Job files that were written: what `windlass init` and `windlass import` print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.importers.source import Left


@dataclass(frozen=True, slots=True)
class WrittenJob:
    """The files that `init` wrote."""

    written: tuple[str, ...]
    template: str
    reason: str
    """Why this template."""


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """What `import` made of a manifest."""

    written: tuple[str, ...]
    """Empty where the file went to standard output."""
    kind: str
    """Kind of the manifest."""
    job: Mapping[str, Any]
    text: str
    """The job file."""
    left: tuple[Left, ...]
    """Fields of the manifest that the job file does not have."""
    target: str
    """The target to paste into targets.yaml; empty where the manifest says nothing of one."""
