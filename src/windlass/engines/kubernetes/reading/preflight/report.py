"""Checks a target: what its cluster offers, the user's rights, and the network between pods."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.checks import Check, CheckReport
from windlass.engines.kubernetes.access import probe_pods
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.connect import connect
from windlass.engines.kubernetes.objects.helper_manifests import read_job
from windlass.engines.kubernetes.objects.pod_template import pod_template, target_shape
from windlass.engines.kubernetes.objects.supervisor_manifests import supervisor_job
from windlass.engines.kubernetes.objects.transfer_manifests import check_job
from windlass.engines.kubernetes.reading.preflight import network, rbac
from windlass.engines.kubernetes.reading.preflight.checks import checks
from windlass.engines.kubernetes.reading.preflight.pod_admission import RANKS, SUPERVISOR, Pods, findings, pod_from
from windlass.engines.kubernetes.reading.preflight.pod_needs import ready
from windlass.engines.kubernetes.reading.preflight.refusals import Author, Patch
from windlass.engines.kubernetes.reading.preflight.rights import Rights
from windlass.engines.kubernetes.reading.preflight.survey import Survey, survey
from windlass.errors import EngineError
from windlass.spec.job import Job
from windlass.spec.pod_patch import PatchRefused

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget

CHECKED: Final = "windlass-check"
"""Name of the pods that are tried without a run."""


def check(target: KubernetesTarget, environ: Mapping[str, str]) -> CheckReport:
    """Returns the checks of a cluster; removes the leftovers of killed commands. Raises UsageError."""
    left: list[str] = []
    with connect(target, environ) as client:
        seen = survey(client)
        if seen.error("version") is None and not seen.missing:
            with contextlib.suppress(EngineError):
                left = probe_pods.sweep(client)
        found = checks(seen, target)
        if seen.error("version") is None and seen.refusal("namespace") != 404:
            found += pod_checks(client, target, seen)
    if left:
        found.append(Check("leftovers", "ok", f"removed leftovers of killed commands: {', '.join(left)}"))
    facts = {
        "target": target.name,
        "context": target.context,
        "namespace": target.namespace,
        "server": seen.server,
        "missing": [str(right) for right in seen.missing],
        "network": None,
    }
    return CheckReport(found, facts)


def pod_checks(client: Client, target: KubernetesTarget, seen: Survey) -> Iterator[Check]:
    """Yields what a first run in the namespace needs: refusals of the pods of a minimal run, and nodes that fit."""
    author = Author(target.name, has_job=False, patches=_patches(target))
    try:
        pods = list(target_pods(target, client.namespace, seen))
    except PatchRefused as error:
        yield Check("pods", "fail", f"target {target.name}: a patch is refused: {error.message}", error.hint)
        return
    has_pools = bool((seen.get("pools") or {}).get("items")) or (seen.get("autoscaler") or {}).get("status") is not None
    nodes = [] if has_pools else ready((seen.get("nodes") or {}).get("items", ()))
    found = findings(client, pods, author, nodes, CHECKED)
    for note, is_own in found:
        # A job can have what a minimal one lacks, but no job changes the pods of Windlass itself.
        yield Check("pods", "fail" if note.blocks and is_own else "warn", note.message, note.fix)
    if not found:
        what = ", ".join(one.what for one in pods)
        yield Check("pods", "ok", f"admitted as a dry run, as far as this login may try it: {what}")


def target_pods(target: KubernetesTarget, namespace: str, seen: Survey) -> Iterator[Pods]:
    """Yields the pods of a minimal run on a target, and those of commands. Raises PatchRefused."""
    shape, job = target_shape(target, namespace, CHECKED), Job(name="check", command=["true"])
    yield Pods(RANKS, _named(pod_template(shape, job, 1, 1), namespace), 1, 1, is_own=False)
    if target.supervisor != "machine":
        pod = _named(supervisor_job(shape, job)["spec"]["template"], namespace)
        if not (isinstance(seen.rights, Rights) and seen.rights.has_account):
            del pod["spec"]["serviceAccountName"]  # `windlass target setup` creates the account.
        yield Pods(SUPERVISOR, pod, 1, 1)
    for what, made in (
        ("the pods that move files", check_job(shape, job, "s3://")),
        ("the pods of check --network, cp and exec", read_job(shape, job, CHECKED)),
    ):
        yield Pods(what, _named(made["spec"]["template"], namespace), 0, 0)


def _named(template: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    pod = pod_from({"metadata": {"name": CHECKED, "namespace": namespace}}, template)
    return {**pod, "spec": dict(pod["spec"])}


def _patches(target: KubernetesTarget) -> list[Patch]:
    both = (("pod", False, target.pod), ("supervisor_pod", True, target.supervisor_pod))
    return [Patch(f"target {target.name}: {name}", is_own, "", patch) for name, is_own, patch in both if patch]


def check_network(
    report: CheckReport, target: KubernetesTarget, environ: Mapping[str, str], on_line: Callable[[str], None]
) -> CheckReport:
    """Returns the report, extended by checks of the network between two pods. Raises UsageError, EngineError."""
    with connect(target, environ) as client:
        found = network.probe(client, target, on_line)
    facts = {**report.facts, "network": found.figures()}
    return replace(report, checks=[*report.checks, *network.checks(found)], facts=facts)


def role(target: KubernetesTarget, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the Role with exactly the rights that users need, its RoleBinding, and the objects for supervisors.

    Raises UsageError, EngineError.
    """
    with connect(target, environ) as client:
        seen = survey(client)
    if (error := seen.error("version")) is not None:
        raise error
    made = [rbac.role(target.namespace, rbac.useful(seen.groups))]
    bound = [rbac.binding(target.namespace, seen.user)] if seen.user else []
    return [*made, *bound, *rbac.supervisor_objects(target.namespace, seen.groups)]
