"""Reads where pods may run: node selectors, tolerations, affinities and topology spread constraints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from windlass.importers.draft import Draft
from windlass.importers.source import View
from windlass.spec.labels import ATTEMPT_LABEL, RUN_LABEL

GPU: Final = "nvidia.com/gpu"
INSTANCE_LABELS: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
GPU_LABELS: Final = (
    "nvidia.com/gpu.product",
    "karpenter.k8s.aws/instance-gpu-name",
    "cloud.google.com/gke-accelerator",
)
"""Node labels for the GPU model: NVIDIA GPU feature discovery, Karpenter on EKS, GKE."""
UNREACHABLE: Final = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_FIELDS: Final = {"podAffinity": "kubernetes.affinity.same", "podAntiAffinity": "kubernetes.affinity.apart"}
_OF_RUN: Final = ("selects the pods of the job", "the pods of the same run are selected", True)
_OF_OPERATORS: Final = (
    "training.kubeflow.org/",
    "trainer.kubeflow.org/",
    "jobset.sigs.k8s.io/",
    "batch.kubernetes.io/",
    "job-name",
    "mpi-job-",
    "mpi_job_",
    "pytorch-",
)
"""Prefixes of the keys of labels by which operators find the pods of a job."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The pods of the original, as label selectors see them."""

    job: str
    """Name of the job."""
    labels: Mapping[str, Any]
    """Labels of the pod template."""
    carried: Mapping[str, Any]
    """Labels that pods of a run have too."""

    def of_run(self, view: View) -> Any:
        """Returns a term or constraint; one that selects the job's pods by labels that pods of a run lack selects the
        pods of the same run instead.
        """
        term = view.value
        if isinstance(term, dict) and "podAffinityTerm" in term:  # a preferred one, with its weight
            return {**term, "podAffinityTerm": self.of_run(view.at("podAffinityTerm"))}
        if not self.are_lost(term):
            return term
        view.at("labelSelector").remark(*_OF_RUN)
        rest = {name: value for name, value in term.items() if name not in ("labelSelector", "matchLabelKeys")}
        ranks = {"matchExpressions": [{"key": ATTEMPT_LABEL, "operator": "Exists"}]}
        return {**rest, "labelSelector": ranks, "matchLabelKeys": [RUN_LABEL]}

    def are_lost(self, term: Any) -> bool:
        """Whether a term selects the pods of the job by labels that pods of a run lack."""
        asked = _asked(term)
        is_known = all(key in self.carried for key in asked)
        return not is_known and all(self._has(key, values) for key, values in asked.items())

    def _has(self, key: str, values: list[Any] | None) -> bool:
        """Whether the pods have a label with one of these values; None accepts all values."""
        if key in self.labels:
            return values is None or self.labels[key] in values
        if not key.startswith(_OF_OPERATORS):
            return False
        names = [value for value in values or () if isinstance(value, str)]
        is_name = key.endswith(("job-name", "jobset-name", "job_name"))
        return not is_name or values is None or any(f"{name}-".startswith(f"{self.job.rstrip('-')}-") for name in names)


def _asked(term: Any) -> dict[str, list[Any] | None]:
    """Returns the labels that a term selects, with their values; None stands for all values."""
    selector = term.get("labelSelector") if isinstance(term, dict) else None
    if not isinstance(selector, dict):
        return {}
    labels, rules = selector.get("matchLabels"), selector.get("matchExpressions")
    found: dict[str, list[Any] | None] = {}
    for key, value in labels.items() if isinstance(labels, dict) else ():
        found[key] = [value]
    for rule in rules if isinstance(rules, list) else ():
        if isinstance(rule, dict) and rule.get("operator") in ("In", "Exists"):
            values = rule.get("values")
            found[str(rule.get("key"))] = values if isinstance(values, list) and values else None
    return found


def scheduling(draft: Draft, template: View, job: str) -> None:
    """Reads the scheduling constraints of a pod template of the job of this name."""
    spec, labels = template.at("spec"), template.at("metadata", "labels").value
    ranks = Ranks(job, labels if isinstance(labels, dict) else {}, draft.get("labels") or {})
    for label, view in spec.at("nodeSelector").items():
        if not _label(draft, label, view):
            view.report(f"only machines with a label {label}", "kubernetes: {node_selector: {LABEL: VALUE}}")
    for toleration in spec.at("tolerations").each():
        _toleration(draft, toleration)
    _node_affinity(draft, spec.at("affinity", "nodeAffinity"))
    for kind in _FIELDS:
        _pod_affinity(draft, spec.at("affinity", kind), kind, ranks)
    keys: list[Any] = []
    for constraint in spec.at("topologySpreadConstraints").each():
        key = constraint.at("topologyKey").value
        if key in keys:
            constraint.report(f"a second constraint on {key}", "a patch has one for each topologyKey")
        elif RUN_LABEL in _asked(constraint.value):
            constraint.report("how Windlass spreads the pods of a run", "nothing to do", is_handled=True)
        else:
            keys.append(key)
            draft.put_pod({"topologySpreadConstraints": [ranks.of_run(constraint)]}, constraint)


