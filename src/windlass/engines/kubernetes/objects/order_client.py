"""Builds the pod-spec fields with which a pod connects to its supervisor in the cluster: address, key, name. Pure."""

from __future__ import annotations

from typing import Any, Final

from windlass.engines.kubernetes.objects import layout
from windlass.worker import order_client

_VOLUME: Final = "key"
READABLE_BY_GROUP: Final = 0o440
"""Mode of files in the volume: the pod's user owns none of them, but its group (`fsGroup`) can read all."""


def order_client_fields(run_id: str, namespace: str) -> dict[str, list[Any]]:
    """Returns the fields that a pod needs to connect to its supervisor: `env`, `volumeMounts` of its container, and
    `volumes`.
    """
    host = f"{layout.supervisor_name(run_id)}.{namespace}.svc"
    secret = {
        "secretName": layout.key_name(run_id),
        "items": [{"key": layout.KEY_FILE, "path": layout.KEY_FILE}],
        "defaultMode": READABLE_BY_GROUP,
    }
    name = {"name": layout.POD_NAME_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    address = {"name": order_client.ADDRESS, "value": f"{host}:{layout.ORDERS_PORT}"}
    key = {"name": order_client.KEY_FILE, "value": f"{layout.KEY}/{layout.KEY_FILE}"}
    return {
        "env": [name, address, key],
        "volumeMounts": [{"name": _VOLUME, "mountPath": layout.KEY, "readOnly": True}],
        "volumes": [{"name": _VOLUME, "secret": secret}],
    }
