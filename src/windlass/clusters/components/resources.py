"""Applies, reads and deletes objects of any kind that a cluster serves, by server-side apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from windlass.engines.kubernetes.access.client import MANAGER, Client
from windlass.engines.kubernetes.access.errors import Refused
from windlass.errors import EngineError

Json = Mapping[str, Any]
APPLY: Final = "application/apply-patch+yaml"
PAGE: Final = "200"


class NotServed(EngineError):
    """The cluster does not serve a kind: its CRD is missing or not established yet."""


class Ref(NamedTuple):
    """Reference to an object by API version, kind, namespace and name."""

    api: str
    kind: str
    namespace: str
    """Namespace of the object; empty for a cluster-scoped kind."""
    name: str

    def __str__(self) -> str:
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{self.kind} {self.name}{place}"


class Resources:
    """Objects of one cluster, of any kind that API discovery lists. The methods raise Refused and Unreachable."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._kinds: dict[str, dict[str, tuple[str, bool]]] = {}
        """Plural name of each kind, and whether the kind is namespaced, by API version and kind."""

    def ref(self, manifest: Json, namespace: str) -> Ref:
        """Returns the reference of a manifest; `namespace` is the default namespace. Raises NotServed."""
        api, kind, meta = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
        own = str(meta.get("namespace") or namespace) if self.kind(api, kind)[1] else ""
        return Ref(api, kind, own, str(meta["name"]))

    def kind(self, api: str, kind: str) -> tuple[str, bool]:
        """Returns the plural name of a kind for URLs, and whether the kind is namespaced. Raises NotServed."""
        if kind not in self._kinds.get(api, {}):
            self._kinds[api] = self._discovered(api)
        try:
            return self._kinds[api][kind]
        except KeyError:
            raise NotServed(f"the cluster does not serve {kind} ({api})", "is its operator installed?") from None

    def learn(self, definition: Json) -> None:
        """Registers the kind that a CRD will add, before the cluster serves it."""
        spec = definition["spec"]
        for one in spec["versions"]:
            kinds = self._kinds.setdefault(f"{spec['group']}/{one['name']}", {})
            kinds[spec["names"]["kind"]] = (str(spec["names"]["plural"]), spec["scope"] == "Namespaced")

    def forget(self) -> None:
        """Clears the discovered kinds, after CRDs were added or removed; they are read again when needed."""
        self._kinds.clear()

    def path(self, ref: Ref) -> str:
        """Returns the URL path of an object. Without a name: of the list of its kind, in all namespaces if none is
        given.
        """
        root = f"/apis/{ref.api}" if "/" in ref.api else f"/api/{ref.api}"
        place = f"/namespaces/{quote(ref.namespace, safe='')}" if ref.namespace else ""
        return f"{root}{place}/{self.kind(ref.api, ref.kind)[0]}" + (f"/{quote(ref.name, safe='')}" if ref.name else "")

    def get(self, ref: Ref) -> dict[str, Any] | None:
        """Returns an object; None if it does not exist or its kind is not served."""
        try:
            return self.client.call("GET", self.path(ref))
        except NotServed:
            return None
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def list(self, api: str, kind: str, selector: str = "", namespace: str = "") -> Iterator[dict[str, Any]]:
        """Yields all objects of a kind in one namespace or in all; nothing if the kind is not served."""
        query = {"limit": PAGE, **({"labelSelector": selector} if selector else {})}
        try:
            path = self.path(Ref(api, kind, namespace, ""))
        except NotServed:
            return
        while True:
            try:
                page = self.client.call("GET", path, query=query)
            except Refused as error:
                if error.status == 404:  # the CRD was deleted meanwhile
                    return
                raise
            yield from page.get("items") or ()
            if not (more := (page.get("metadata") or {}).get("continue")):
                return
            query["continue"] = more

    def apply(self, manifest: Json, ref: Ref) -> None:
        """Creates an object, or changes the fields that the manifest contains."""
        body = {
            **manifest,
            "metadata": {**manifest["metadata"], **({"namespace": ref.namespace} if ref.namespace else {})},
        }
        query = {"fieldManager": MANAGER, "force": "true"}
        self.client.call("PATCH", self.path(ref), body, query, content=APPLY)

    def delete(self, ref: Ref) -> None:
        """Requests the deletion of an object, if it exists."""
        try:
            self.client.call("DELETE", self.path(ref), {"propagationPolicy": "Background"})
        except NotServed:
            return
        except Refused as error:
            if error.status != 404:
                raise

    def _discovered(self, api: str) -> dict[str, tuple[str, bool]]:
        root = f"/apis/{api}" if "/" in api else f"/api/{api}"
        try:
            found = self.client.call("GET", root)
        except Refused as error:
            if error.status == 404:
                return {}
            raise
        served = (one for one in found.get("resources") or () if "/" not in str(one.get("name")))
        return {str(one["kind"]): (str(one["name"]), bool(one.get("namespaced"))) for one in served}
