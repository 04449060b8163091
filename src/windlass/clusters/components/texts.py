"""Parses third-party manifests, and orders their objects for installation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from windlass.errors import EngineError

Json = Mapping[str, Any]
DEFINITION: Final = "CustomResourceDefinition"
CREATED_FIRST: Final = (
    *("Namespace", DEFINITION, "PriorityClass", "StorageClass", "ServiceAccount"),
    *("ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "ConfigMap", "Secret"),
    *("PersistentVolume", "PersistentVolumeClaim", "Service", "Deployment", "DaemonSet", "StatefulSet", "Job"),
)
CREATED_LAST: Final = ("APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
"""Kinds created last, because the API server calls their services as soon as they exist."""


def parsed(text: str, what: str) -> list[dict[str, Any]]:
    """Parses the objects of YAML documents, including items of lists. Raises EngineError."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        documents = list(YAML(typ="safe", pure=True).load_all(text))
    except (YAMLError, ValueError, RecursionError) as error:
        raise EngineError(f"{what} is not YAML: {' '.join(str(error).split())[:300]}") from error
    found = [each for document in documents if document for each in _unlisted(document)]
    for each in found:
        if not _is_object(each):
            raise EngineError(f"{what} has a document that is not a Kubernetes object")
    return found


def in_order(objects: Iterable[Json]) -> list[Json]:
    """Sorts objects for creation: dependencies first, custom resources and webhooks last."""
    return sorted(objects, key=lambda one: _rank(str(one["kind"])))


def _rank(kind: str) -> int:
    if kind in CREATED_FIRST:
        return CREATED_FIRST.index(kind)
    return len(CREATED_FIRST) + 1 + (1 if kind in CREATED_LAST else 0)


def _unlisted(document: Any) -> list[Any]:
    if isinstance(document, Mapping) and str(document.get("kind", "")).endswith("List") and "items" in document:
        return list(document["items"] or ())
    return [document]


def _is_object(each: Any) -> bool:
    return (
        isinstance(each, Mapping)
        and all(isinstance(each.get(name), str) for name in ("apiVersion", "kind"))
        and isinstance(each.get("metadata"), Mapping)
        and isinstance(each["metadata"].get("name"), str)
    )
