"""The note on a run, as an annotation of its anchor: all who may list the runs of the namespace see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.summary import note_in


def read(client: Client, run_id: str) -> str | None:
    """The note on a run, as `note_in`; None also for a run that is no longer in the cluster. Raises EngineError."""
    anchor = client.get_if_exists("v1", "ConfigMap", run_id)
    return None if anchor is None else note_in(anchor["metadata"])


def write(client: Client, run_id: str, text: str) -> None:
    """Replace the note on a run, if that is still in the cluster. Raises EngineError."""

    def noted(anchor: Mapping[str, Any]) -> Mapping[str, Any]:
        notes = {**(anchor["metadata"].get("annotations") or {}), layout.NOTE_ANNOTATION: text}
        return {**anchor, "metadata": {**anchor["metadata"], "annotations": notes}}

    try:
        client.update("v1", "ConfigMap", run_id, noted)
    except Refused as error:
        if not error.is_absent(run_id, "ConfigMap"):
            raise
