"""Packs statements into policy documents within IAM's limit of 6,144 characters."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.policies.statement import Statement

LONGEST: Final = 6144
"""Maximum number of characters in a managed policy, not counting white space.
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html"""


@dataclass(frozen=True, slots=True)
class Document:
    """One policy document."""

    name: str
    """Name in IAM: letters, digits and dashes."""
    statements: tuple[Statement, ...]
    whom: str = ""
    """User or role that needs the policy."""

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document for IAM."""
        return {"Version": "2012-10-17", "Statement": [one.as_json() for one in self.statements]}

    @property
    def size(self) -> int:
        """Number of characters as counted by IAM; a managed policy may have 6,144."""
        return len(_short(self.document))

    @property
    def notes(self) -> tuple[str, ...]:
        """Explanations of statements whose purpose is not clear from their names."""
        return tuple(f"{one.sid}: {one.why}" for one in self.statements if one.why)


def documents(
    name: str, statements: Iterable[Statement], longest: int = LONGEST, whom: str = ""
) -> tuple[Document, ...]:
    """Packs statements, in order, into as few documents as possible; if there are several, they are numbered from 1."""
    groups: list[list[Statement]] = [[]]
    for one in statements:
        if groups[-1] and Document("", (*groups[-1], one)).size > longest:
            groups.append([])
        groups[-1].append(one)
    if len(groups) == 1:
        return (Document(name, tuple(groups[0]), whom),)
    return tuple(Document(f"{name}-{number}", tuple(group), whom) for number, group in enumerate(groups, 1))


def _short(policy: dict[str, Any]) -> str:
    return json.dumps(policy, separators=(",", ":"))
