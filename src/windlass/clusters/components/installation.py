"""Installs or updates one component; continues after a killed installation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from windlass.clusters.components import readiness, removal
from windlass.clusters.components.component import (
    COMPONENT_LABEL,
    VERSION_ANNOTATION,
    Chart,
    Component,
    Generated,
    Manifests,
)
from windlass.clusters.components.context import Context
from windlass.clusters.components.record import Record, Worker, joined
from windlass.clusters.components.resources import NotServed, Ref
from windlass.clusters.components.steps import Steps
from windlass.clusters.components.texts import DEFINITION, in_order, parsed
from windlass.errors import EngineError

Json = Mapping[str, Any]
SERVED_SECONDS: Final = 60.0


class Foreign(EngineError):
    """An object or release of the component exists already, and Windlass did not install it."""


def install(context: Context, component: Component, steps: Steps, seconds: float) -> None:
    """Installs a component and waits until it is ready. Raises NotReady, Foreign, EngineError, MissingExtra."""
    before = context.records.find(component.name)
    content = _content(context, component)
    _refuse_other_content(component, content, before)
    objects = in_order(_objects(context, component))
    digest = _digest(component, objects, component.helm_values(context.values))
    if before and (before.state, before.digest) == ("installed", digest) and not context.problems(component):
        steps.say("unchanged", component.version)
        return
    context.await_worker(before)
    refs = tuple(_refs(context, component, objects))
    _refuse_foreign(context, component, refs, before)
    known = joined(before.objects if before else (), refs)
    record = Record(
        component.name,
        component.version,
        "installing",
        component.namespace,
        isinstance(component.source, Chart),
        digest,
        content,
        known,
        Worker.here(),
        context.clock.time(),
    )
    context.records.write(record)
    _change(context, component, objects, steps)
    _drop_stale(context, record, refs, steps)
    _await_ready(context, component, steps, seconds)
    kept = joined(refs, (ref for ref in known if ref.kind == DEFINITION))
    context.records.write(replace(record, objects=kept).with_state("installed", context.clock.time()))


def _content(context: Context, component: Component) -> str:
    """Returns the SHA-256 of a component's archive or manifests; empty for an unpacked chart and for generated
    objects.
    """
    source = component.source
    if isinstance(source, Chart):
        archive = context.source.chart(source)
        return hashlib.sha256(archive.read_bytes()).hexdigest() if archive.is_file() else ""
    if isinstance(source, Manifests):
        return hashlib.sha256(context.source.manifests(component.name, source).encode()).hexdigest()
    return ""


def _refuse_other_content(component: Component, content: str, before: Record | None) -> None:
    """Raises EngineError if the content of a chart or manifest file differs from the published digest, or from the
    digest of the first installation of this version in this cluster.

    Published content that changes under the same version was replaced, by the project or by an attacker.
    """
    published = "" if isinstance(component.source, Generated) else component.source.sha256
    installed = before.content if before is not None and before.version == component.version else ""
    what = f"component {component.name}: {component.version}"
    if content and published and content != published:
        message = f"{what} is published with the SHA-256 {published}, but the downloaded content has {content}"
        raise EngineError(message, "find out who changed it, and delete the copy")
    if content and installed and content != installed:
        message = f"{what} was installed here with the SHA-256 {installed}, but the downloaded content has {content}"
        hint = f"find out who changed it; to accept it, remove {component.name} for one `cluster up`"
        raise EngineError(message, hint)


def _objects(context: Context, component: Component) -> list[Json]:
    """Returns objects that Windlass applies itself. For a chart: only its CRDs, because helm never upgrades them."""
    source, what = component.source, f"component {component.name}"
    if isinstance(source, Chart):
        return list(parsed(context.helm.definitions(context.source.chart(source)), what))
    if isinstance(source, Manifests):
        found = parsed(context.source.manifests(component.name, source), what)
        return [component.mirrored(one, context.values) for one in found]
    return list(source.make(context.values))


def _refs(context: Context, component: Component, objects: Iterable[Json]) -> Iterator[Ref]:
    """Yields references to all objects; the component's dedicated namespace comes first."""
    if removal.is_own_namespace(component.namespace):
        yield Ref("v1", "Namespace", "", component.namespace)
    for each in objects:
        if each["kind"] == DEFINITION:
            context.resources.learn(each)
        yield context.resources.ref(each, component.namespace)


