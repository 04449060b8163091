"""The components of a training cluster: versions, sources, values and readiness checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from windlass.clusters.components import node_pools, storage
from windlass.clusters.components.component import SYSTEM, Chart, Component, Generated, Manifests, Ready, crds
from windlass.clusters.components.node_pools import POOL_LABEL
from windlass.clusters.components.values import ClusterValues
from windlass.errors import UsageError, near

Values = dict[str, Any]
KUBEFLOW: Final = "kubeflow-system"
PREFERS_OTHER_NODE: Final = {
    "weight": 100,
    "podAffinityTerm": {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "karpenter"}},
    },
}
SYSTEM_POOL: Final = "system"
"""Label value of the nodes without GPUs that Terraform creates for components."""
GPU_TOLERATION: Final = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def _karpenter(values: ClusterValues) -> Values:
    environment = {"AWS_REGION": values.region, **values.proxy}
    return {
        "serviceAccount": {"name": "karpenter"},
        "settings": {
            "clusterName": values.name,
            "clusterEndpoint": values.endpoint,
            "interruptionQueue": values.queue_name,
            **({"isolatedVPC": True} if values.is_isolated else {}),
        },
        # By default, the two replicas require separate nodes, but a cluster may have only one.
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": None,
                "preferredDuringSchedulingIgnoredDuringExecution": [PREFERS_OTHER_NODE],
            }
        },
        "controller": {
            "env": [{"name": name, "value": value} for name, value in environment.items()],
            "resources": {"requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        },
    }


def _load_balancers(values: ClusterValues) -> Values:
    # The role of the controller has no permissions for WAF and Shield, and they have no endpoints in a VPC.
    without = ("enableShield", "enableWaf", "enableWafv2") if values.is_isolated else ()
    return {
        **dict.fromkeys(without, False),
        **({"env": dict(values.proxy)} if values.proxy else {}),
        "clusterName": values.name,
        "region": values.region,
        "vpcId": values.vpc_id,
        "serviceAccount": {"create": True, "name": "aws-load-balancer-controller"},
        # Tags by which the audit finds the load balancers that the controller creates.
        "defaultTags": {**values.tags, "windlass.dev/managed-by": "aws-load-balancer-controller"},
    }


def _jobset(_: ClusterValues) -> Values:
    return {"fullnameOverride": "jobset", "image": _released("jobset/jobset", JOBSET_VERSION)}


def _trainer(_: ClusterValues) -> Values:
    # JobSet is a separate component. Default runtimes are disabled, because their installer downloads programs.
    return {"fullnameOverride": "kubeflow-trainer", "jobset": {"install": False}, "runtimes": {"defaultEnabled": False}}


def _kueue(_: ClusterValues) -> Values:
    image = _released("kueue/kueue", KUEUE_VERSION)
    return {"fullnameOverride": "kueue", "controllerManager": {"manager": {"image": image}}}


def _released(repository: str, version: str) -> Values:
    """Returns values that pin the released image: the charts' sources refer to a moving branch image."""
    return {"repository": f"registry.k8s.io/{repository}", "tag": f"v{version}", "pullPolicy": "IfNotPresent"}


