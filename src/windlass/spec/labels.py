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
SERVICE_LABEL: Final = "windlass.dev/service"
"""Label that marks a run as a service, such as a notebook. Its value is the kind of the service."""
SERVICE_SECONDS_LABEL: Final = "windlass.dev/service-seconds"
"""Label with the time limit of a service in seconds; a service without this label does not end by itself."""
SERVICE_IDLE_LABEL: Final = "windlass.dev/service-idle-seconds"
"""Label with the seconds without requests after which a service ends; absent without such a limit."""
SERVICE_LABELS: Final = (SERVICE_LABEL, SERVICE_SECONDS_LABEL, SERVICE_IDLE_LABEL)
"""Reserved labels that are read as labels of a run, so that every machine can list services."""


def is_reserved(key: str) -> bool:
    """Whether a label key belongs to Kubernetes or Windlass."""
    return key.rpartition("/")[0].endswith(RESERVED_DOMAINS)


def job_labels(found: Mapping[str, str]) -> dict[str, str]:
    """Returns the labels of a Kubernetes object that were set by the job, and those that mark it as a service."""
    return {key: text for key, text in found.items() if key in SERVICE_LABELS or not is_reserved(key)}


def command_of_service(kind: str) -> str:
    """Returns the command that starts a service of this kind, the value of SERVICE_LABEL."""
    return f"windlass {'deploy' if kind == 'deployment' else kind}"
