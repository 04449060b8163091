"""What benchmarks on a cluster share: a namespace of a test bed, and the bed as target `bed` of a folder's commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.cluster.bed.cluster import Bed

from windlass.spec.targets import KubernetesTarget


def make_namespace(bed: Bed, name: str) -> None:
    """Returns when pods can be made in it."""
    bed.kubectl("create", "namespace", name)
    bed.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=60s")


def aim(bed: Bed, namespace: str, folder: Path, supervisor: str = "auto") -> KubernetesTarget:
    """Have commands in a folder, and this process, reach the bed; gives the target."""
    os.environ["KUBECONFIG"] = bed.kubeconfig
    target: dict[str, Any] = {
        "context": bed.context,
        "namespace": namespace,
        "image": bed.image,
        "python": bed.python,
        "supervisor": supervisor,
    }
    lines = [f"  {field}: {value}\n" for field, value in {"kind": "kubernetes", **target}.items()]
    (folder / "targets.yaml").write_text("".join(["bed:\n", *lines]))
    return KubernetesTarget(name="bed", **target)
