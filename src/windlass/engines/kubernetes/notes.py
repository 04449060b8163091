"""The note on a run, as an annotation of its anchor: all who may list the runs of the namespace see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.engines.kubernetes import layout
from windlass.engines.kubernetes.api.client import Client, Refused
from windlass.runs.store import NOTE_CHARS


def note_in(metadata: Mapping[str, Any]) -> str | None:
    """The note in the metadata of an anchor, empty where it was removed; None where none was ever written there."""
    found = (metadata.get("annotations") or {}).get(layout.NOTE_ANNOTATION)
    return None if found is None else str(found)[:NOTE_CHARS]


def read(client: Client, run_id: str) -> str | None:
    """The note on a run, as `note_in`; None also for a run that is no longer in the cluster. Raises EngineError."""
    anchor = _anchor(client, run_id)
    return None if anchor is None else note_in(anchor["metadata"])


def write(client: Client, run_id: str, text: str) -> None:
    """Replace the note on a run, if that is still in the cluster. Raises EngineError."""
    for is_last in (False, False, True):
        anchor = _anchor(client, run_id)
        if anchor is None:
            return
        notes = {**(anchor["metadata"].get("annotations") or {}), layout.NOTE_ANNOTATION: text}
        changed = {**anchor, "metadata": {**anchor["metadata"], "annotations": notes}}
        try:
            client.call("PUT", client.path("v1", "ConfigMap", run_id), changed)
        except Refused as error:  # another command, or the run's end, has changed the anchor meanwhile
            if error.status != 409 or is_last:
                raise
        else:
            return


def _anchor(client: Client, run_id: str) -> Mapping[str, Any] | None:
    try:
        return client.get("v1", "ConfigMap", run_id)
    except Refused as error:
        if error.is_absent(run_id, "ConfigMap"):
            return None
        raise
