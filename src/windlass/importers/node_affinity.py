"""Reads node selectors, required node affinity and tolerations of pods."""

from __future__ import annotations

from typing import Final

from windlass.importers.draft import Draft
from windlass.importers.source import View

GPU: Final = "nvidia.com/gpu"
INSTANCE_LABELS: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
GPU_LABELS: Final = (
    "nvidia.com/gpu.product",
    "karpenter.k8s.aws/instance-gpu-name",
    "cloud.google.com/gke-accelerator",
)
"""Node labels for the GPU model: NVIDIA GPU feature discovery, Karpenter on EKS, GKE."""
UNREACHABLE: Final = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")


def node_affinity(draft: Draft, spec: View) -> None:
    """Reads the scheduling constraints of the pods of a spec."""
    for label, view in spec.at("nodeSelector").items():
        _label(draft, label, view)
    terms = spec.at("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    if len(terms.each()) == 1:
        for rule in terms.at(0, "matchExpressions").each():
            values = rule.at("values").value
            one = isinstance(values, list) and len(values) == 1 and rule.at("operator").value == "In"
            if one and isinstance(rule.at("key").value, str):
                label = str(rule.at("key").take())
                rule.text("operator")
                _label(draft, label, rule.at("values", 0))
    for toleration in spec.at("tolerations").each():
        _toleration(draft, toleration)


def _label(draft: Draft, label: str, view: View) -> None:
    field = "resources.instance" if label in INSTANCE_LABELS else "resources.gpu_type" if label in GPU_LABELS else ""
    if field == "resources.gpu_type" and not draft.get("resources.gpus"):
        field = ""
    value = view.value
    if not isinstance(value, str):
        view.report(f"only machines with a label {label}", "kubernetes: {node_selector: {LABEL: VALUE}}")
    elif field:
        draft.put(field, value, view)
    else:
        draft.put("kubernetes.node_selector", {**(draft.get("kubernetes.node_selector") or {}), label: value}, view)


def _toleration(draft: Draft, view: View) -> None:
    key, seconds = view.at("key").value, view.at("tolerationSeconds").value
    if key == GPU and draft.get("resources.gpus"):
        view.report("pods may go to machines with GPUs", "tolerated if gpus: are requested", is_handled=True)
    elif key in UNREACHABLE and isinstance(seconds, int) and not isinstance(seconds, bool):
        if draft.put("kubernetes.lost_after", float(seconds), view):
            view.report("how long pods stay on a machine that is silent", "lost_after: says it", is_handled=True)
    else:
        view.report(
            f"pods may go to machines that keep others away by {key or 'any taint'}",
            "GPU nodes are tolerated if gpus: are requested; remove other taints",
        )
