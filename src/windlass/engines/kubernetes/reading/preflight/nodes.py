"""Derives checks of nodes: GPUs, taints, images, and what node autoscalers can provision. Pure."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from windlass.engines.checks import Check
from windlass.engines.kubernetes.objects.node_pools import (
    makes,
    match,
    taint_not_tolerated,
    taint_text,
    taints_of,
    taints_of_node,
)
from windlass.engines.kubernetes.objects.pod_template import (
    GPU,
    GPU_LABELS,
    GPU_TOLERATION,
    IMAGE,
    INSTANCE_LABEL,
    PYTHON,
    tolerated,
)
from windlass.engines.kubernetes.objects.quantity import Json, is_true
from windlass.spec.quantities import amount

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget

MACHINES: Final = "machines"
"""Name of the check of node autoscalers."""


def node_checks(nodes: Sequence[Json], pods: Json | None, target: KubernetesTarget) -> Iterator[Check]:
    """Yields checks of the GPUs and taints of nodes. `pods` are all pods of the cluster; None if the user may not list
    them.
    """
    yield from _gpu_checks(nodes, pods)
    found = [taints_of_node(node) for node in nodes if is_true(node, "Ready")]
    texts = collections.Counter(taint_text(one) for taints in found for one in taints)
    if not texts:
        return
    shown = ", ".join(f"{text} on {count} of {len(found)} nodes" for text, count in sorted(texts.items()))
    spec = {"tolerations": [GPU_TOLERATION, *map(tolerated, target.tolerations)]}
    kept = [taint_not_tolerated(taints, spec) for taints in found]
    others = dict.fromkeys(taint_text(one) for one in kept if one is not None)
    also = f", and those of target {target.name}" if target.tolerations else ", and no other"
    text = f"{shown}; pods of jobs that request GPUs tolerate {GPU}{also}"
    fix = f"to use such nodes: tolerations: [{', '.join(others)}] in target {target.name}" if others else ""
    if all(kept):
        yield Check("taints", "warn", f"{text}: there is no node for them", fix)
    else:
        yield Check("taints", "ok", text, fix)


def _gpu_checks(nodes: Sequence[Json], pods: Json | None) -> Iterator[Check]:
    having = {node["metadata"]["name"]: node for node in nodes if _gpus_of(node)}
    if not having:
        yield Check("gpus", "ok", f"none on {len(nodes)} nodes, unless an autoscaler provisions some")
        return
    total = sum(_gpus_of(node) for node in having.values())
    taken = _taken((pods or {}).get("items", ()), having)
    free = f"{total - taken} free of {total}" if pods is not None else f"{total}, some of which may be in use"
    kinds = _counted(_gpu_type(node) for node in having.values())
    instances = _counted(_label(node, INSTANCE_LABEL) for node in having.values())
    unready = [name for name, node in having.items() if not is_true(node, "Ready")]
    text = f"{free}, on {len(having)} of {len(nodes)} nodes: {kinds}; {instances}"
    if unready:
        yield Check("gpus", "warn", f"{text}; not ready: {', '.join(unready[:5])}", "kubectl describe node NAME")
    else:
        yield Check("gpus", "ok", text)


def _gpus_of(node: Json) -> int:
    return int(amount(str(node.get("status", {}).get("allocatable", {}).get(GPU, "0"))))


def _gpu_type(node: Json) -> str:
    return next((found for label in GPU_LABELS if (found := _label(node, label))), "")


def _label(node: Json, name: str) -> str:
    return str(node["metadata"].get("labels", {}).get(name, ""))


def _counted(values: Iterable[str]) -> str:
    counts = collections.Counter(value or "of unknown type" for value in values)
    return ", ".join(f"{many} × {value}" for value, many in sorted(counts.items()))


def _taken(pods: Iterable[Json], nodes: Json) -> int:
    return sum(
        int(amount(str(container.get("resources", {}).get("limits", {}).get(GPU, "0"))))
        for pod in pods
        if pod["spec"].get("nodeName") in nodes
        for container in pod["spec"]["containers"]
    )


def pool_check(pools: Iterable[Json]) -> Check:
    """Returns the check of Karpenter's NodePools: what they provision, and which are not ready."""
    shown, wrong = [], []
    for pool in pools:
        seen = match(pool, {})
        taints = [f"taint {one}" for one in taints_of(pool)]
        shown.append(f"{seen.name} ({'; '.join([makes(seen, seen.named), *seen.limits, *taints])})")
        wrong += [f"{seen.name} is not ready: {seen.not_ready}"] if seen.not_ready else []
    if not shown:
        return Check(
            MACHINES,
            "warn",
            "Karpenter is installed, and there is no NodePool",
            "no node is provisioned for pods that fit nowhere",
        )
    if wrong:
        return Check(MACHINES, "warn", "; ".join([*shown, *wrong]), "kubectl describe nodepool")
    return Check(MACHINES, "ok", f"Karpenter makes: {'; '.join(shown)}")


