"""Reads the files of a service from the Secret of its run."""

from __future__ import annotations

import base64

from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.objects import layout


def service_files(client: Client, run_id: str) -> dict[str, bytes]:
    """Returns the files of a service by name. Raises Refused if the user may not read the Secret, Unreachable."""
    data = client.get("v1", "Secret", layout.key_name(run_id)).get("data", {})
    return {name: base64.b64decode(text) for name, text in data.items() if name != layout.KEY_FILE}
