"""Rules on nodes that are not provisioned yet, from reports of Karpenter and Cluster Autoscaler on waiting pods."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from windlass.diagnose.observations import Observations
from windlass.diagnose.verdict import Advice, Verdict
from windlass.engines.kubernetes.objects.node_pools import makes
from windlass.engines.kubernetes.objects.observations import ClusterStatus, NodeClaimStatus, ObjectReport
from windlass.engines.kubernetes.objects.pod_template import INSTANCE_LABEL
from windlass.engines.kubernetes.reading.diagnose.pods import waiting_pods
from windlass.engines.kubernetes.reading.diagnose.scheduling import FIELDS
from windlass.errors import near

NOT_READY_SECONDS: Final = 90.0
"""Seconds for which a new node may be not ready, since its drivers and plugins take about a minute."""
NOT_REGISTERED_SECONDS: Final = 150.0
"""Seconds from the launch of a node until it must have joined the cluster; a large instance boots for two minutes."""
NOT_LAUNCHED_SECONDS: Final = 60.0
MAX_EVIDENCE: Final = 8
NO_CAPACITY: Final = "InsufficientCapacityError"

_TYPE: Final = Advice(
    "instance-type-missing",
    "no node of type {type} can be provisioned: {why}",
    "correct resources.instance:{near}; {named}or have a NodePool allow that type",
)
_LABEL: Final = Advice(
    "machines-of-other-kind",
    "no NodePool has nodes with the labels that the job requests: {why}",
    "correct resources.gpu_type: or kubernetes.node_selector:; or have a NodePool with these labels",
)
_SMALL: Final = Advice(
    "machines-too-small",
    "no node that can be provisioned is large enough for {asked} in one pod: {why}",
    "request less ({fields}) on more nodes:, or have a NodePool allow larger types",
)
_CAPACITY: Final = Advice(
    "no-capacity",
    "the cloud provider has no capacity for the nodes: {why}",
    "{fits}it is retried automatically; or have the NodePool allow more types, zones or capacity types (spot and "
    "on-demand)",
)
_NOT_READY: Final = Advice(
    "pool-not-ready",
    "{pool} provisions no nodes: {why}",
    "a cluster administrator can fix it: kubectl describe nodepool, and the NodeClass that it names",
)
REPORTS: Final = (
    (r"in backoff after failed scale-up|has the required offering|, had a required offering", _CAPACITY),
    (r"(?:limits have been exhausted for|exceed limits for) nodepool|max node group size reached|"
     r"max cluster \S+ limit reached|cluster-wide limit",
     Advice("pool-limit", "{pool} is at its limit: {why}",
            "it continues when other nodes are deleted; request less ({fields}, nodes:), or have spec.limits of the "
            "NodePool raised")),
    (r"did not tolerate|had untolerated taint",
     Advice("taint-not-tolerated", "{pool} matches the job except for a taint: {why}",
            "use nodes without that taint, have the taint removed from the NodePool, or have a policy of the cluster "
            "add the toleration to pods of this namespace")),
    (r"no instance type met (?:all requirements|the scheduling requirements or)|requirements filtered out all", _TYPE),
    (r"enough resources|the required resources|requirements/resources/offering tuple|Insufficient \S+", _SMALL),
    (r"incompatible requirements, (?:key|label) \"?(?!node\.kubernetes\.io/instance-type)|"
     r"didn't match Pod's node affinity/selector", _LABEL),
    (r"incompatible requirements", _TYPE),
)  # fmt: skip
"""Patterns for a node autoscaler's report on a pod for which it provisions no node, with advice. A report covers every
NodePool; the NodePool that matches the earliest pattern comes closest to the job's requests."""
NOT_PROGRESSING: Final = {
    "ResourceNotRegistered": Advice(
        "machine-not-ready",
        "node {machine} does not have its devices: {why}",
        "see why the device plugin does not run there (for GPUs NVIDIA's, a DaemonSet): kubectl -n kube-system get "
        "pods -o wide; its taints may keep the plugin away",
    ),
    "StartupTaintsExist": Advice(
        "machine-not-ready",
        "the start-up taint of node {machine} is not removed: {why}",
        "the program that should remove the taint does not run there: see startupTaints of the NodePool",
    ),
    "": Advice(
        "machine-not-ready",
        "node {machine} has joined the cluster and does not become ready: {why}",
        "see: kubectl describe node {machine}; mostly its network plugin (CNI), its kubelet or its cloud's controller "
        "does not work. kubectl delete nodeclaim {name} causes Karpenter to provision another one",
    ),
}
"""Advice by the reason in a NodeClaim's condition `Initialized`."""


