"""Tells the labels that a job names from those that clusters and Windlass itself use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RESERVED_DOMAINS: Final = ("windlass.dev", "kubernetes.io", "k8s.io")
"""Ends of the prefixes that users may not take."""


def is_reserved(key: str) -> bool:
    """Whether a label is not for users."""
    return key.rpartition("/")[0].endswith(RESERVED_DOMAINS)


def of_job(found: Mapping[str, str]) -> dict[str, str]:
    """Those of an object's labels that its job has named."""
    return {key: text for key, text in found.items() if not is_reserved(key)}
