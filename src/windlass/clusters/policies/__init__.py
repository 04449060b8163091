"""The least policies for a cluster: of who makes and removes it, checks it, audits it, or runs on it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from windlass.clusters.policies import control, doctor, events, network, runs, storage
from windlass.clusters.policies.audit import audit_statements
from windlass.clusters.policies.documents import LONGEST, Document, documents
from windlass.clusters.policies.statement import Place, Statement
from windlass.spec.cluster import Cluster

__all__ = [
    "LONGEST",
    "TITLES",
    "Document",
    "Place",
    "Purpose",
    "Statement",
    "as_statements",
    "policies",
    "statements",
]


class Purpose(StrEnum):
    """What a policy is for."""

    UP = "up"
    """`cluster plan`, `up`, `status` and `down`, which audits; attach its documents and those of the audit."""
    AUDIT = "audit"
    """`cluster audit`."""
    DOCTOR = "doctor"
    """`doctor --on`; what it simulates are the statements of `up`."""
    RUNS = "runs"
    """The person who starts runs. The role of their pods is `pods`."""
    PODS = "pods"
    """The role of the runs' pods, which Terraform makes: shown, not attached by hand."""


TITLES: Final = {
    Purpose.UP: "the person or role who runs windlass cluster plan, up, status and down",
    Purpose.AUDIT: "the person or role who runs windlass cluster audit; down needs it too",
    Purpose.DOCTOR: "the person or role who runs windlass doctor --on",
    Purpose.RUNS: "persons who start runs; name them in access.users of the cluster file too",
    Purpose.PODS: "the pods of runs: Terraform makes this role, there is nothing to attach",
}
"""Whom each policy is for."""


def made(cluster: Cluster, place: Place) -> tuple[Statement, ...]:
    """What Terraform needs to make a cluster and to remove it."""
    parts: tuple[Iterable[Statement], ...] = (
        network.statements(cluster, place),
        control.statements(cluster, place),
        storage.statements(cluster, place),
        events.statements(cluster, place),
        [Statement("FindKeptBuckets", ("s3:ListAllMyBuckets",), why="after a crash, buckets are looked for by name")],
    )
    return tuple(one for part in parts for one in part)


def statements(cluster: Cluster, account: str, purpose: Purpose) -> tuple[Statement, ...]:
    """The statements of one purpose for a cluster in an account (12 digits)."""
    place = Place.of(cluster, account)
    if purpose is Purpose.UP:
        return made(cluster, place)
    if purpose is Purpose.AUDIT:
        return tuple(Statement(one["Sid"], tuple(one["Action"])) for one in audit_statements())
    if purpose is Purpose.DOCTOR:
        return tuple(doctor.statements(place))
    return tuple(runs.of_person(place) if purpose is Purpose.RUNS else runs.of_pods(place))


def policies(cluster: Cluster, account: str, purpose: Purpose) -> tuple[Document, ...]:
    """The documents of one purpose, each within IAM's limit."""
    return documents(
        f"windlass-{cluster.name}-{purpose.value}", statements(cluster, account, purpose), whom=TITLES[purpose]
    )


def as_statements(cluster: Cluster, account: str, purpose: Purpose) -> list[dict[str, Any]]:
    """The same as plain data, for a simulation."""
    return [one.as_json() for one in statements(cluster, account, purpose)]
