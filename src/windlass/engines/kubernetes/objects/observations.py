"""Plain values for what a cluster reports about one attempt: objects, nodes, queue, node provisioning.

Records store the field names of `ObjectReport`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from windlass.runs.events import EMPTY, NodeProvisioning, QueueChanged

if TYPE_CHECKING:
    from windlass.engines.kubernetes.objects.pod_status import PodStatus


@dataclass(frozen=True, slots=True)
class ObjectReport:
    """A problem that an event or condition reports about one object: the owner of the pods, a pod, or a claim."""

    kind: str
    name: str
    reason: str
    """Reason of the event or condition: `FailedCreate`, `FailedMount`, `ProvisioningFailed`, `Deleted`."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of the cluster, with the fields that matter for scheduling."""

    name: str
    is_ready: bool = True
    allocatable: Mapping[str, str] = field(default_factory=dict)
    """Total resources for pods on the node, as Kubernetes quantities: `{"memory": "16Gi"}`."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuotaHolder:
    """A workload that uses a part of a queue's quota."""

    name: str
    """Kind and name of the workload: `Job other-1`, or `Job b/other-1` in another namespace."""
    amount: str
    """Amount of the scarce resource that the workload uses, as a Kubernetes quantity; empty if unknown."""
    priority: int = 0


class QueueStatus(QueueChanged):
    """Kueue's status of the attempt: the fields that the record stores, and further fields for `windlass why`.

    `reason` is empty if the attempt has no Workload object. It is Kueue's reason, or derived for versions that report
    only `Pending`. `cluster_queue` is empty if the user may not read the LocalQueue.
    """

    priority: int = 0
    position: int | None = None
    """Position among the waiting workloads, from 1; None if the attempt does not wait, or the user may not list
    them."""
    num_waiting: int = 0
    scope: str = ""
    """Scope of `position`: `ClusterQueue gpus`, or `namespace a` if the user may read only the namespace."""
    asked: Mapping[str, str] = EMPTY
    """Total resource requests of all pods of the attempt: `{"cpu": "800m"}`."""
    lacking: Sequence[str] = ()
    """Resources of which no node has enough, such as `nvidia.com/gpu`."""
    quota: Sequence[str] = ()
    """One line for each exhausted part of the quota; empty if the user may not read the ClusterQueue."""
    holders: Sequence[QuotaHolder] = ()
    """Workloads that use the exhausted quota, largest first, as far as the user may read them."""
    queues: Sequence[str] | None = None
    """LocalQueues of the namespace; None if the user may not list them."""


@dataclass(frozen=True, slots=True)
class NodePoolMatch:
    """A Karpenter NodePool, and whether it matches a pod by its labels, instance types and taints."""

    name: str
    types: Sequence[str] = ()
    """Instance types that both the NodePool lists and the pod allows; empty if the NodePool lists none."""
    named: Sequence[str] = ()
    """All instance types that the NodePool lists."""
    capacity_types: Sequence[str] = ()
    """Capacity types of the NodePool: `spot`, `on-demand`, `reserved`; empty for any."""
    others: Sequence[str] = ()
    """Other requirements of the NodePool, as text: `karpenter.k8s.aws/instance-family in g5, g6`."""
    limits: Sequence[str] = ()
    """Limits of the NodePool with their usage, as text: `4 of 8 nvidia.com/gpu`."""
    mismatch: Sequence[str] = ()
    """Reasons why the NodePool does not match the pod; empty if it matches."""
    not_ready: str = ""
    """Why the NodePool is not ready, from its conditions; empty if it is ready."""
    ends_pods: str = ""
    """How the NodePool ends pods with the annotation `karpenter.sh/do-not-disrupt`; empty if it does not."""
    empty_for: str = ""
    """Delay between a node's last pod and its deletion, such as `30s`; empty unless it is short."""


class NodeClaimStatus(NodeProvisioning):
    """A node that is being provisioned for the pods: a Karpenter NodeClaim, or a node group that scales up."""

    state: str = "asked"
    """`asked` (requested), `launched` (started by the cloud provider), `registered` (joined the cluster), `initialized`
    (accepts pods) or `gone`."""
    seconds: float = 0.0
    """Seconds spent in this state when the status was read; 0 for a deleted node."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """State of the newest attempt in its cluster: current for existing objects, recorded for deleted objects."""

    pods: Sequence[PodStatus] = ()
    reports: Sequence[ObjectReport] = ()
    nodes: Sequence[ClusterNode] = ()
    """Nodes of the cluster; empty if the user may not list them."""
    is_suspended: bool = False
    """Whether a queue suspends the owner object of the attempt."""
    queue: QueueStatus | None = None
    """Queue status, current or last recorded; None if the attempt uses no queue."""
    unreachable: str = ""
    """Why the cluster could not be reached; empty if it was reached."""
    pools: Sequence[NodePoolMatch] = ()
    claims: Sequence[NodeClaimStatus] = ()
    not_seen: tuple[str, ...] = ()
    """Failed requests to the cluster, with their reasons: `nodes cannot be listed: …`."""
    pod_spec: Mapping[str, Any] = field(default_factory=dict)
    """Pod spec that the attempt requested."""

    @property
    def container(self) -> Mapping[str, Any]:
        """The single container of the pods."""
        return next(iter(self.pod_spec.get("containers", ())), {})

    @property
    def requests(self) -> Mapping[str, str]:
        """Requests of one pod, by resource."""
        found: Mapping[str, str] = self.container.get("resources", {}).get("requests", {})
        return found