def group_checks(status: Json | None) -> Iterator[Check]:
    """Yields a check of Cluster Autoscaler's node groups, and which of them are in backoff; no check if `status` is
    None.
    """
    if status is None:
        return
    shown, wrong = [], []
    for group in status.get("nodeGroups") or ():
        health, scale_up = group.get("health") or {}, group.get("scaleUp") or {}
        counts = (health.get("nodeCounts") or {}).get("registered") or {}
        shown.append(
            f"{group.get('name')} ({counts.get('ready', 0)} nodes, {health.get('minSize', 0)} to "
            f"{health.get('maxSize', '?')})"
        )
        if scale_up.get("status") == "Backoff":
            why = (scale_up.get("backoffInfo") or {}).get("errorMessage") or "a scale-up failed"
            wrong.append(f"{group.get('name')} is in backoff: {why}")
    text = f"Cluster Autoscaler is {status['autoscalerStatus']}: {'; '.join(shown) or 'no node group'}"
    if wrong or status["autoscalerStatus"] != "Running":
        fix = "kubectl -n kube-system describe configmap cluster-autoscaler-status"
        yield Check(MACHINES, "warn", "; ".join([text, *wrong]), fix)
    else:
        yield Check(MACHINES, "ok", text)


def image_check(target: KubernetesTarget, nodes: Sequence[Json]) -> Check:
    """Returns the check of whether a node has pulled the target's image. Only a pod could show the content of the
    image.

    `nodes` are the nodes that the user may list. No registry is queried, since only nodes have its credentials.
    """
    text = target.image or IMAGE
    python = target.python or PYTHON
    if target.image is None:
        fix = "set image: of the target in targets.yaml, or image: in each job"
        return Check("image", "warn", f"the target names none: {text}", fix)
    fix = f"windlass check --on {target.name} --network starts two pods of it"
    name = full_name(target.image)
    having = [node for node in nodes if name in _images(node)]
    if having:
        return Check(
            "image", "ok", f"{text}: {len(having)} of {len(nodes)} nodes have it; whether it has {python} is not known"
        )
    where = f"none of {len(nodes)} nodes has it" if nodes else "no node is known that has it"
    return Check("image", "warn", f"{text}: {where}, and whether it can be pulled, and has {python}, is not known", fix)


def full_name(image: str) -> str:
    """Returns the full name of an image, as nodes report it: with registry, and with a digest or a tag."""
    first, slash, _ = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif first != "localhost" and not any(mark in first for mark in ".:"):
        image = f"docker.io/{image}"
    image, at, digest = image.partition("@")
    path, _, last = image.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{path}/{name}@{digest}" if at else f"{path}/{name}:{tag or 'latest'}"


def _images(node: Json) -> set[str]:
    """Returns the names of the images on a node. By default, a kubelet reports only the 50 largest images."""
    images = node.get("status", {}).get("images") or ()
    return {name for image in images for name in image.get("names") or ()}
