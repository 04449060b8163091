"""Removes the objects that Windlass installed and no others; refuses while users' custom resources exist."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from windlass.clusters.components.component import COMPONENT_LABEL, SYSTEM, Component
from windlass.clusters.components.context import Context
from windlass.clusters.components.record import Record
from windlass.clusters.components.resources import Ref, Resources
from windlass.clusters.components.steps import Progress, Steps
from windlass.clusters.components.texts import DEFINITION
from windlass.errors import EngineError

Json = Mapping[str, Any]
REMOVE_SECONDS: Final = 300.0
DEFINITIONS: Final = "apiextensions.k8s.io/v1"
RELEASE: Final = "meta.helm.sh/release-name"
HOOK: Final = "helm.sh/hook"
"""Annotation of short-lived hook objects that a killed helm leaves behind."""
HELM_OBJECTS: Final = "app.kubernetes.io/managed-by=Helm"
MAX_NAMED: Final = 10
CONTENTS: Final = (
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
    ("v1", "PersistentVolumeClaim"),
    ("apps/v1", "Deployment"),
    ("batch/v1", "Job"),
)
OF_EVERY_NAMESPACE: Final = ("kube-root-ca.crt",)


class InUse(EngineError):
    """Custom resources exist that would be deleted with their CRDs, or other components need this one."""


def remove(context: Context, names: Sequence[str], progress: Progress) -> None:
    """Removes these components, or all recorded ones, in the reverse order of installation.

    Can be interrupted at any point; the next call continues. Raises InUse, NotReady, EngineError, MissingExtra.
    """
    recorded = context.records.all()
    chosen = [recorded[name] for name in _reversed(context.table, recorded) if name in names or not names]
    _refuse_needed(context.table, recorded, {one.component for one in chosen})
    _refuse_used(context, chosen)
    for record in chosen:
        context.await_worker(record)
        _remove(context, record, Steps(record.component, progress))


def is_marked(found: Json | None, component: str) -> bool:
    """Whether an object exists and was created by this component."""
    return found is not None and (found["metadata"].get("labels") or {}).get(COMPONENT_LABEL) == component


def is_own_namespace(namespace: str) -> bool:
    """Whether a component's namespace is a dedicated one that Windlass creates."""
    return namespace not in (SYSTEM, "default", "")


def _reversed(table: Sequence[Component], recorded: Mapping[str, Record]) -> list[str]:
    """Returns recorded components in order of removal: those that are no longer in the table, then the last installed
    first.
    """
    known = [one.name for one in table]
    order = [*(name for name in known if name in recorded), *sorted(recorded.keys() - set(known))]
    needs = {one.name: (*one.needs, *one.after) for one in table}
    done: dict[str, None] = {}

    def add(name: str) -> None:
        for other in needs.get(name, ()):
            if other in recorded:
                add(other)
        done.setdefault(name)

    for name in order:
        add(name)
    return [*reversed(done)]


def _refuse_needed(table: Sequence[Component], recorded: Mapping[str, Record], chosen: set[str]) -> None:
    for one in table:
        if one.name in recorded and one.name not in chosen and (needed := sorted(chosen.intersection(one.needs))):
            raise InUse(f"component {one.name} needs {', '.join(needed)}", f"uninstall {one.name} as well")


def _refuse_used(context: Context, chosen: Sequence[Record]) -> None:
    names = {one.component for one in chosen}
    used = [str(ref) for record in chosen for ref in custom_resources(context.resources, record, names)]
    if used:
        more = f" and {len(used) - MAX_NAMED} more" if len(used) > MAX_NAMED else ""
        raise InUse(
            f"custom resources exist: {', '.join(used[:MAX_NAMED])}{more}",
            "delete them first: runs with windlass rm, others with kubectl delete",
        )


def custom_resources(resources: Resources, record: Record, components: Collection[str]) -> Iterator[Ref]:
    """Yields custom resources of a component's kinds, except those that these components created. Raises Refused,
    Unreachable.
    """
    for definition in _definitions(resources, record):
        spec = definition["spec"]
        version = next(each["name"] for each in spec["versions"] if each["storage"])
        api, kind = f"{spec['group']}/{version}", spec["names"]["kind"]
        for one in resources.list(api, kind):
            meta = one["metadata"]
            labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
            if labels.get(COMPONENT_LABEL) not in components and notes.get(RELEASE) not in components:
                yield Ref(api, kind, str(meta.get("namespace") or ""), str(meta["name"]))


def _definitions(resources: Resources, record: Record) -> list[Json]:
    """Returns the CRDs that are removed with a component: applied by Windlass, or part of its Helm release."""
    own = f"{COMPONENT_LABEL}={record.component}"
    found: list[Json] = list(resources.list(DEFINITIONS, DEFINITION, own))
    if record.is_release:
        of_helm = resources.list(DEFINITIONS, DEFINITION, HELM_OBJECTS)
        found += [one for one in of_helm if (one["metadata"].get("annotations") or {}).get(RELEASE) == record.component]
    return found


def _remove(context: Context, record: Record, steps: Steps) -> None:
    context.records.write(record.with_state("removing", context.clock.time()))
    if record.is_release:
        steps.say("helm", f"uninstall {record.component}")
        context.helm.uninstall(record.component, record.namespace)
    mine = [ref for ref in reversed(record.objects) if is_marked(context.resources.get(ref), record.component)]
    _delete(context, [ref for ref in mine if ref.kind not in (DEFINITION, "Namespace")], steps)
    _refuse_used(context, [record])  # custom resources created in the meantime would be deleted with their CRD
    _delete(context, [ref for ref in mine if ref.kind == DEFINITION], steps)
    context.resources.forget()
    for ref in mine:
        if ref.kind == "Namespace":
            _remove_namespace(context, ref, steps)
    context.records.remove(record.component)
    steps.say("removed", record.version)


def _delete(context: Context, refs: Sequence[Ref], steps: Steps) -> None:
    """Requests all deletions, then waits for them. Raises NotReady with the finalizers of the remaining objects."""
    for ref in refs:
        steps.say("delete", str(ref))
        context.resources.delete(ref)

    def left() -> list[tuple[Ref, Json]]:
        return [(ref, found) for ref in refs if (found := context.resources.get(ref)) is not None]

    def why() -> str:
        held = [f"{ref} (finalizers {', '.join(one['metadata'].get('finalizers') or ['none'])})" for ref, one in left()]
        return f"still there: {', '.join(held[:MAX_NAMED])}"

    context.until(lambda: not left(), REMOVE_SECONDS, why)


def _remove_namespace(context: Context, ref: Ref, steps: Steps) -> None:
    """Deletes a namespace that Windlass created. A namespace with objects of other tools is kept and reported."""
    others = [
        f"{kind} {one['metadata']['name']}"
        for api, kind in CONTENTS
        for one in context.resources.list(api, kind, namespace=ref.name)
        if _is_of_others(one)
    ]
    if others:
        steps.say("kept", f"{ref}: it has objects that Windlass did not install: {', '.join(others[:MAX_NAMED])}")
    else:
        _delete(context, [ref], steps)


def _is_of_others(one: Json) -> bool:
    """Whether an object in a component's namespace belongs to another tool. Owned objects, objects being deleted and
    helm hooks do not count.
    """
    meta = one["metadata"]
    if meta.get("deletionTimestamp") or meta.get("ownerReferences") or HOOK in (meta.get("annotations") or {}):
        return False
    return meta["name"] not in OF_EVERY_NAMESPACE
