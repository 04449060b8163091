"""Checks a target: what its cluster has, which rights the login has, and whether its pods can meet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from windlass.engines.base import Report
from windlass.engines.checks import Check
from windlass.engines.kubernetes.api.connect import connect
from windlass.engines.kubernetes.pods import probe_pods
from windlass.engines.kubernetes.preflight import network, rbac
from windlass.engines.kubernetes.preflight.checks import checks
from windlass.engines.kubernetes.preflight.pod_admission import supervisor_check
from windlass.engines.kubernetes.preflight.survey import survey
from windlass.errors import EngineError

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget


def check(target: KubernetesTarget, environ: Mapping[str, str]) -> Report:
    """What the cluster has and permits. Removes what an earlier, killed check has left. Raises UsageError."""
    left: list[str] = []
    with connect(target, environ) as client:
        seen = survey(client)
        if seen.error("version") is None and not seen.missing:
            with contextlib.suppress(EngineError):
                left = probe_pods.sweep(client)
        found = checks(seen, target)
        if seen.error("account") is None and target.supervisor != "machine" and not seen.missing:
            found += supervisor_check(client, target)
    if left:
        found.append(Check("leftovers", "ok", f"removed, of commands that were killed: {', '.join(left)}"))
    facts = {
        "target": target.name,
        "context": target.context,
        "namespace": target.namespace,
        "server": seen.server,
        "missing": [str(right) for right in seen.missing],
        "network": None,
    }
    return Report(found, facts)


def check_network(
    report: Report, target: KubernetesTarget, environ: Mapping[str, str], told: Callable[[str], None]
) -> Report:  # fmt: skip
    """The report with what two pods find out about the network. Raises UsageError, EngineError."""
    with connect(target, environ) as client:
        found = network.probe(client, target, told)
    facts = {**report.facts, "network": found.figures()}
    return replace(report, checks=[*report.checks, *network.checks(found)], facts=facts)


def role(target: KubernetesTarget, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """The role with exactly the rights that users need, its binding to the login, and the objects of the set-up.

    Raises UsageError, EngineError.
    """
    with connect(target, environ) as client:
        seen = survey(client)
    if (error := seen.error("version")) is not None:
        raise error
    made = [rbac.role(target.namespace, rbac.useful(seen.groups))]
    bound = [rbac.binding(target.namespace, seen.user)] if seen.user else []
    return [*made, *bound, *rbac.supervisor_objects(target.namespace, seen.groups)]
