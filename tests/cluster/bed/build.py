"""Turns the Go module beside this file into programs and manifests, once for each version of that module."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from tests.cluster.bed.host import BedError
from tests.cluster.bed.layout import CACHE, CODE, digest_of

MODULE = CODE / "go"
VERSION = "v1.34.4"
"""What `kubectl version` and the nodes show; that of k8s.io/kubernetes in go.mod."""
PATTERNS = ("tool", "./coredns", "./pause")
KEEP = "WINDLASS_TESTBED_KEEP_GO_CACHE"
INSTALLS = {
    "jobset": ("sigs.k8s.io/jobset", ("config/default",)),
    "trainer": ("github.com/kubeflow/trainer/v2", ("manifests/base/crds", "manifests/base/webhook")),
    "training-operator": ("github.com/kubeflow/training-operator", ("manifests/overlays/standalone",)),
    "mpi-operator": ("github.com/kubeflow/mpi-operator", ("manifests/overlays/standalone",)),
    "kueue": ("sigs.k8s.io/kueue", ("config/default",)),
}
"""Operators: the name of each, its Go module, and the folders in there that kustomize renders."""
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


def digest() -> str:
    """Changes when what would be built changes."""
    sources = ["go.mod", "go.sum", "coredns/main.go", "pause/main.go"]
    recipe = json.dumps([ldflags(), PATTERNS, INSTALLS, ONLY, KEPT_KINDS])
    return digest_of(*((MODULE / name).read_bytes() for name in sources), recipe.encode())


def home() -> Path:
    """The folder of this version's programs (`bin`) and manifests (`manifests`)."""
    return CACHE / digest()


def is_built() -> bool:
    return (home() / "built").exists()


def program(name: str) -> str:
    """The path of one of the programs that were built."""
    return str(home() / "bin" / name)


def manifests(operator: str) -> Path:
    return home() / "manifests" / f"{operator}.json"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel takes back should this process be killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build() -> None:
    """Build what is missing; a second caller waits for the first and finds its work done."""
    with locked(CACHE / "build.lock"):
        if is_built():
            return
        print(f"bed: building Kubernetes {VERSION}, etcd, CoreDNS and operators from source (10 to 20 minutes, once)")
        (home() / "manifests").mkdir(parents=True, exist_ok=True)
        _go("build", "-trimpath", "-o", f"{home() / 'bin'}/", "-ldflags", ldflags(), *PATTERNS)
        for operator in INSTALLS:
            manifests(operator).write_text(json.dumps(_render(operator)))
        (home() / "built").touch()
        _forget_caches()


def _go(*args: str) -> str:
    """Run the Go command in the module; it prints its own complaints."""
    env = {**os.environ, **_caches(), "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    niced = ["nice", "-n", "5", "go", *args]
    done = subprocess.run(niced, cwd=MODULE, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise BedError(
            f"bed: go {args[0]}: exit {done.returncode}; the build needs Go 1.25 or newer and a way to modules"
        )
    return done.stdout


def _caches() -> dict[str, str]:
    """Caches of our own unless the caller has named some: these can be removed without asking."""
    return {name: os.environ.get(name, str(CACHE / folder)) for name, folder in _OWN_CACHES.items()}


_OWN_CACHES = {"GOMODCACHE": "gomod", "GOCACHE": "gocache"}


def _forget_caches() -> None:
    """Remove 4.7 GB that only a change of go.mod would use again; `KEEP` keeps them for who is changing it."""
    if os.environ.get(KEEP):
        return
    for name, folder in _OWN_CACHES.items():
        if name not in os.environ:
            subprocess.run(["chmod", "-R", "u+w", str(CACHE / folder)], check=False, capture_output=True)
            shutil.rmtree(CACHE / folder, ignore_errors=True)


def _render(operator: str) -> list[object]:
    """The definitions and webhooks of an operator, from its own kustomization."""
    module, folders = INSTALLS[operator]
    where = _go("list", "-m", "-f", "{{.Dir}}", module).strip()
    commands = [[program("kubectl"), "kustomize", f"{where}/{folder}"] for folder in folders]
    texts = [subprocess.run(each, stdout=subprocess.PIPE, text=True, check=True).stdout for each in commands]
    objects = YAML(typ="safe", pure=True).load_all(io.StringIO("\n---\n".join(texts)))
    kept = (each for each in objects if each and each["kind"] in KEPT_KINDS)
    return [each for each in kept if _is_wanted(each, ONLY.get(operator))]


def _is_wanted(each: dict[str, Any], resource: str | None) -> bool:
    """Whether a definition is of the resource; of webhooks, leave those that ask about it."""
    if resource is None:
        return True
    if "webhooks" not in each:
        return bool(each["spec"]["names"]["plural"] == resource)
    each["webhooks"] = [hook for hook in each["webhooks"] if resource in hook["rules"][0]["resources"]]
    return bool(each["webhooks"])
