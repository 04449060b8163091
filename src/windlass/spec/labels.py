"""Distinguishes the labels that a job sets from labels of Kubernetes and Windlass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RESERVED_DOMAINS: Final = ("windlass.dev", "kubernetes.io", "k8s.io")
"""Domains of label keys that users may not set, subdomains included."""
RUN_LABEL: Final = "windlass.dev/run"
"""Label of all objects of a run."""
ATTEMPT_LABEL: Final = "windlass.dev/attempt"
"""Label of the pods that train, in addition to that of their run."""


def is_reserved(key: str) -> bool:
    """Whether a label key belongs to Kubernetes or Windlass."""
    return key.rpartition("/")[0].endswith(RESERVED_DOMAINS)


def job_labels(found: Mapping[str, str]) -> dict[str, str]:
    """Returns the labels of a Kubernetes object that were set by the job."""
    return {key: text for key, text in found.items() if not is_reserved(key)}
