"""Checks a target: what its cluster offers, the user's rights, and the network between pods."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from windlass.engines.checks import Check, CheckReport
from windlass.engines.kubernetes.access import probe_pods
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.connect import connect
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.objects.pod_template import target_shape
from windlass.engines.kubernetes.objects.supervisor_manifests import supervisor_job
from windlass.engines.kubernetes.reading.preflight import network, rbac
from windlass.engines.kubernetes.reading.preflight.checks import checks
from windlass.engines.kubernetes.reading.preflight.pod_admission import SUPERVISOR, pod_from, refusal, try_pod
from windlass.engines.kubernetes.reading.preflight.rights import Rights
from windlass.engines.kubernetes.reading.preflight.survey import survey
from windlass.errors import EngineError
from windlass.spec.job import Job

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget


def check(target: KubernetesTarget, environ: Mapping[str, str]) -> CheckReport:
    """Returns the checks of a cluster; removes the leftovers of killed commands. Raises UsageError."""
    left: list[str] = []
    with connect(target, environ) as client:
        seen = survey(client)
        if seen.error("version") is None and not seen.missing:
            with contextlib.suppress(EngineError):
                left = probe_pods.sweep(client)
        found = checks(seen, target)
        has_account = isinstance(seen.rights, Rights) and seen.rights.has_account
        if has_account and target.supervisor != "machine" and not seen.missing:
            found += supervisor_check(client, target)
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


def supervisor_check(client: Client, target: KubernetesTarget) -> Iterator[Check]:
    """Yields a failed check if the API server refuses the pod of a supervisor in a dry run."""
    shape = target_shape(target, client.namespace, "windlass-check")
    made = supervisor_job(shape, Job(name="check", command=["true"]))
    answer = try_pod(client, pod_from(made, made["spec"]["template"]))
    if isinstance(answer, Refused):
        note = refusal(SUPERVISOR, answer, target.name)
        yield Check("supervisor pod", "fail" if note.blocks else "warn", note.message, note.fix)


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
