"""The note on a run: an annotation of its owner ConfigMap, visible to all users who may list the namespace's runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.summary import note_in


def read(client: Client, run_id: str) -> str | None:
    """Returns the note on a run; None if there is none, or the run is no longer in the cluster. Raises EngineError."""
    owner_config_map = client.get_if_exists("v1", "ConfigMap", run_id)
    return None if owner_config_map is None else note_in(owner_config_map["metadata"])


def write(client: Client, run_id: str, text: str) -> None:
    """Replaces the note on a run; does nothing if the run is no longer in the cluster. Raises EngineError."""

    def noted(owner_config_map: Mapping[str, Any]) -> Mapping[str, Any]:
        notes = {**(owner_config_map["metadata"].get("annotations") or {}), layout.NOTE_ANNOTATION: text}
        return {**owner_config_map, "metadata": {**owner_config_map["metadata"], "annotations": notes}}

    try:
        client.update("v1", "ConfigMap", run_id, noted)
    except Refused as error:
        if not error.is_absent(run_id, "ConfigMap"):
            raise
