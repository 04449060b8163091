"""Describes a component: its pinned version, its source, and the objects that must become ready. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.components.values import ClusterValues

Json = Mapping[str, Any]
COMPONENT_LABEL: Final = "windlass.dev/component"
"""Label with the component's name, on every installed object, every Helm release, and the record."""
VERSION_ANNOTATION: Final = "windlass.dev/component-version"
SYSTEM: Final = "kube-system"


@dataclass(frozen=True, slots=True)
class Chart:
    """A Helm chart."""

    repository: str
    """Repository URL (`oci://…` or `https://…`), without the name of the chart."""
    name: str
    version: str
    sha256: str = ""
    """SHA-256 of the chart's archive as published by its repository. If empty, the digest of the first installation,
    which is recorded in the cluster, is compared instead."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """A file of manifests that a project publishes for each version."""

    url: str
    sha256: str = ""
    """SHA-256 of the file. If empty, the digest of the first installation is compared instead."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Objects that Windlass generates from the Terraform outputs of the cluster."""

    make: Callable[[ClusterValues], Sequence[Json]]


@dataclass(frozen=True, slots=True)
class Ready:
    """An object that must exist and be ready: a Deployment, DaemonSet, CustomResourceDefinition or APIService."""

    kind: str
    name: str
    namespace: str = ""
    """Namespace of the object; empty for the component's namespace, or for a cluster-scoped kind."""


@dataclass(frozen=True, slots=True)
class Component:
    """A component of a training cluster: one row of the table."""

    name: str
    version: str
    source: Chart | Manifests | Generated
    namespace: str
    image: str = ""
    """Image of the component with its registry, without a tag; empty if it has none."""
    image_key: str = ""
    """Helm value that names the image's repository, or its registry: `controller.image.repository`."""
    ready: tuple[Ready, ...] = ()
    needs: tuple[str, ...] = ()
    """Components that are required by this one and installed before it."""
    after: tuple[str, ...] = ()
    """Components that are installed before this one if they are selected."""
    values: Callable[[ClusterValues], Json] = lambda _: {}
    """Helm values of the chart, computed from the cluster's values."""
    is_wanted: Callable[[ClusterValues], bool] = lambda _: True
    """Whether a cluster with these values gets the component."""

    def helm_values(self, values: ClusterValues) -> dict[str, Any]:
        """Returns the Helm values of the chart, with the image of the mirror if there is one."""
        found: dict[str, Any] = dict(self.values(values))
        if values.image_mirror and self.image_key:
            *path, last = self.image_key.split(".")
            inner = found
            for name in path:
                inner[name] = dict(inner.get(name) or {})
                inner = inner[name]
            name = self.image.partition("/")[0] if last == "registry" else self.image
            inner[last] = f"{values.image_mirror}/{name}"
        return found

    def mirrored(self, one: Json, values: ClusterValues) -> Json:
        """Returns a manifest with the image of the mirror; unchanged without a mirror."""
        bare = self.image.removeprefix("docker.io/")
        if values.image_mirror and one["kind"] == "Deployment":
            for container in one["spec"]["template"]["spec"]["containers"]:
                name, _, tag = str(container["image"]).removeprefix("docker.io/").partition(":")
                if name == bare:
                    container["image"] = f"{values.image_mirror}/{self.image}:{tag}"
        return one


def crds(*names: str) -> tuple[Ready, ...]:
    """Returns readiness checks for CustomResourceDefinitions, by name."""
    return tuple(Ready("CustomResourceDefinition", name) for name in names)