def awaited(cluster: ClusterStatus, case: Observations) -> Iterator[Verdict]:
    """Yields verdicts on pods that wait for a node: why none is provisioned, or the progress of one that is."""
    waiting = waiting_pods(cluster, case)
    if not waiting:
        return
    pods = {pod.name for pod in waiting if pod.state in ("queued", "missing")}
    reports = [one for one in cluster.reports if pods and _is_of_autoscaler(one, pods)]
    evidence = tuple(_evidence(cluster, reports))[:MAX_EVIDENCE]
    for claim in cluster.claims:
        yield from _of_claim(claim, evidence)
    if any(one.state in ("launched", "registered") for one in cluster.claims):
        # The current NodeClaim was launched, so reports on NodeClaims are about earlier ones.
        reports = [one for one in reports if one.kind != "NodeClaim"]
    if cluster.pools and all(pool.not_ready for pool in cluster.pools):
        if pods:
            pool = cluster.pools[0]
            yield _refused(cluster, _NOT_READY, pool.name, f"it is not ready: {pool.not_ready}", evidence)
    elif found := _nearest(reports):
        yield _refused(cluster, *found, evidence)


def _is_of_autoscaler(report: ObjectReport, pods: set[str]) -> bool:
    is_refusal = report.kind == "Pod" and report.reason in ("FailedScheduling", "NotTriggerScaleUp")
    return report.kind == "NodeClaim" or (is_refusal and (report.name in pods or pods == {""}))


def _nearest(reports: list[ObjectReport]) -> tuple[Advice, str, str] | None:
    """Returns advice for the NodePool that comes closest to the job's requests, its name, and its part of the
    message.
    """
    for claim in (one for one in reports if one.kind == "NodeClaim"):
        advice = _CAPACITY if claim.reason == NO_CAPACITY else _NOT_READY
        return advice, claim.name.rpartition("-")[0], claim.message
    parts = [part for one in reports for part in one.message.split("; ")]
    for pattern, advice in REPORTS:
        for part in parts:
            if re.search(pattern, part):
                pool = re.search(r"NodePool=\"?/?([\w.-]+)|nodepool:? \"([\w.-]+)\"", part)
                # The NodePool's own requirements are cut off, since they are long.
                why = re.split(r", requirements=| \(NodePool=|, resources=", part)[0].rpartition("schedule pod, ")[2]
                return advice, (pool[1] or pool[2]) if pool else "", why.strip().rstrip(".")
    return None


def _refused(cluster: ClusterStatus, advice: Advice, pool: str, why: str, evidence: tuple[str, ...]) -> Verdict:
    wanted = cluster.pod_spec.get("nodeSelector", {})
    kind = wanted.get(INSTANCE_LABEL, "")
    if advice is _TYPE and not kind:
        advice = _LABEL if wanted else _SMALL
    pools = cluster.pools
    if not pool and len(pools) == 1:
        pool = pools[0].name
    named = list(dict.fromkeys(one for each in pools for one in each.named))
    hint = near(kind, named) if kind else ""
    other = [one for one in named if one not in why and one != kind][:8]
    return advice.verdict(
        evidence,
        score=108,
        why=why,
        type=kind,
        pool=f"NodePool {pool}" if pool else "the node autoscaler",
        asked=", ".join(f"{amount} {name}" for name, amount in cluster.requests.items()) or "what the job requests",
        fields=", ".join(dict.fromkeys(FIELDS.get(one, f"of {one}") for one in cluster.requests)) or "resources:",
        near=f" ({hint})" if hint else "",
        named=f"NodePools list {', '.join(named[:12])}{' …' if len(named) > 12 else ''}; " if named else "",
        fits=f"of what NodePools allow, {', '.join(other)} may fit too: name one in resources.instance:; "
        if other
        else "",
    )


