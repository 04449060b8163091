"""Dated table of how long EKS supports each Kubernetes version."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Final

SOURCE: Final = "https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html"
READ_ON: Final = date(2026, 11, 28)
STANDARD_UNTIL: Final[Mapping[str, date]] = {
    "1.33": date(2026, 7, 29),
    "1.34": date(2026, 12, 2),
    "1.35": date(2027, 3, 27),
}
"""Last day of standard support of each Kubernetes version; unknown for versions that are not listed. Clusters have the
upgrade policy STANDARD: AWS upgrades the control plane when standard support ends, and never bills extended support."""
WARN_DAYS: Final = 90


def support_note(version: str, today: date) -> str:
    """Returns a note on the end of support of a version; empty if support lasts for more than 90 days."""
    until = STANDARD_UNTIL.get(version)
    if until is None:
        return f"until when EKS supports Kubernetes {version} was not known on {READ_ON}: {SOURCE}"
    days = (until - today).days
    if days > WARN_DAYS:
        return ""
    when = f"left standard support on {until}" if days < 0 else f"leaves standard support on {until}, in {days} days"
    return f"Kubernetes {version} {when}: AWS then upgrades the control plane; set kubernetes: to a newer version"
