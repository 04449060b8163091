"""Created job files: output of `windlass init` and `windlass import`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.importers.source import UnmappedField


@dataclass(frozen=True, slots=True)
class WrittenJob:
    """Result of `init`."""

    written: tuple[str, ...]
    template: str
    reason: str
    """Reason for the choice of the template."""


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """Result of `import`."""

    written: tuple[str, ...]
    """Paths of written files; empty if the job file went to standard output."""
    kind: str
    """Kind of the imported manifest."""
    job: Mapping[str, Any]
    text: str
    """Text of the job file."""
    unmapped: tuple[UnmappedField, ...]
    """Fields of the manifest that have no equivalent in the job file."""
    target: str
    """Target definition to paste into targets.yaml; empty if the manifest describes no target."""
