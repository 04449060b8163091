"""Puts statements into policy documents that IAM takes: a managed policy has 6,144 characters at most."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from windlass.clusters.policies.statement import Statement

LONGEST: Final = 6144
"""Characters of a managed policy, white space not counted.
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html"""


@dataclass(frozen=True, slots=True)
class Document:
    """One policy."""

    name: str
    """For IAM: letters, digits and dashes."""
    statements: tuple[Statement, ...]
    whom: str = ""
    """Who needs it."""

    @property
    def document(self) -> dict[str, Any]:
        """As IAM takes it."""
        return {"Version": "2012-10-17", "Statement": [one.as_json() for one in self.statements]}

    @property
    def size(self) -> int:
        """Characters as IAM counts them, of the 6,144 that a managed policy may have."""
        return len(_short(self.document))

    @property
    def notes(self) -> tuple[str, ...]:
        """Why statements are as they are, where their names do not say so."""
        return tuple(f"{one.sid}: {one.why}" for one in self.statements if one.why)


def documents(
    name: str, statements: Iterable[Statement], longest: int = LONGEST, whom: str = ""
) -> tuple[Document, ...]:
    """As few documents as the order of the statements allows; several are numbered from 1."""
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
