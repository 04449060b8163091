"""Finds Kubernetes objects that own AWS resources (load balancers, volumes, nodes), and why they are not deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from windlass.clusters.components.resources import Ref, Resources
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.quantity import condition, event_time

Json = Mapping[str, Any]
Stage = Literal["services", "claims", "nodes"]
STAGES: Final[tuple[Stage, ...]] = ("services", "claims", "nodes")
PROVISIONED: Final = "pv.kubernetes.io/provisioned-by"
EXTERNAL_PROVISIONER: Final = "external-provisioner.volume.kubernetes.io/finalizer"
MAX_CHARS: Final = 300


class Controller(NamedTuple):
    """The controller that removes a finalizer."""

    finalizer: str
    """Prefix of the finalizer's name."""
    deployments: tuple[str, ...]
    """Names of the controller's Deployments; empty if it is part of the control plane."""
    name: str


LOAD_BALANCERS: Final = "aws-load-balancer-controller"
CSI: Final = ("ebs-csi-controller", "efs-csi-controller", "fsx-csi-controller")
CONTROLLERS: Final = (
    Controller("service.k8s.aws/", (LOAD_BALANCERS,), LOAD_BALANCERS),
    Controller("ingress.k8s.aws/", (LOAD_BALANCERS,), LOAD_BALANCERS),
    Controller("group.ingress.k8s.aws/", (LOAD_BALANCERS,), LOAD_BALANCERS),
    Controller("elbv2.k8s.aws/", (LOAD_BALANCERS,), LOAD_BALANCERS),
    Controller("gateway.k8s.aws/", (LOAD_BALANCERS,), LOAD_BALANCERS),
    Controller("service.kubernetes.io/", (), "the cloud controller of the control plane"),
    Controller("external-provisioner.", CSI, "the CSI driver"),
    Controller("external-attacher/", CSI, "the CSI driver"),
    Controller("karpenter.", ("karpenter",), "karpenter"),
)
PVC_PROTECTION: Final = "kubernetes.io/pvc-protection"


@dataclass(frozen=True, slots=True)
class Holding:
    """A Kubernetes object that owns a billed AWS resource."""

    stage: Stage
    ref: Ref
    holds: str
    """The AWS resource: `load balancer a.elb.amazonaws.com`, `volume vol-0a`, `instance i-0b`."""
    is_retained: bool = False
    """Whether the volume outlives its claim (reclaim policy Retain)."""
    why: str = ""
    """Why a drain did not remove the object; empty otherwise."""

    def __str__(self) -> str:
        return f"{self.ref} ({self.holds}){f': {self.why}' if self.why else ''}"


def of_services(resources: Resources) -> Iterator[Holding]:
    """Yields objects with load balancers and target groups. Raises Refused, Unreachable."""
    for one in resources.list("v1", "Service"):
        if one["spec"].get("type") == "LoadBalancer":
            yield Holding("services", ref_of("v1", "Service", one), _balancer(one))
    for api, kind in (("networking.k8s.io/v1", "Ingress"), ("gateway.networking.k8s.io/v1", "Gateway")):
        for one in resources.list(api, kind):
            yield Holding("services", ref_of(api, kind, one), _balancer(one))
    api = "elbv2.k8s.aws/v1beta1"
    for one in resources.list(api, "TargetGroupBinding"):
        group = str(one["spec"].get("targetGroupARN") or "not named")
        yield Holding("services", ref_of(api, "TargetGroupBinding", one), f"target group {group.rpartition(':')[2]}")


def of_claims(resources: Resources) -> Iterator[Holding]:
    """Yields claims and volumes that were provisioned dynamically, not by Terraform. Raises Refused, Unreachable."""
    for one in resources.list("v1", "PersistentVolume"):
        if PROVISIONED not in (one["metadata"].get("annotations") or {}):
            continue
        is_retained = one["spec"].get("persistentVolumeReclaimPolicy") == "Retain"
        claim = one["spec"].get("claimRef") or {}
        is_bound = one.get("status", {}).get("phase") == "Bound"
        ref = ref_of("v1", "PersistentVolume", one)
        if is_bound and claim:
            ref = Ref("v1", "PersistentVolumeClaim", str(claim["namespace"]), str(claim["name"]))
        yield Holding("claims", ref, _volume(one), is_retained)


def of_nodes(resources: Resources) -> Iterator[Holding]:
    """Yields Karpenter's nodes, and the pools from which Karpenter would create more. Raises Refused, Unreachable."""
    for one in resources.list("karpenter.sh/v1", "NodePool"):
        num = str((one.get("status", {}).get("resources") or {}).get("nodes") or "0")
        yield Holding("nodes", ref_of("karpenter.sh/v1", "NodePool", one), f"{num} nodes")
    for one in resources.list("karpenter.sh/v1", "NodeClaim"):
        instance = str(one.get("status", {}).get("providerID") or "").rpartition("/")[2] or "not started yet"
        yield Holding("nodes", ref_of("karpenter.sh/v1", "NodeClaim", one), f"instance {instance}")
    for one in resources.list("karpenter.k8s.aws/v1", "EC2NodeClass"):
        yield Holding("nodes", ref_of("karpenter.k8s.aws/v1", "EC2NodeClass", one), "launch templates")