def _refuse_foreign(context: Context, component: Component, refs: Iterable[Ref], before: Record | None) -> None:
    """Raises Foreign if an object or a release exists that this component did not create."""
    for ref in refs:
        found = None if ref.kind == "Namespace" else context.resources.get(ref)
        if found is not None and not removal.is_marked(found, component.name):
            owner = (found["metadata"].get("labels") or {}).get(COMPONENT_LABEL)
            by = f"component {owner}" if owner else "something else than Windlass"
            raise Foreign(
                f"component {component.name}: {ref} exists already, installed by {by}",
                f"remove {component.name} from the cluster file, or delete the existing object first",
            )
    if isinstance(component.source, Chart) and before is None:
        release = context.helm.find(component.name, component.namespace)
        if release and not context.helm.find(component.name, component.namespace, is_ours=True):
            raise Foreign(
                f"component {component.name}: helm has a release {release.chart} of that name in "
                f"{component.namespace}, which Windlass has not installed",
                f"helm uninstall {component.name} -n {component.namespace}; or leave it out",
            )


def _change(context: Context, component: Component, objects: Sequence[Json], steps: Steps) -> None:
    """Applies the CRDs of a component, waits until they are served, then applies its other objects and its Helm
    release.
    """
    if removal.is_own_namespace(component.namespace):
        ref = Ref("v1", "Namespace", "", component.namespace)
        if context.resources.get(ref) is None:  # an existing namespace is not labeled, so `uninstall` keeps it
            made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": component.namespace}}
            context.resources.apply(_marked(made, component), ref)
    definitions = [one for one in objects if one["kind"] == DEFINITION]
    for each in definitions:
        _apply(context, component, each, steps)
    for each in definitions:
        _await_served(context, each)
    for each in objects:
        if each["kind"] not in (DEFINITION, "Namespace"):
            _apply(context, component, each, steps)
    if isinstance(component.source, Chart):
        _release(context, component, component.source, steps)


def _apply(context: Context, component: Component, each: Json, steps: Steps) -> None:
    ref = context.resources.ref(each, component.namespace)
    steps.say("apply", str(ref))
    context.resources.apply(_marked(each, component), ref)


def _release(context: Context, component: Component, chart: Chart, steps: Steps) -> None:
    found = context.helm.find(component.name, component.namespace)
    if found is not None and found.is_pending:
        steps.say("recover", f"release {found.name} is {found.status}: an earlier helm was killed")
        context.helm.recover(found)
    steps.say("helm", f"{chart.name} {chart.version}")
    values = component.helm_values(context.values)
    context.helm.upgrade(component.name, component.namespace, context.source.chart(chart), values)


def _drop_stale(context: Context, record: Record, refs: Sequence[Ref], steps: Steps) -> None:
    """Deletes objects that only the previous version has. CRDs are kept, because deleting a CRD would delete its custom
    resources.
    """
    for ref in reversed(record.objects):
        is_stale = ref not in refs and ref.kind not in (DEFINITION, "Namespace")
        if is_stale and removal.is_marked(context.resources.get(ref), record.component):
            steps.say("delete", f"{ref}: not part of {record.version}")
            context.resources.delete(ref)


def _await_served(context: Context, definition: Json) -> None:
    name = str(definition["metadata"]["name"])
    ref = Ref("apiextensions.k8s.io/v1", DEFINITION, "", name)

    def is_served() -> bool:
        found = context.resources.get(ref)
        return (
            found is not None and not readiness.of_object({**found, "kind": DEFINITION}) and _is_listed(context, found)
        )

    context.until(is_served, SERVED_SECONDS, lambda: f"definition {name} is not served")


def _is_listed(context: Context, definition: Json) -> bool:
    """Whether API discovery lists a kind, which happens shortly after its CRD is established."""
    spec = definition["spec"]
    context.resources.forget()
    try:
        for one in spec["versions"]:
            if one.get("served"):
                context.resources.kind(f"{spec['group']}/{one['name']}", spec["names"]["kind"])
    except NotServed:
        return False
    return True


def _await_ready(context: Context, component: Component, steps: Steps, seconds: float) -> None:
    def is_ready() -> bool:
        found = context.problems(component)
        if found:
            steps.say("wait", found[0])
        return not found

    context.until(is_ready, seconds, lambda: "; ".join(context.problems(component)))
    steps.say("ready", component.version)


def _marked(each: Json, component: Component) -> dict[str, Any]:
    """Returns the object with Windlass's component label, by which `uninstall` recognizes it."""
    meta = each["metadata"]
    return {
        **each,
        "metadata": {
            **meta,
            "labels": {**(meta.get("labels") or {}), COMPONENT_LABEL: component.name},
            "annotations": {**(meta.get("annotations") or {}), VERSION_ANNOTATION: component.version},
        },
    }


def _digest(component: Component, objects: Sequence[Json], values: Json) -> str:
    """Returns a digest over everything that is installed; a different digest requires a new installation."""
    source = component.source
    chart = [source.repository, source.name, source.version] if isinstance(source, Chart) else None
    text = json.dumps([component.version, chart, list(objects), values], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
