"""The operators that a test cluster can run: commands, settings, and the addresses of their webhooks.

JobSet runs in every test cluster. The others run only while a test needs them (`Bed.start_operator`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.cluster.bed import images, machines
from tests.cluster.bed.api import Object
from tests.cluster.bed.build import program
from tests.cluster.bed.layout import Layout
from tests.helpers.golang import CACHE


@dataclass(frozen=True)
class Operator:
    """A process next to the control plane, and the Service through which the API server would reach it in a cluster."""

    name: str
    """Name of the process and of its manifests."""
    kind: str
    """Definition whose existence shows that the operator is installed."""
    namespace: str
    health: tuple[int, str]
    """Port and path of the readiness endpoint."""
    argv: Callable[[Layout], list[str]]
    settings: Callable[[Layout], object] | None = None
    """Returns the content of its configuration file; JSON is valid YAML."""
    service: str = ""
    """Service of its webhooks; empty if it has none."""
    port: int = 0
    """Port of its webhooks."""
    secret: str = ""
    """Secret from which it reads its certificate; otherwise it would create one that the API server does not trust."""
    authority: str = ""
    """Name that it requires in the CA of its certificate."""
    refuses: tuple[str, Object] | None = None
    """A collection, and an object that its webhooks refuse there, which shows whether they are called."""

    beside: str = ""
    """A helper program that it needs: a module of this folder."""
    leaves: Callable[[Layout], None] | None = None
    """Removes remaining state after operator and helper have ended."""

    @property
    def host(self) -> str:
        """Host name under which the API server calls the operator."""
        return f"{self.service}.{self.namespace}.svc"

    def file(self, layout: Layout) -> str:
        return str(layout.folder / f"{self.name}.json")

    def write_settings(self, layout: Layout) -> None:
        if self.settings:
            (layout.folder / f"{self.name}.json").write_text(json.dumps(self.settings(layout)))


def _jobset(layout: Layout) -> object:
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": JOBSET.port},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": _health(JOBSET, layout)},
    }


def _trainer(layout: Layout) -> object:
    return {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": False},
        # Without a host field, even an empty one, version 2.1 panics.
        "webhook": {"port": TRAINER.port, "host": ""},
        "metrics": {"bindAddress": "0", "secureServing": False},
        "health": {"healthProbeBindAddress": _health(TRAINER, layout)},
    }


def _manager(operator: Operator, layout: Layout) -> list[str]:
    return [program("trainer-controller-manager", operator.name), f"--config={operator.file(layout)}"]


def _waits_for_master(_: Layout) -> object:
    """Returns the init container of a PyTorchJob's workers, since a test cluster cannot pull the default image."""
    return [
        {
            "name": "init-pytorch",
            "image": "{{.InitContainerImage}}",
            "command": ["sh", "-c", "until getent hosts {{.MasterAddr}}; do sleep 0.2; done"],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
    ]


def _kueue(layout: Layout) -> object:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "namespace": KUEUE.namespace,
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True, "webhookServiceName": KUEUE.service,
                                   "webhookSecretName": KUEUE.secret},
        "webhook": {"port": KUEUE.port, "certDir": str(layout.certificates)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": _health(KUEUE, layout)},
        "clientConnection": {"qps": 300, "burst": 600},
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset", "kubeflow.org/pytorchjob",
                                        "kubeflow.org/mpijob", "trainer.kubeflow.org/trainjob"]},
    }  # fmt: skip


def _training(layout: Layout) -> list[str]:
    """Mounts a separate /tmp, since the operator looks for its certificate below /tmp in spite of TMPDIR.

    A cache below /tmp stays visible at its path, since it contains the operator and its kubeconfig.
    """
    own = layout.folder / "tmp"
    steps = [f"mount --rbind '{own}' /tmp", 'exec "$@"']
    if CACHE.is_relative_to("/tmp"):
        kept = own / CACHE.relative_to("/tmp")
        steps = [f"mkdir -p '{kept}'", f"mount --bind '{CACHE}' '{kept}'", *steps]
    return [
        "/usr/bin/unshare",
        "--mount",
        "/bin/sh",
        "-euc",
        "; ".join(steps),
        "sh",
        program("training-operator.v1", TRAINING.name),
        "--enable-scheme=pytorchjob",
        f"--webhook-server-port={TRAINING.port}",
        "--metrics-bind-address=0",
        f"--health-probe-bind-address={_health(TRAINING, layout)}",
        "--kube-api-qps=300",
        "--kube-api-burst=600",
        f"--pytorch-init-container-image={images.BASE}",
        f"--pytorch-init-container-template-file={TRAINING.file(layout)}",
    ]