def _of_claim(claim: NodeClaimStatus, evidence: tuple[str, ...]) -> Iterator[Verdict]:
    """Yields a verdict on what keeps a provisioned node from becoming ready, or that the provisioning proceeds
    normally.
    """
    since, what, why = f"{claim.seconds:.0f} s", _called(claim), claim.message or claim.reason
    if claim.state == "registered" and claim.seconds > NOT_READY_SECONDS:
        advice = NOT_PROGRESSING.get(claim.reason, NOT_PROGRESSING[""])
        why = f"{why or 'no reason reported'}, {since} after it joined"
        yield advice.verdict(evidence, score=108.2, machine=claim.machine or "NAME", name=claim.name, why=why)
    elif claim.state == "launched" and claim.seconds > NOT_REGISTERED_SECONDS:
        yield Verdict(
            "machine-not-registered",
            f"a node ({what}) was launched {since} ago and has not joined the cluster",
            None,
            evidence,
            "its user data, role or network keeps it from the API server: see its console output in the cloud, and "
            f"kubectl describe nodeclaim {claim.name}; Karpenter deletes it after 15 minutes",
            108.2,
        )
    elif claim.state == "asked" and claim.reason and claim.seconds > NOT_LAUNCHED_SECONDS:
        yield Verdict(
            "machine-not-launched",
            f"the cloud provider launches no node for the job: {why}",
            None,
            evidence,
            f"see: kubectl describe nodeclaim {claim.name}; mostly a right or a setting of the NodeClass",
            108.2,
        )
    elif claim.state not in ("gone", "initialized"):
        state = "requested" if claim.state == "asked" else claim.state
        yield Verdict(
            "machine-coming",
            f"a node is being provisioned ({what}), {state} {since} ago; nothing is wrong so far",
            None,
            evidence,
            "nothing to do: the run starts when the node is ready",
            107.6,
            is_effect=True,
        )


def _called(claim: NodeClaimStatus) -> str:
    """Describes a NodeClaim or node group: `g5.12xlarge, spot, bed-a, of NodePool gpus`."""
    of = f"of NodePool {claim.pool}" if claim.pool else f"NodeClaim {claim.name}"
    if " " in claim.name:
        of = f"node group {claim.name}"
    return ", ".join(part for part in (claim.instance_type, claim.capacity_type, claim.zone, of) if part)


def _evidence(cluster: ClusterStatus, reports: list[ObjectReport]) -> Iterator[str]:
    """Yields evidence: the nodes that are being provisioned, the autoscaler's reports, and the NodePools."""
    for claim in cluster.claims:
        why = ": ".join(part for part in (claim.reason, claim.message) if part)
        yield f"node {claim.machine or claim.name} ({_called(claim)}): {claim.state}" + (f": {why}" if why else "")
    yield from list(dict.fromkeys(f"{one.kind} {one.name}: {one.reason}: {one.message}" for one in reports))[:3]
    for pool in cluster.pools:
        limits = f"; {', '.join(pool.limits)} in use" if pool.limits else ""
        against = "; ".join([*pool.mismatch, *([f"not ready: {pool.not_ready}"] if pool.not_ready else [])])
        yield f"NodePool {pool.name} makes {makes(pool, pool.named)}{limits}" + (f": {against}" if against else "")
