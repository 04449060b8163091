"""The check of a target's image: whether a node has pulled it; only a pod shows what is in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.engines.checks import Check
from windlass.engines.kubernetes.objects.manifests import IMAGE, PYTHON

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget


def image_check(target: KubernetesTarget, nodes: Sequence[Mapping[str, Any]]) -> Check:
    """`nodes` are those that this login may list. No registry is asked: only the nodes have the credentials for it."""
    text = target.image or IMAGE
    python = target.python or PYTHON
    if target.image is None:
        fix = "set image: of the target in targets.yaml, or image: in each job"
        return Check("image", "warn", f"the target names none: {text}", fix)
    fix = f"windlass check --on {target.name} --network starts two pods of it"
    name = full_name(target.image)
    having = [node for node in nodes if name in _images(node)]
    if having:
        return Check(
            "image", "ok", f"{text}: {len(having)} of {len(nodes)} nodes have it; whether it has {python} is not known"
        )
    where = f"none of {len(nodes)} nodes has it" if nodes else "no node is known that has it"
    return Check("image", "warn", f"{text}: {where}, and whether it can be pulled, and has {python}, is not known", fix)


def full_name(image: str) -> str:
    """The name by which nodes report an image: with registry, and with either digest or tag."""
    first, slash, _ = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif first != "localhost" and not any(mark in first for mark in ".:"):
        image = f"docker.io/{image}"
    image, at, digest = image.partition("@")
    path, _, last = image.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{path}/{name}@{digest}" if at else f"{path}/{name}:{tag or 'latest'}"


def _images(node: Mapping[str, Any]) -> set[str]:
    """The names of the largest 50 images of a node, which is what a kubelet reports by default."""
    images = node.get("status", {}).get("images") or ()
    return {name for image in images for name in image.get("names") or ()}
