"""What a cluster reports of one attempt, as plain values: pods, objects, nodes, queue, node provisioning.

Field names of `PodStatus` and `ObjectReport` stand in the events of records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windlass.runs.events import EMPTY, NodeProvisioning, QueueChanged


@dataclass(frozen=True, slots=True)
class PodStatus:
    """The pod of one node of the attempt."""

    node: int
    name: str = ""
    """Empty where it was not created yet."""
    state: str = "missing"
    """`missing`, `queued` (not on a node), `pulling` (image and volumes are prepared), `running`, `ended`, `gone`."""
    reason: str = ""
    """Why it waits or has ended, as the cluster names it: `Unschedulable`, `ImagePullBackOff`, `OOMKilled`."""
    message: str = ""
    """The cluster's message on that."""
    machine: str = ""
    """The cluster's node that it is on."""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectReport:
    """What an event or a condition reports of one object: the owner of the pods, a pod, a claim."""

    kind: str
    name: str
    reason: str
    """`FailedCreate`, `FailedMount`, `ProvisioningFailed`, `Deleted`."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of the cluster, as far as scheduling goes."""

    name: str
    is_ready: bool = True
    allocatable: Mapping[str, str] = field(default_factory=dict)
    """What pods can have of it in all, as the cluster writes quantities: `{"memory": "16Gi"}`."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuotaHolder:
    """An owner of a part of a queue's quota."""

    name: str
    """`Job b/other-1`: with its namespace where that is another."""
    amount: str
    """What it has of what is short, as the cluster writes quantities; empty where that is not known."""
    priority: int = 0


class QueueStatus(QueueChanged):
    """What Kueue reports of the attempt: what the record has of it, and what else `why` reads.

    `reason` is Kueue's, of versions that report only `Pending` that of newer ones; empty where there is no Workload.
    `cluster_queue` is empty where the LocalQueue may not be read.
    """

    priority: int = 0
    position: int | None = None
    """Its position among those that wait, from 1. None where it does not wait, or they may not be listed."""
    num_waiting: int = 0
    scope: str = ""
    """Among which it was counted: `ClusterQueue gpus`, or `namespace a` where no more may be read."""
    asked: Mapping[str, str] = EMPTY
    """What all its pods together request: `{"cpu": "800m"}`."""
    lacking: Sequence[str] = ()
    """The resources that no node has enough of, such as `nvidia.com/gpu`."""
    quota: Sequence[str] = ()
    """A line for each part of the quota that is short; empty where the ClusterQueue may not be read."""
    holders: Sequence[QuotaHolder] = ()
    """The workloads that have it, the largest first; as far as they may be read."""
    queues: Sequence[str] | None = None
    """LocalQueues of the namespace; None where they may not be listed."""


@dataclass(frozen=True, slots=True)
class NodePoolMatch:
    """A NodePool of Karpenter, and whether it matches a pod by its labels, instance types and taints."""

    name: str
    types: Sequence[str] = ()
    """Instance types that it names and the pod allows; empty where it names none."""
    named: Sequence[str] = ()
    """All instance types that it names."""
    capacity_types: Sequence[str] = ()
    """`spot`, `on-demand`, `reserved`; empty is any."""
    others: Sequence[str] = ()
    """Its other requirements, as text: `karpenter.k8s.aws/instance-family in g5, g6`."""
    limits: Sequence[str] = ()
    """Its limits, and what of them is in use: `4 of 8 nvidia.com/gpu`."""
    mismatch: Sequence[str] = ()
    """Why it does not match the pod; empty where it does."""
    not_ready: str = ""
    """Why it is not ready, as its conditions report; empty where it is."""
    ends_pods: str = ""
    """How it ends pods that are not to be disrupted; empty where it does not."""
    empty_for: str = ""
    """How long after its last pod a node is deleted, where that is soon: `30s`."""


class NodeClaimStatus(NodeProvisioning):
    """A node that is provisioned for the pods: a NodeClaim of Karpenter, or a node group that is scaled up."""

    state: str = "asked"
    """`asked`, `launched` (the cloud has started it), `registered` (it is in the cluster), `initialized` (pods may go
    there) or `gone`."""
    seconds: float = 0.0
    """For how long it had been in this state when it was read; 0 for a deleted one."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The newest attempt in its cluster: present objects as they are now, deleted ones as recorded."""

    pods: Sequence[PodStatus] = ()
    reports: Sequence[ObjectReport] = ()
    nodes: Sequence[ClusterNode] = ()
    """Empty where they may not be listed."""
    is_suspended: bool = False
    """Whether a queue holds the job back."""
    queue: QueueStatus | None = None
    """What the queue reports, now or when it was last read; None where no queue has to do with the attempt."""
    unreachable: str = ""
    """Why the cluster could not be reached now."""
    pools: Sequence[NodePoolMatch] = ()
    claims: Sequence[NodeClaimStatus] = ()
    not_seen: tuple[str, ...] = ()
    """What could not be read, each with the reason: `nodes cannot be listed: …`."""
    pod_spec: Mapping[str, Any] = field(default_factory=dict)
    """The pods as they were requested."""

    @property
    def container(self) -> Mapping[str, Any]:
        """The one container of the pods."""
        return next(iter(self.pod_spec.get("containers", ())), {})

    @property
    def requests(self) -> Mapping[str, str]:
        """What one pod requests, by resource."""
        found: Mapping[str, str] = self.container.get("resources", {}).get("requests", {})
        return found