def _label(draft: Draft, label: str, view: View) -> bool:
    """Reads a node label that pods require; returns whether a field of the job has it."""
    field = "resources.instance" if label in INSTANCE_LABELS else "resources.gpu_type" if label in GPU_LABELS else ""
    if field == "resources.gpu_type" and not draft.get("resources.gpus"):
        field = ""
    had = draft.get(field) if field else (draft.get("kubernetes.node_selector") or {}).get(label)
    if not isinstance(view.value, str) or had not in (None, view.value):
        return False
    if field:
        return draft.put(field, view.value, view)
    return draft.put_entry("kubernetes.node_selector", label, view.value, view)


def _node_affinity(draft: Draft, view: View) -> None:
    """Reads the affinity to nodes: required labels with one value become fields, the rest is patched."""
    if not isinstance(view.value, dict):
        return
    left = dict(view.value)
    terms = view.at(_REQUIRED, "nodeSelectorTerms")
    if len(terms.each()) == 1 and isinstance(terms.at(0).value, dict):
        rules = [rule.value for rule in terms.at(0, "matchExpressions").each() if not _rule(draft, rule)]
        term = {**terms.at(0).value, "matchExpressions": rules}
        term = {name: value for name, value in term.items() if value}
        left[_REQUIRED] = {"nodeSelectorTerms": [term]}
        if not term:
            del left[_REQUIRED]
    if left:
        draft.put_pod({"affinity": {"nodeAffinity": left}}, view)
    else:
        view.take()


def _rule(draft: Draft, rule: View) -> bool:
    """Reads a required node label; returns whether a field of the job has it."""
    values, key = rule.at("values").each(), rule.at("key").value
    is_one = len(values) == 1 and rule.at("operator").value == "In" and isinstance(key, str)
    return is_one and _label(draft, str(key), values[0])


def _pod_affinity(draft: Draft, view: View, kind: str, ranks: Ranks) -> None:
    """Reads the affinity to pods: one required rule between the ranks becomes a field, the rest is patched."""
    if not isinstance(view.value, dict):
        return
    left, required = dict(view.value), view.at(_REQUIRED)
    if len(required.each()) == 1 and ranks.are_lost(term := required.at(0).value):
        is_plain = set(term) == {"topologyKey", "labelSelector"}
        if is_plain and draft.put(_FIELDS[kind], term["topologyKey"], required):
            required.at(0, "labelSelector").remark(*_OF_RUN)
            del left[_REQUIRED]
    for name in left:
        left[name] = [ranks.of_run(one) for one in view.at(name).each()]
    if left:
        draft.put_pod({"affinity": {kind: left}}, view)
    else:
        view.take()


def _toleration(draft: Draft, view: View) -> None:
    key, seconds, operator = (view.at(name).value for name in ("key", "tolerationSeconds", "operator"))
    if operator not in (None, "", "Equal", "Exists"):
        view.report(f"a toleration with the operator {operator}", "kubernetes: {pod: {spec: {tolerations: […]}}}")
    elif not key and operator != "Exists":
        view.report("a toleration without a key, which needs the operator Exists", "the API server refuses it")
    elif key == GPU and view.at("effect").value == "NoSchedule" and draft.get("resources.gpus"):
        view.report("pods may go to machines with GPUs", "tolerated if gpus: are requested", is_handled=True)
    elif key in UNREACHABLE and isinstance(seconds, int) and not isinstance(seconds, bool):
        if draft.put("kubernetes.lost_after", float(seconds), view):
            view.report("how long pods stay on a machine that is silent", "lost_after: says it", is_handled=True)
    elif isinstance(view.value, dict):
        value = None if operator == "Exists" else view.at("value").value or ""
        fields = {"key": key, "value": value, "effect": view.at("effect").value or None, "seconds": seconds}
        draft.add("kubernetes.tolerations", {name: one for name, one in fields.items() if one is not None}, view)
