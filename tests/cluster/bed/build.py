"""Builds programs and manifests from the Go modules in this folder, once per version."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from tests.cluster.bed.layout import CODE
from tests.helpers import golang
from tests.helpers.golang import GoModule, go

VERSION = "v1.34.4"
"""Version that `kubectl version` and the nodes show; the version of k8s.io/kubernetes in go.mod."""
ONLY = {"training-operator": "pytorchjobs"}
"""The one resource that is kept of an operator with several; its MPIJob would conflict with mpi-operator's."""
KEPT_KINDS = ("CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
"""Kinds that are kept of an operator's manifests. The operator runs as a process, and needs no Deployment, RBAC or
Service."""


def ldflags() -> str:
    """Returns linker flags for small programs with the correct version."""
    where = "k8s.io/component-base/version"
    minor = VERSION.split(".")[1]
    values = {
        "gitVersion": VERSION,
        "gitMajor": "1",
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "0000000",
        "buildDate": "2026-01-01T00:00:00Z",
    }
    return " ".join(["-s", "-w", *(f"-X {where}.{name}={value}" for name, value in values.items())])


@dataclass(frozen=True, eq=False)
class Module(GoModule):
    """Programs of Kubernetes, and the manifests of operators."""

    installs: Mapping[str, tuple[str, tuple[str, ...]]]
    """Go module of each operator, and the folders in it that contain the manifests."""

    @property
    def ldflags(self) -> str:
        return ldflags()

    def recipe(self) -> object:
        return [self.gcflags, self.ldflags, self.patterns, self.installs, ONLY, KEPT_KINDS]

    def complete(self) -> None:
        """Writes the manifests."""
        (self.home / "manifests").mkdir(exist_ok=True)
        for operator in self.installs:
            manifests(operator).write_text(json.dumps(_render(self, operator)))


_SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
_OF_TRAINER = ("manifests/base/crds", "manifests/base/webhook")
MAIN = Module(
    CODE / "go",
    f"Kubernetes {VERSION}, etcd, CoreDNS and JobSet (8 to 15 minutes)",
    (
        *(f"k8s.io/kubernetes/cmd/{name}" for name in _SERVERS),
        "go.etcd.io/etcd/server/v3",
        "sigs.k8s.io/jobset",
        "./coredns",
        "./pause",
    ),
    {"jobset": ("sigs.k8s.io/jobset", ("config/default",))},
)
OPERATORS = Module(
    CODE / "go-operators",
    "Trainer, training-operator and mpi-operator (5 to 8 minutes)",
    (
        "github.com/kubeflow/mpi-operator/cmd/mpi-operator",
        "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
        "github.com/kubeflow/training-operator/cmd/training-operator.v1",
    ),
    {
        "trainer": ("github.com/kubeflow/trainer/v2", _OF_TRAINER),
        "training-operator": ("github.com/kubeflow/training-operator", ("manifests/overlays/standalone",)),
        "mpi-operator": ("github.com/kubeflow/mpi-operator", ("manifests/overlays/standalone",)),
    },
)
"""A separate module, since the newest operators need newer Kubernetes libraries than Kueue compiles with."""
QUEUES = Module(
    CODE / "go",
    "Kueue, and the Trainer that it knows (4 minutes after Kubernetes, else 8)",
    ("github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager", "sigs.k8s.io/kueue/cmd/kueue"),
    {
        "trainer-2.1": ("github.com/kubeflow/trainer/v2", _OF_TRAINER),
        "kueue": ("sigs.k8s.io/kueue", ("config/default",)),
    },
)
NODES = Module(
    CODE / "go-nodes",
    "Karpenter (2 to 4 minutes)",
    ("./karpenter",),
    {"karpenter": ("sigs.k8s.io/karpenter", ("pkg/apis/crds", "kwok/apis/crds"))},
)
"""A separate module, since it needs newer Kubernetes libraries than the operators compile with."""
HELM = Module(CODE / "go-helm", "helm (2 minutes)", ("helm.sh/helm/v3/cmd/helm",), {})
BALANCER = Module(
    CODE / "go-balancer",
    "the AWS Load Balancer Controller (2 to 4 minutes)",
    ("sigs.k8s.io/aws-load-balancer-controller",),
    {
        "aws-load-balancer-controller": (
            "sigs.k8s.io/aws-load-balancer-controller",
            ("helm/aws-load-balancer-controller/crds",),
        )
    },
)
"""Separate modules, since each is built with other versions of the Kubernetes libraries."""
MODULES = (MAIN, OPERATORS, QUEUES, NODES, HELM, BALANCER)


def home() -> Path:
    """Returns the folder of the control plane's programs."""
    return MAIN.home


def is_built() -> bool:
    """Returns whether a test cluster can be started; operators are built on first request."""
    return MAIN.is_built()


def program(name: str, operator: str = "") -> str:
    """Returns the path of a program of the control plane, or of an operator."""
    return _module_of(operator).program(name)


def manifests(operator: str) -> Path:
    return _module_of(operator).home / "manifests" / f"{operator}.json"


def _module_of(operator: str) -> Module:
    return next((module for module in MODULES if operator in module.installs), MAIN)


def build_cluster_tools() -> None:
    """Builds the programs that the tests of components and `drain` start in addition to a test cluster."""
    golang.build((HELM, BALANCER))


def build(*operators: str) -> None:
    """Builds missing programs of the test cluster and of these operators; a second caller waits for the first."""
    golang.build(dict.fromkeys((MAIN, *map(_module_of, operators))))


def _render(module: Module, operator: str) -> list[object]:
    """Returns the definitions and webhooks of an operator, from its own manifests."""
    source, folders = module.installs[operator]
    where = Path(go(module.folder, "list", "-m", "-f", "{{.Dir}}", source).strip())
    texts = (text for folder in folders for text in _texts(where / folder))
    objects = YAML(typ="safe", pure=True).load_all(io.StringIO("\n---\n".join(texts)))
    kept = (each for each in objects if each and each["kind"] in KEPT_KINDS)
    return [each for each in kept if _is_wanted(each, ONLY.get(operator))]


def _texts(folder: Path) -> list[str]:
    """Returns the output of kustomize for a folder, or the folder's files if it has no kustomization."""
    if not (folder / "kustomization.yaml").exists():
        return [path.read_text() for path in sorted(folder.glob("*.yaml"))]
    command = [program("kubectl"), "kustomize", str(folder)]
    return [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout]


def _is_wanted(each: dict[str, Any], resource: str | None) -> bool:
    """Returns whether a definition is of the resource; removes webhook rules for other resources."""
    if resource is None:
        return True
    if "webhooks" not in each:
        return bool(each["spec"]["names"]["plural"] == resource)
    each["webhooks"] = [hook for hook in each["webhooks"] if resource in hook["rules"][0]["resources"]]
    return bool(each["webhooks"])
