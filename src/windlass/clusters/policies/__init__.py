"""Least-privilege IAM policies of a cluster: to create and remove it, check it, audit it, or run jobs on it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from windlass.clusters.policies import control, doctor, events, network, runs, storage
from windlass.clusters.policies.audit import audit_statements
from windlass.clusters.policies.documents import LONGEST, Document, documents
from windlass.clusters.policies.statement import ArnScope, Statement
from windlass.spec.cluster import Cluster

__all__ = [
    "LONGEST",
    "TITLES",
    "ArnScope",
    "Document",
    "Purpose",
    "Statement",
    "as_statements",
    "policies",
    "statements",
]


class Purpose(StrEnum):
    """Purpose of a policy."""

    UP = "up"
    """`cluster plan`, `up`, `status` and `down`. Because `down` audits, attach the audit's documents too."""
    AUDIT = "audit"
    """`cluster audit`."""
    DOCTOR = "doctor"
    """`doctor --on`, which simulates the statements of `up`."""
    RUNS = "runs"
    """Policy of users who start runs. The policy of their pods is `PODS`."""
    PODS = "pods"
    """The role of the runs' pods, which Terraform creates: shown for information, not attached by hand."""


TITLES: Final = {
    Purpose.UP: "the user or role that runs windlass cluster plan, up, status and down",
    Purpose.AUDIT: "the user or role that runs windlass cluster audit; down needs it too",
    Purpose.DOCTOR: "the user or role that runs windlass doctor --on",
    Purpose.RUNS: "users who start runs; list them in access.users of the cluster file too",
    Purpose.PODS: "the pods of runs: Terraform creates this role, so nothing needs to be attached",
}
"""Users and roles that need each policy."""


def made(cluster: Cluster, scope: ArnScope) -> tuple[Statement, ...]:
    """Returns the statements that Terraform needs to create a cluster and to remove it."""
    parts: tuple[Iterable[Statement], ...] = (
        network.statements(cluster, scope),
        control.statements(cluster, scope),
        storage.statements(cluster, scope),
        events.statements(cluster, scope),
        [Statement("FindKeptBuckets", ("s3:ListAllMyBuckets",), why="after a crash, buckets are searched by name")],
    )
    return tuple(one for part in parts for one in part)


def statements(cluster: Cluster, account: str, purpose: Purpose) -> tuple[Statement, ...]:
    """Returns the statements of one purpose for a cluster in an account (12 digits)."""
    scope = ArnScope.of(cluster, account)
    if purpose is Purpose.UP:
        return made(cluster, scope)
    if purpose is Purpose.AUDIT:
        return tuple(Statement(one["Sid"], tuple(one["Action"])) for one in audit_statements())
    if purpose is Purpose.DOCTOR:
        return tuple(doctor.statements(scope))
    return tuple(runs.of_person(scope) if purpose is Purpose.RUNS else runs.of_pods(scope))


def policies(cluster: Cluster, account: str, purpose: Purpose) -> tuple[Document, ...]:
    """Returns the policy documents of one purpose, each within IAM's size limit."""
    return documents(
        f"windlass-{cluster.name}-{purpose.value}", statements(cluster, account, purpose), whom=TITLES[purpose]
    )


def as_statements(cluster: Cluster, account: str, purpose: Purpose) -> list[dict[str, Any]]:
    """Returns the statements of one purpose as plain data, for IAM's policy simulation."""
    return [one.as_json() for one in statements(cluster, account, purpose)]
