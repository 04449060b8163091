"""Builds the least-privilege policies of a cluster, as values and as files for `aws iam create-policy`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from windlass.clusters.find import ManagedCluster
from windlass.clusters.policies import Document, Purpose
from windlass.clusters.policies import policies as documents
from windlass.errors import UsageError, WindlassError
from windlass.runs.context import Context

TOGETHER: Final = {"up": ("up", "audit"), "audit": ("audit",), "doctor": ("doctor",), "runs": ("runs", "pods")}
"""Policies printed for each purpose: `down` ends with an audit, and the role of pods is shown with `runs`."""


@dataclass(frozen=True, slots=True)
class ClusterPolicies:
    """The least-privilege policies of one purpose for a cluster."""

    cluster: str
    region: str
    account_id: str
    policies: tuple[Document, ...]
    written: tuple[str, ...]
    """Paths of the written files."""


def policies(
    named: ManagedCluster, purpose: str, context: Context, *, account: str = "", into: Path | None = None
) -> ClusterPolicies:
    """Returns the policies of a purpose (a key of `TOGETHER`); `into` is a folder to write one file per policy.

    Raises UsageError if the account is unknown, OSError if a file cannot be written.
    """
    account = account or _account(named, context)
    if not re.fullmatch(r"\d{12}", account):
        raise UsageError(f"'{account}' is not the number of an account", "12 digits, such as 123456789012")
    found = [document for one in TOGETHER[purpose] for document in documents(named.cluster, account, Purpose(one))]
    written = () if into is None else _write(found, into)
    return ClusterPolicies(named.cluster.name, named.cluster.region, account, tuple(found), written)


def _account(named: ManagedCluster, context: Context) -> str:
    try:
        with named.aws(context) as aws:
            return aws.identity.account_id
    except WindlassError as error:
        raise UsageError(
            f"the policies name an account, and which one is not known: {error.message}",
            "--account 123456789012, or log in",
        ) from error


def _write(found: list[Document], into: Path) -> tuple[str, ...]:
    into.mkdir(parents=True, exist_ok=True)
    paths = [into / f"{one.name}.json" for one in found]
    for path, one in zip(paths, found, strict=True):
        path.write_text(json.dumps(one.document, indent=2) + "\n")
    return tuple(map(str, paths))