def _mpi(layout: Layout) -> list[str]:
    return [
        program("mpi-operator", MPI.name),
        f"--kubeConfig={layout.kubeconfig}",
        f"--lock-namespace={MPI.namespace}",
        "--kube-api-qps=300",
        "--kube-api-burst=600",
    ]


def _health(operator: Operator, layout: Layout) -> str:
    return f"{layout.address}:{operator.health[0]}"


def _karpenter(layout: Layout) -> list[str]:
    # Its flags cannot set an address: both ports are open on all addresses of the test cluster.
    return [
        program("karpenter", KARPENTER.name),
        "--disable-leader-election",
        f"--instance-types-file-path={KARPENTER.file(layout)}",
        f"--health-probe-port={KARPENTER.health[0]}",
        f"--metrics-port={KARPENTER.health[0] + 1}",
    ]


JOBSET: Operator = Operator(
    "jobset",
    "jobsets.jobset.x-k8s.io",
    "jobset-system",
    (8182, "/readyz"),
    lambda layout: [program("jobset"), f"--config={JOBSET.file(layout)}"],
    _jobset,
    service="jobset-webhook-service",
    port=9443,
    authority="jobset-ca",
)
TRAINER: Operator = Operator(
    "trainer", "trainjobs.trainer.kubeflow.org", "kubeflow-system", (8183, "/readyz"),
    lambda layout: _manager(TRAINER, layout), _trainer,
    service="kubeflow-trainer-controller-manager", port=9444, authority="kubeflow-trainer-ca",
    refuses=("/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs",
             {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "refused"},
              "spec": {"runtimeRef": {"name": "which-is-not-there", "kind": "TrainingRuntime"}}}),
)  # fmt: skip
OLD_TRAINER: Operator = replace(TRAINER, name="trainer-2.1", argv=lambda layout: _manager(OLD_TRAINER, layout))
"""The version that Kueue supports, in which a TrainJob overrides its runtime with other fields.

It has the same kinds and ports as the newer version: a test cluster can run one of the two at a time.
"""
TRAINING: Operator = Operator(
    "training-operator", "pytorchjobs.kubeflow.org", "kubeflow", (8184, "/readyz"), _training, _waits_for_master,
    service="training-operator", port=9445, secret="training-operator-webhook-cert",
    authority="training-operator-ca",
    refuses=("/apis/kubeflow.org/v1/namespaces/default/pytorchjobs",
             {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "refused"},
              "spec": {"pytorchReplicaSpecs": {"Boss": {"replicas": 1, "template": {"spec": {"containers": [
                  {"name": "pytorch", "image": "none"}]}}}}}}),
)  # fmt: skip
MPI: Operator = Operator("mpi-operator", "mpijobs.kubeflow.org", "mpi-operator", (8080, "/healthz"), _mpi)
KUEUE: Operator = Operator(
    "kueue", "clusterqueues.kueue.x-k8s.io", "kueue-system", (8186, "/readyz"),
    lambda layout: [program("kueue", KUEUE.name), f"--config={KUEUE.file(layout)}",
                    "--feature-gates=VisibilityOnDemand=false"],
    _kueue, service="kueue-webhook-service", port=9446, secret="kueue-webhook-server-cert", authority="kueue-ca",
    refuses=("/apis/batch/v1/namespaces/default/jobs",
             {"apiVersion": "batch/v1", "kind": "Job",
              "metadata": {"name": "refused", "labels": {"kueue.x-k8s.io/queue-name": "No_Queue_Has_This_Name"}},
              "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [
                  {"name": "main", "image": "none"}]}}}}),
)  # fmt: skip
KARPENTER: Operator = Operator(
    "karpenter",
    "nodepools.karpenter.sh",
    "karpenter",
    (8188, "/readyz"),
    _karpenter,
    lambda _: machines.instance_types(),
    beside="machines",
    leaves=machines.remove_all,
)
EVERY = (JOBSET, TRAINER, OLD_TRAINER, TRAINING, MPI, KUEUE, KARPENTER)
ON_DEMAND = {each.name: each for each in EVERY if each is not JOBSET}
