"""Builds the Service of a server: inside the cluster, or with a load balancer for chosen addresses. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from windlass.engines.kubernetes.objects import labels as named
from windlass.engines.kubernetes.objects import layout
from windlass.engines.kubernetes.objects.manifests import core
from windlass.engines.kubernetes.objects.workloads.base import Manifest

if TYPE_CHECKING:
    from windlass.plan.exposure import Exposure

HTTPS_PORT: Final = 443
AWS_GROUP: Final = "elbv2.k8s.aws/v1beta1"
"""API group and version of the AWS Load Balancer Controller, which shows that a cluster has it."""
AWS_CLASS: Final = "service.k8s.aws/nlb"
AWS_ANNOTATIONS: Final = {
    "service.beta.kubernetes.io/aws-load-balancer-scheme": "internet-facing",
    "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": "ip",
    # Without it, the server would see the addresses of the load balancer in place of those of its clients.
    "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes": "preserve_client_ip.enabled=true",
}
"""Annotations for a network load balancer that passes TLS on to the pods: no other program has the server's key."""


def server_service(
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    pods: Mapping[str, str],
    port: int,
    exposure: Exposure | None,
    *,
    has_aws_controller: bool,
) -> Manifest:
    """Returns the Service of the pods with the labels `pods`, which listen with TLS on `port`.

    Without an exposure, the Service is reached only inside the cluster. `has_aws_controller`: the AWS Load Balancer
    Controller makes the load balancer, otherwise the cluster's own provider.
    """
    ports = [{"name": "https", "port": HTTPS_PORT, "targetPort": port}]
    made = core("Service", name, namespace, labels, spec={"selector": dict(pods), "ports": ports})
    if exposure is None:
        made["spec"]["type"] = "ClusterIP"
        return made
    made["spec"] |= {"type": "LoadBalancer", "loadBalancerSourceRanges": list(exposure.source_cidrs)}
    if has_aws_controller:
        made["spec"]["loadBalancerClass"] = AWS_CLASS
        made["metadata"]["annotations"] = dict(AWS_ANNOTATIONS)
    return made


# -- services that are runs -------------------------------------------------------------------------------------------


def exposure_name(run_id: str) -> str:
    """Returns the name of the objects that expose a service."""
    return f"{run_id}-public"


def exposure_owner(run_id: str, namespace: str, seconds: int) -> Manifest:
    """Returns the Job that owns the load balancer of a service, and ends it after `seconds`.

    The Job runs no pod; its deadline counts from its creation all the same. Decision 0147 has the reasons.
    """
    container = {"name": "none", "image": "none"}
    spec = {
        "parallelism": 0,
        "completions": 1,
        "backoffLimit": 0,
        "activeDeadlineSeconds": seconds,
        "ttlSecondsAfterFinished": 0,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    meta = {"name": exposure_name(run_id), "namespace": namespace, "labels": _labels(run_id)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def public_service(run_id: str, namespace: str, exposure: Exposure, *, has_aws_controller: bool) -> Manifest:
    """Returns the Service with the load balancer in front of the pod of a service."""
    return server_service(
        exposure_name(run_id),
        namespace,
        _labels(run_id),
        _pods(run_id),
        layout.SERVICE_PORT,
        exposure,
        has_aws_controller=has_aws_controller,
    )


def public_policy(run_id: str, namespace: str, exposure: Exposure) -> Manifest:
    """Returns the NetworkPolicy that lets the addresses of the exposure reach the pod, which accepts others of its run
    alone.
    """
    ingress = {
        "from": [{"ipBlock": {"cidr": one}} for one in exposure.source_cidrs],
        "ports": [{"protocol": "TCP", "port": layout.SERVICE_PORT}],
    }
    spec = {"podSelector": {"matchLabels": _pods(run_id)}, "policyTypes": ["Ingress"], "ingress": [ingress]}
    meta = {"name": exposure_name(run_id), "namespace": namespace, "labels": _labels(run_id)}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta, "spec": spec}


def _pods(run_id: str) -> dict[str, str]:
    return {layout.RUN_LABEL: run_id, named.COMPONENT: named.TRAINING}


def _labels(run_id: str) -> dict[str, str]:
    """Returns the labels of the objects. They lack the label of the run, whose supervisor would remove them."""
    return named.of_helper(exposure_name(run_id), named.SERVER)