def _device_plugin(_: ClusterValues) -> Values:
    # The chart's default affinity needs labels of node-feature-discovery, which is not installed.
    of_a_pool = [
        {"key": POOL_LABEL, "operator": "Exists"},
        {"key": POOL_LABEL, "operator": "NotIn", "values": [SYSTEM_POOL]},
    ]
    with_gpus = [{"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}]
    terms = [{"matchExpressions": of_a_pool}, {"matchExpressions": with_gpus}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    # On nodes with accelerators of another vendor the plugin waits instead of crash-looping.
    return {
        "fullnameOverride": "nvidia-device-plugin",
        "tolerations": [GPU_TOLERATION],
        "failOnInitError": False,
        "affinity": {"nodeAffinity": required},
    }


def _metrics(_: ClusterValues) -> Values:
    return {"fullnameOverride": "metrics-server", "replicas": 1}


JOBSET_VERSION: Final = "0.12.0"
KUEUE_VERSION: Final = "0.16.1"
JOBSET: Final = Component(
    "jobset",
    JOBSET_VERSION,
    Chart("oci://registry.k8s.io/jobset/charts", "jobset", JOBSET_VERSION),
    "jobset-system",
    image="registry.k8s.io/jobset/jobset",
    image_key="image.repository",
    ready=(Ready("Deployment", "jobset-controller"), *crds("jobsets.jobset.x-k8s.io")),
    values=_jobset,
)
TRAINER: Final = Component(
    "trainer",
    "2.3.0",
    Chart("oci://ghcr.io/kubeflow/charts", "kubeflow-trainer", "2.3.0"),
    KUBEFLOW,
    image="ghcr.io/kubeflow/trainer/trainer-controller-manager",
    image_key="image.registry",
    ready=(
        Ready("Deployment", "kubeflow-trainer-controller-manager"),
        *crds("trainjobs.trainer.kubeflow.org", "clustertrainingruntimes.trainer.kubeflow.org"),
    ),
    needs=("jobset",),
    values=_trainer,
)
MPI_OPERATOR: Final = Component(
    "mpi-operator",
    "0.8.0",
    Manifests("https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.8.0/deploy/v2beta1/mpi-operator.yaml"),
    "mpi-operator",
    image="docker.io/mpioperator/mpi-operator",
    ready=(Ready("Deployment", "mpi-operator"), *crds("mpijobs.kubeflow.org")),
)
KUEUE: Final = Component(
    "kueue",
    KUEUE_VERSION,
    Chart("oci://registry.k8s.io/kueue/charts", "kueue", KUEUE_VERSION),
    "kueue-system",
    image="registry.k8s.io/kueue/kueue",
    image_key="controllerManager.manager.image.repository",
    ready=(
        Ready("Deployment", "kueue-controller-manager"),
        *crds("clusterqueues.kueue.x-k8s.io", "localqueues.kueue.x-k8s.io", "workloads.kueue.x-k8s.io"),
    ),
    # Kueue watches only those job kinds whose CRDs exist when it starts.
    after=("jobset", "trainer", "mpi-operator"),
    values=_kueue,
)
DEVICE_PLUGIN: Final = Component(
    "nvidia-device-plugin",
    "0.18.2",
    Chart("https://nvidia.github.io/k8s-device-plugin", "nvidia-device-plugin", "0.18.2"),
    SYSTEM,
    image="nvcr.io/nvidia/k8s-device-plugin",
    image_key="image.repository",
    ready=(Ready("DaemonSet", "nvidia-device-plugin"),),
    values=_device_plugin,
)
LOAD_BALANCERS: Final = Component(
    "aws-load-balancer-controller",
    "3.2.2",
    Chart("https://aws.github.io/eks-charts", "aws-load-balancer-controller", "3.2.2"),
    SYSTEM,
    image="public.ecr.aws/eks/aws-load-balancer-controller",
    image_key="image.repository",
    ready=(Ready("Deployment", "aws-load-balancer-controller"), *crds("targetgroupbindings.elbv2.k8s.aws")),
    # While the controller starts, its webhook rejects every Service, including those of other components.
    after=("jobset", "trainer", "kueue", "metrics-server", "karpenter"),
    values=_load_balancers,
    is_wanted=lambda values: values.has_load_balancer_controller,
)
KARPENTER: Final = Component(
    "karpenter",
    "1.14.1",
    Chart("oci://public.ecr.aws/karpenter", "karpenter", "1.14.1"),
    SYSTEM,
    image="public.ecr.aws/karpenter/controller",
    image_key="controller.image.repository",
    ready=(
        Ready("Deployment", "karpenter"),
        *crds("nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "ec2nodeclasses.karpenter.k8s.aws"),
    ),
    values=_karpenter,
    is_wanted=lambda values: values.has_karpenter,
)
METRICS: Final = Component(
    "metrics-server",
    "3.13.1",
    Chart(
        "https://kubernetes-sigs.github.io/metrics-server",
        "metrics-server",
        "3.13.1",
        "084e6edb680cf4e2acc30bd496568c53fdf663cbacf6e17876b25785c35b7a13",
    ),
    SYSTEM,
    image="registry.k8s.io/metrics-server/metrics-server",
    image_key="image.repository",
    ready=(Ready("Deployment", "metrics-server"), Ready("APIService", "v1beta1.metrics.k8s.io")),
    values=_metrics,
)
STORAGE: Final = Component("storage", "1", Generated(storage.objects), SYSTEM)
NODE_POOLS: Final = Component(
    "node-pools",
    "1",
    Generated(node_pools.objects),
    SYSTEM,
    needs=("karpenter",),
    is_wanted=lambda values: values.has_karpenter and bool(values.pools),
)
COMPONENTS: Final = (STORAGE, JOBSET, TRAINER, MPI_OPERATOR, KUEUE, DEVICE_PLUGIN, LOAD_BALANCERS, KARPENTER,
                     METRICS, NODE_POOLS)  # fmt: skip
"""All components in installation order, unless requirements dictate another order."""


def images(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the images of these components with their registries, without tags."""
    return tuple(one.image for one in COMPONENTS if one.name in set(names) and one.image)


def default(values: ClusterValues) -> tuple[str, ...]:
    """Returns the components that a cluster with these values gets."""
    return tuple(one.name for one in COMPONENTS if one.is_wanted(values))


def ordered(names: Iterable[str], table: Sequence[Component] = COMPONENTS) -> tuple[Component, ...]:
    """Returns these components and their requirements in installation order. Raises UsageError for an unknown name."""
    by_name, wanted = {one.name: one for one in table}, tuple(names)
    found: dict[str, Component] = {}

    def add(name: str, path: tuple[str, ...]) -> None:
        if name not in by_name:
            raise UsageError(f"{name} is no component", near(name, by_name) or f"components: {', '.join(by_name)}")
        if name in path:
            raise UsageError(f"components need each other: {' → '.join((*path, name))}")
        component = by_name[name]
        for other in (*component.needs, *(one for one in component.after if one in wanted)):
            add(other, (*path, name))
        found.setdefault(name, component)

    for one in (*by_name, *(name for name in wanted if name not in by_name)):
        if one in wanted:
            add(one, ())
    return tuple(found.values())
