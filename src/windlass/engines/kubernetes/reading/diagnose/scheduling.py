"""Verdict on pods that the scheduler cannot place: which resources are short on how many nodes, and what would fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from windlass.diagnose.verdict import Verdict
from windlass.engines.kubernetes.objects.observations import ClusterStatus
from windlass.engines.kubernetes.objects.pod_status import PodStatus
from windlass.spec.quantities import amount

FIELDS: Final = {"cpu": "resources.cpus", "memory": "resources.memory", "nvidia.com/gpu": "resources.gpus"}
"""Fields of a job file that request each resource."""
_SHORT: Final = re.compile(r"(\d+) Insufficient ([\w./-]*\w)")
_OTHER: Final = (
    (
        r"(\d+) node\(s\) didn't match Pod's node affinity/selector",
        "{} nodes do not have the requested labels{labels}",
        "correct resources.instance: or resources.gpu_type:, or add such nodes",
    ),
    (
        r"(\d+) node\(s\) had untolerated taint(?:\(s\)|s)? ?(\{[^}]*\})?",
        "{} nodes have an untolerated taint {detail}",
        "use nodes without that taint, or have a policy add the toleration",
    ),
    (r"(\d+) node\(s\) were unschedulable", "{} nodes are cordoned", "kubectl uncordon NAME, when its work is done"),
    (r"(\d+) Too many pods", "{} nodes run their maximum number of pods", "add nodes, or wait for pods to end"),
)


def unschedulable(cluster: ClusterStatus, waiting: Sequence[PodStatus], evidence: tuple[str, ...]) -> Verdict:
    """Returns the verdict on pods that, according to the scheduler, fit on no node."""
    message = waiting[0].message
    total = re.search(r"0/(\d+) nodes are available", message)
    of = f" of {total[1]}" if total else ""
    selector = cluster.pod_spec.get("nodeSelector", {})
    short = sorted(((int(count), resource) for count, resource in _SHORT.findall(message)), reverse=True)
    problems, fixes = [], []
    for count, resource in short:
        each = f" ({cluster.requests[resource]} each)" if resource in cluster.requests else ""
        problems.append(f"{count}{of} nodes have too little {resource}{each}")
        fixes.append(_what_fits(cluster, resource))
    labels = ", ".join(f"{name}={value}" for name, value in selector.items())
    for pattern, problem, fix in _OTHER:
        if found := re.search(pattern, message):
            detail = (found[2] or "") if found.re.groups == 2 else ""
            said = problem.format(f"{found[1]}{of}", labels=f" ({labels})" if labels else "", detail=detail)
            problems.append(said.rstrip())
            fixes.append(fix)
    if not problems:
        none = "no nodes available" in message
        problems.append("the cluster has no nodes" if none else message.partition(": ")[2] or message)
        fixes.append("see: kubectl get nodes")
    pods = f"{len(waiting)} pods fit" if len(waiting) > 1 else f"pod {waiting[0].name} fits"
    nodes = tuple(_nodes(cluster, [resource for _, resource in short] or ["nvidia.com/gpu"]))
    return Verdict(
        "unschedulable",
        f"{pods} on no node: {'; '.join(problems)}",
        None,
        (*evidence, *nodes),
        "; ".join(dict.fromkeys(fixes)),
        107,
        is_effect=True,
    )


def _what_fits(cluster: ClusterStatus, resource: str) -> str:
    """Returns advice on how the job's pods would fit, based on the largest node."""
    field, asked = FIELDS.get(resource, f"of {resource}"), cluster.requests.get(resource)
    if asked is None or not cluster.nodes:
        return f"request less ({field}), or add nodes"
    sizes = [one.allocatable[resource] for one in cluster.nodes if resource in one.allocatable]
    largest = max(sizes, key=amount, default="0")
    if not amount(largest):
        return f"no node has any {resource}: add such nodes"
    if amount(asked) > amount(largest):
        return f"the largest node has {largest} {resource}: ask for no more ({field}), or add larger nodes"
    return f"nodes that are large enough are in use: the run starts when they are free; or request less ({field})"


def _nodes(cluster: ClusterStatus, resources: Sequence[str]) -> Iterator[str]:
    """Yields a line for each node, with its amounts of the scarce resources and its values of the requested labels."""
    for node in cluster.nodes[:8]:
        has = [f"{node.allocatable[name]} {name}" for name in dict.fromkeys(resources) if name in node.allocatable]
        has += [f"{name}={node.labels.get(name, 'nothing')}" for name in cluster.pod_spec.get("nodeSelector", {})]
        yield f"node {node.name} has {', '.join(has) or 'none of it'}" + ("" if node.is_ready else ", and is not ready")
