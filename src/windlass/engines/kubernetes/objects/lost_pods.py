"""Time limits after which a pod on a node that does not respond counts as lost."""

from __future__ import annotations

from typing import Any, Final

SILENT: Final = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
"""Keys of the taints on a node that does not respond. The cluster deletes the node's pods when their toleration
expires."""
LOST_SECONDS: Final = 30
"""Seconds for which pods stay on a node that does not respond, if the job can continue without the node: long enough
for a kubelet to restart."""
SUPERVISOR_LOST_SECONDS: Final = 10
"""Seconds for which a supervisor's pod stays on a node that does not respond: short, since the Lease prevents two
supervisors from acting at once."""
GONE_SECONDS: Final = 10.0
"""Seconds by which a pod may exceed its grace period before its node is declared lost."""
TAINTED: Final = "DeletionByTaintManager"
"""Reason in the condition `DisruptionTarget` of a pod that was deleted because its node was unreachable for longer than
the pod tolerates."""


def lost_tolerations(seconds: int) -> list[dict[str, Any]]:
    """Returns the tolerations that keep pods for `seconds` on a node that does not respond."""
    stay = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
    return [{"key": key, **stay} for key in SILENT]