READERS: Final = {"services": of_services, "claims": of_claims, "nodes": of_nodes}


def of_stage(resources: Resources, stage: Stage) -> tuple[Holding, ...]:
    """Returns the objects to remove in one stage of the drain. Raises Refused, Unreachable."""
    return tuple(READERS[stage](resources))


def running(resources: Resources) -> tuple[str, ...]:
    """Returns the pods of active runs and of deployments: `team/digits-1-0 of run digits-ab12`. Raises Refused,
    Unreachable.
    """
    return tuple(
        f"{one['metadata']['namespace']}/{one['metadata']['name']} of {what} {one['metadata']['labels'][label]}"
        for what, label in (("run", layout.RUN_LABEL), ("deployment", layout.DEPLOYMENT_LABEL))
        for one in resources.list("v1", "Pod", label)
        if one.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    )


def ref_of(api: str, kind: str, one: Json) -> Ref:
    """Returns the reference of a list item; items do not contain their kind."""
    return Ref(api, kind, str(one["metadata"].get("namespace") or ""), str(one["metadata"]["name"]))


def why_left(resources: Resources, ref: Ref) -> str:
    """Explains why an object still exists, by its finalizers, their controllers, its pods and its events.

    Empty if the object is gone. Raises Refused, Unreachable.
    """
    found = resources.get(ref)
    if found is None:
        return ""
    meta = found["metadata"]
    reasons = [_finalizer(resources, ref, one) for one in meta.get("finalizers") or ()]
    if not meta.get("deletionTimestamp"):
        reasons = ["its deletion was not requested"]
    if ref.kind == "PersistentVolume" and (said := found.get("status", {}).get("message")):
        reasons.append(str(said)[:MAX_CHARS])
    drained = condition(found, "Drained")
    if ref.kind == "NodeClaim" and drained.get("status") not in (None, "True"):
        reasons.append(f"not drained: {drained.get('message') or drained.get('reason')}")
    if said := _warning(resources, ref):
        reasons.append(said)
    return "; ".join(reasons) or "its deletion was requested, and no finalizer or pod is known to block it"


def _finalizer(resources: Resources, ref: Ref, finalizer: str) -> str:
    if finalizer == PVC_PROTECTION:
        users = ", ".join(_users(resources, ref)) or "none that is listed"
        return f"finalizer {finalizer}: pods use the claim: {users}"
    controller = next((one for one in CONTROLLERS if finalizer.startswith(one.finalizer)), None)
    if controller is None:
        return f"finalizer {finalizer}"
    return f"finalizer {finalizer}: {_state(resources, controller)}"


def _state(resources: Resources, controller: Controller) -> str:
    """Describes whether the controller of a finalizer runs."""
    if not controller.deployments:
        return f"{controller.name} has not removed it"
    found = [
        one for one in resources.list("apps/v1", "Deployment") if one["metadata"]["name"] in controller.deployments
    ]
    if not found:
        return f"{controller.name} has not removed it, and the cluster has no Deployment of it: is it running?"
    stopped = [one for one in found if not one.get("status", {}).get("availableReplicas")]
    if stopped:
        places = ", ".join(f"{one['metadata']['name']} in {one['metadata']['namespace']}" for one in stopped)
        return f"its controller is not running: Deployment {places} has no available replica"
    return f"{controller.name} is running, but has not removed it yet"


def _users(resources: Resources, ref: Ref) -> Iterator[str]:
    """Yields the pods that use a claim."""
    for pod in resources.list("v1", "Pod", namespace=ref.namespace):
        volumes = pod["spec"].get("volumes") or ()
        claims = {(one.get("persistentVolumeClaim") or {}).get("claimName") for one in volumes}
        if ref.name in claims and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            yield str(pod["metadata"]["name"])


def _warning(resources: Resources, ref: Ref) -> str:
    """Returns the latest warning event of an object."""
    client = resources.client.within(ref.namespace or "default")
    fields = f"involvedObject.kind={ref.kind},involvedObject.name={ref.name},type=Warning"
    events = client.find("v1", "Event", fieldSelector=fields)["items"]
    if not events:
        return ""
    last = max(events, key=event_time)
    return f"{last.get('reason')}: {' '.join(str(last.get('message')).split())[:MAX_CHARS]}"


def _balancer(one: Json) -> str:
    entries = (one.get("status", {}).get("loadBalancer") or {}).get("ingress") or one.get("status", {}).get("addresses")
    names = [str(each.get("hostname") or each.get("ip") or each.get("value")) for each in entries or ()]
    return f"load balancer {', '.join(names)}" if names else "load balancer without an address"


def _volume(one: Json) -> str:
    spec = one["spec"]
    handle = (spec.get("csi") or {}).get("volumeHandle") or (spec.get("awsElasticBlockStore") or {}).get("volumeID")
    return f"volume {handle or one['metadata']['name']}"
