"""Policies of IAM: what `windlass cluster policy` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy document."""

    name: str
    whom: str
    """Who needs it."""
    size: int
    """Characters as IAM counts them, of the 6,144 that a managed policy may have."""
    document: Mapping[str, Any]
    """As IAM takes it."""
    notes: tuple[str, ...]
    """Why statements are as they are, where their names do not say so."""


@dataclass(frozen=True, slots=True)
class ClusterPolicies:
    """The least policies of one purpose for a cluster."""

    cluster: str
    region: str
    account_id: str
    policies: tuple[Policy, ...]
    written: tuple[str, ...]
    """Files that were written."""
