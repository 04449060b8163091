"""How long a pod on a node that does not respond is kept before it counts as lost."""

from __future__ import annotations

from typing import Any, Final

SILENT: Final = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
"""Taints of a node that does not respond; the cluster deletes its pods after their toleration expires."""
LOST_SECONDS: Final = 30
"""Seconds for which pods of a job that can continue without a node stay on it while it does not respond: long enough
for a kubelet to restart."""
SUPERVISOR_LOST_SECONDS: Final = 10
"""Seconds for which the pod of a supervisor stays on a node that does not respond. The Lease prevents two supervisors
from acting at once."""
GONE_SECONDS: Final = 10.0
"""Seconds by which a pod may exceed its grace period before its node is declared lost."""
TAINTED: Final = "DeletionByTaintManager"
"""Reason of a pod that is deleted because its node was unreachable for longer than the pod tolerates."""


def lost_tolerations(seconds: int) -> list[dict[str, Any]]:
    """Returns the tolerations that keep pods for `seconds` on a node that does not respond."""
    stay = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
    return [{"key": key, **stay} for key in SILENT]
