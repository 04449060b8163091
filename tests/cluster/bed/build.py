"""Turns the Go modules beside this file into programs and manifests, once for each version of each."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from tests.cluster.bed.host import BedError
from tests.cluster.bed.layout import CACHE, CODE, digest_of

VERSION = "v1.34.4"
"""What `kubectl version` and the nodes show; that of k8s.io/kubernetes in go.mod."""
KEEP = "WINDLASS_TESTBED_KEEP_GO_CACHE"
ONLY = {"training-operator": "pytorchjobs"}
"""The one resource that is kept of an operator with several. Its MPIJob would take the name of mpi-operator's."""
KEPT_KINDS = ("CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
"""Of an operator's manifests. It runs as a process of the bed, so it needs no Deployment, RBAC or Service of its."""


def ldflags() -> str:
    """Small programs that tell the true version."""
    where = "k8s.io/component-base/version"
    minor = VERSION.split(".")[1]
    values = {
        "gitVersion": VERSION, "gitMajor": "1", "gitMinor": minor, "gitTreeState": "clean",
        "gitCommit": "0000000", "buildDate": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return " ".join(["-s", "-w", *(f"-X {where}.{name}={value}" for name, value in values.items())])


@dataclass(frozen=True, eq=False)
class Module:
    """A Go module of ours, and what is made of it."""

    folder: Path
    what: str
    """For who waits for it."""
    patterns: tuple[str, ...]
    installs: Mapping[str, tuple[str, tuple[str, ...]]]
    """Operators: the name of each, its Go module, and the folders in there that have its manifests."""

    def digest(self) -> str:
        """Changes when what would be built changes."""
        own = [f"{pattern[2:]}/main.go" for pattern in self.patterns if pattern.startswith("./")]
        sources = ["go.mod", "go.sum", *own]
        recipe = json.dumps([ldflags(), self.patterns, self.installs, ONLY, KEPT_KINDS])
        return digest_of(*((self.folder / name).read_bytes() for name in sources), recipe.encode())

    @property
    def home(self) -> Path:
        """The folder of this version's programs (`bin`) and manifests (`manifests`)."""
        return CACHE / self.digest()

    def is_built(self) -> bool:
        return (self.home / "built").exists()

    def build(self) -> None:
        """Make the programs and the manifests."""
        print(f"bed: building {self.what} from source, once")
        (self.home / "manifests").mkdir(parents=True, exist_ok=True)
        _go(self.folder, "build", "-trimpath", "-o", f"{self.home / 'bin'}/", "-ldflags", ldflags(), *self.patterns)
        for operator in self.installs:
            manifests(operator).write_text(json.dumps(_render(self, operator)))
        (self.home / "built").touch()


_SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
_OF_TRAINER = ("manifests/base/crds", "manifests/base/webhook")
MAIN = Module(
    CODE / "go", f"Kubernetes {VERSION}, etcd, CoreDNS and JobSet (8 to 15 minutes)",
    (*(f"k8s.io/kubernetes/cmd/{name}" for name in _SERVERS), "go.etcd.io/etcd/server/v3", "sigs.k8s.io/jobset",
     "./coredns", "./pause"),
    {"jobset": ("sigs.k8s.io/jobset", ("config/default",))},
)  # fmt: skip
OPERATORS = Module(
    CODE / "go-operators", "Trainer, training-operator and mpi-operator (5 to 8 minutes)",
    ("github.com/kubeflow/mpi-operator/cmd/mpi-operator",
     "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
     "github.com/kubeflow/training-operator/cmd/training-operator.v1"),
    {
        "trainer": ("github.com/kubeflow/trainer/v2", _OF_TRAINER),
        "training-operator": ("github.com/kubeflow/training-operator", ("manifests/overlays/standalone",)),
        "mpi-operator": ("github.com/kubeflow/mpi-operator", ("manifests/overlays/standalone",)),
    },
)  # fmt: skip
"""Apart, for the newest of them want newer parts of Kubernetes than Kueue compiles with."""
QUEUES = Module(
    CODE / "go", "Kueue, and the Trainer that it knows (4 minutes after Kubernetes, else 8)",
    ("github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager", "sigs.k8s.io/kueue/cmd/kueue"),
    {
        "trainer-2.1": ("github.com/kubeflow/trainer/v2", _OF_TRAINER),
        "kueue": ("sigs.k8s.io/kueue", ("config/default",)),
    },
)  # fmt: skip
NODES = Module(
    CODE / "go-nodes", "Karpenter (2 to 4 minutes)", ("./karpenter",),
    {"karpenter": ("sigs.k8s.io/karpenter", ("pkg/apis/crds", "kwok/apis/crds"))},
)  # fmt: skip
"""Apart, for it wants newer parts of Kubernetes than the operators compile with."""
MODULES = (MAIN, OPERATORS, QUEUES, NODES)


def home() -> Path:
    """Where the programs of the control plane lie."""
    return MAIN.home


def is_built() -> bool:
    """Whether a bed can be brought up; operators are built when one is first asked for."""
    return MAIN.is_built()


def program(name: str, operator: str = "") -> str:
    """The path of one of the programs that were built: of the control plane, or of an operator."""
    return str(_module_of(operator).home / "bin" / name)


def manifests(operator: str) -> Path:
    return _module_of(operator).home / "manifests" / f"{operator}.json"


def _module_of(operator: str) -> Module:
    return next((module for module in MODULES if operator in module.installs), MAIN)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel takes back should this process be killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(*operators: str) -> None:
    """Build what is missing of a bed and of these operators; a second caller waits for the first."""
    with locked(CACHE / "build.lock"):
        wanted = dict.fromkeys((MAIN, *map(_module_of, operators)))
        missing = [module for module in wanted if not module.is_built()]
        for module in missing:
            module.build()
        if missing:
            _forget_caches()


def _go(folder: Path, *args: str) -> str:
    """Run the Go command in a module; it prints its own complaints."""
    env = {**os.environ, **_caches(), "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    niced = ["nice", "-n", "5", "go", *args]
    done = subprocess.run(niced, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise BedError(
            f"bed: go {args[0]}: exit {done.returncode}; the build needs Go 1.26.6 or newer and a way to modules"
        )
    return done.stdout


def _caches() -> dict[str, str]:
    """Caches of our own unless the caller has named some: these can be removed without asking."""
    return {name: os.environ.get(name, str(CACHE / folder)) for name, folder in _OWN_CACHES.items()}


_OWN_CACHES = {"GOMODCACHE": "gomod", "GOCACHE": "gocache"}


def _forget_caches() -> None:
    """Remove 6.5 GB that only a change of go.mod would use again; `KEEP` keeps them for who is changing it."""
    if os.environ.get(KEEP):
        return
    for name, folder in _OWN_CACHES.items():
        if name not in os.environ:
            subprocess.run(["chmod", "-R", "u+w", str(CACHE / folder)], check=False, capture_output=True)
            shutil.rmtree(CACHE / folder, ignore_errors=True)


def _render(module: Module, operator: str) -> list[object]:
    """The definitions and webhooks of an operator, from its own manifests."""
    source, folders = module.installs[operator]
    where = Path(_go(module.folder, "list", "-m", "-f", "{{.Dir}}", source).strip())
    texts = (text for folder in folders for text in _texts(where / folder))
    objects = YAML(typ="safe", pure=True).load_all(io.StringIO("\n---\n".join(texts)))
    kept = (each for each in objects if each and each["kind"] in KEPT_KINDS)
    return [each for each in kept if _is_wanted(each, ONLY.get(operator))]


def _texts(folder: Path) -> list[str]:
    """What kustomize makes of a folder, or what lies in one that it knows nothing of."""
    if not (folder / "kustomization.yaml").exists():
        return [path.read_text() for path in sorted(folder.glob("*.yaml"))]
    command = [program("kubectl"), "kustomize", str(folder)]
    return [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout]


def _is_wanted(each: dict[str, Any], resource: str | None) -> bool:
    """Whether a definition is of the resource; of webhooks, leave those that ask about it."""
    if resource is None:
        return True
    if "webhooks" not in each:
        return bool(each["spec"]["names"]["plural"] == resource)
    each["webhooks"] = [hook for hook in each["webhooks"] if resource in hook["rules"][0]["resources"]]
    return bool(each["webhooks"])
