"""The manifests of this folder, and helpers that import them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.importers.convert import Format, Imported, import_text

FOLDER = Path(__file__).parent / "manifests"
FILES = sorted(FOLDER.glob("*.*"))
MANIFESTS = [path for path in FILES if path.stem.partition("-")[0] not in ("sky", "torchx", "sagemaker")]


def form_of(path: Path) -> Format:
    return "sky" if path.stem == "sky" else "torchx" if path.stem == "torchx" else "kubernetes"


def imported(path: Path, text: str | None = None) -> Imported:
    return import_text(path.read_text() if text is None else text, path.name, form=form_of(path))


def fields(made: Imported) -> dict[str, Any]:
    """Returns the fields that differ from the defaults, in the short forms of a job file."""
    found: dict[str, Any] = made.job.model_dump(mode="json", exclude_defaults=True)
    if found.get("launcher") == "torchrun":
        del found["launcher"]
    nodes = found.get("nodes")
    if nodes is not None and nodes["min"] == nodes["max"]:
        found["nodes"] = nodes["min"]
    return found


def job_of(name: str) -> dict[str, Any]:
    """Returns the fields of the job imported from the manifest with this prefix."""
    [path] = FOLDER.glob(f"{name}*")
    return fields(imported(path))


def left_of(name: str) -> dict[str, str]:
    """Returns the advice for each unmapped field of the manifest with this prefix."""
    [path] = FOLDER.glob(f"{name}*")
    return {one.field: one.instead for one in imported(path).actionable}
