"""Checks whether a cluster is ready for training: the checks of `check`, nodes, GPU pools without nodes, and probe
pods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.checks import Check
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.connect import connect, find_kubeconfig
from windlass.engines.kubernetes.access.errors import Refused
from windlass.engines.kubernetes.access.kubeconfig import read_context
from windlass.engines.kubernetes.objects.pod_template import GPU, IMAGE
from windlass.engines.kubernetes.objects.quantity import is_true
from windlass.engines.kubernetes.reading import karpenter
from windlass.engines.kubernetes.reading.preflight import probes, report
from windlass.engines.kubernetes.reading.preflight.pod_findings import Association
from windlass.engines.kubernetes.reading.preflight.probes import ProbeRequest
from windlass.errors import EngineError

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget

Json = Mapping[str, Any]
PRESSURE: Final = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
STOP: Final = frozenset({"api", "login", "namespace", "rights"})
"""Names of checks without which no pod can be created."""
USUAL_CLAIMS: Final = ("efs", "fsx")
"""Names of claims in clusters that Windlass creates; tested if they exist."""
EKS_SERVER: Final = re.compile(r"https://[0-9A-Fa-f]+\.[\w-]+\.([a-z0-9-]+)\.eks\.amazonaws\.com")
EKS_ARN: Final = re.compile(r"arn:aws[\w-]*:eks:([a-z0-9-]+):\d{12}:cluster/([\w-]+)")


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected properties of a cluster, in addition to the settings of the target."""

    wanted: Association = field(default_factory=Association)
    pools: tuple[str, ...] = ()
    """Names of GPU pools whose nodes Karpenter provisions."""
    groups: tuple[str, ...] = ()
    """Names of GPU pools that are node groups."""
    claims: tuple[str, ...] = ()
    """Claims that must exist, in addition to the target's."""
    images: tuple[str, ...] = ()
    """Images that must be pullable, in addition to the target's."""


@dataclass(frozen=True, slots=True)
class EksCluster:
    """An EKS cluster, as identified by a kubeconfig."""

    name: str
    region: str


def platform(
    target: KubernetesTarget, environ: Mapping[str, str], expected: Expected, on_line: Callable[[str], None]
) -> Iterator[Check]:
    """Yields all checks of a cluster, each as it completes. Raises UsageError, and EngineError of a login plugin."""
    found = report.check(target, environ).checks
    yield from found
    if any(check.level == "fail" and check.name in STOP for check in found):
        return
    with connect(target, environ) as client:
        yield from capacity(client, expected)
        claims = _claims(client, target, expected)
        try:
            image = target.image or IMAGE
            asked = ProbeRequest(image, claims, expected.wanted, tuple(one for one in expected.images if one != image))
            yield from probes.probe(client, target, asked, on_line)
        except EngineError as error:
            yield Check("probe pod", "fail", f"no pod can be created: {error.message}", error.hint)


def eks_cluster(target: KubernetesTarget, environ: Mapping[str, str]) -> EksCluster | None:
    """Returns the EKS cluster of a target's context; None if the kubeconfig does not identify one. Raises
    UsageError.
    """
    context = read_context(target.context, find_kubeconfig(target, environ))
    login = context.user.settings.get("exec") or {}
    words = [str(one) for one in login.get("args") or ()]
    named = {key: _after(words, key) for key in ("--cluster-name", "--cluster-id", "-i", "--region")}
    server, arn = EKS_SERVER.fullmatch(context.server), EKS_ARN.fullmatch(target.context)
    name = named["--cluster-name"] or named["--cluster-id"] or named["-i"] or (arn[2] if arn else "")
    region = named["--region"] or (arn[1] if arn else "") or (server[1] if server else "") or target.region or ""
    return EksCluster(name, region) if name and region else None


def _after(words: list[str], option: str) -> str:
    at = words.index(option) if option in words else -1
    return words[at + 1] if 0 <= at < len(words) - 1 else ""


def capacity(client: Client, expected: Expected) -> Iterator[Check]:
    """Yields checks of existing nodes, and of whether the expected GPU pools can provide nodes."""
    try:
        nodes = client.find("v1", "Node")["items"]
    except Refused:
        return  # the check `not seen` has reported this already
    yield nodes_check(nodes)
    if not expected.pools and not expected.groups:
        return
    pools: list[Json] | None = None
    if expected.pools:
        try:
            pools = client.find("karpenter.sh/v1", "NodePool")["items"]
        except Refused as error:
            if error.status == 404:  # Karpenter is not installed
                pools = []
            else:
                yield Check("gpu pools", "warn", f"unknown: {error.message}", error.hint)
    scaler = karpenter.autoscaler_status(client) if expected.groups else None
    is_scaled = scaler is not None and scaler["autoscalerStatus"] == "Running"
    yield from pool_checks(nodes, pools, expected, is_scaled=is_scaled)


def nodes_check(nodes: Iterable[Json]) -> Check:
    """Returns a check that names the nodes that are cordoned, under resource pressure, or not ready. Pure."""
    named = {str(node["metadata"]["name"]): node for node in nodes}
    unready = [name for name, node in named.items() if not is_true(node, "Ready")]
    pressed = [f"{name} has {kind}" for name, node in named.items() for kind in PRESSURE if is_true(node, kind)]
    cordoned = [name for name, node in named.items() if node.get("spec", {}).get("unschedulable")]
    text = f"{len(named) - len(unready)} of {len(named)} are ready"
    if not named or len(unready) == len(named):
        return Check("nodes", "fail", text, "kubectl get nodes; kubectl describe node NAME")
    wrong = [
        *([f"not ready: {', '.join(unready[:5])}"] if unready else []),
        *pressed[:5],
        *([f"cordoned: {', '.join(cordoned[:5])}"] if cordoned else []),
    ]
    if wrong:
        fix = "kubectl describe node NAME" if unready or pressed else "kubectl uncordon NAME"
        return Check("nodes", "warn", "; ".join([text, *wrong]), fix)
    return Check("nodes", "ok", text)


def pool_checks(
    nodes: Iterable[Json], pools: Iterable[Json] | None, expected: Expected, *, is_scaled: bool = False
) -> Iterator[Check]:
    """Yields a check of each expected pool: its NodePool is ready, or its node group has nodes. Pure.

    With `is_scaled`, a running Cluster Autoscaler can scale up node groups.
    """
    known = {str(one["metadata"]["name"]): one for one in pools or ()}
    labelled = [str(node["metadata"].get("labels", {}).get("windlass.dev/pool", "")) for node in nodes]
    if pools is not None:
        for name in expected.pools:
            yield _pool_check(name, known.get(name), labelled.count(name))
    for name in expected.groups:
        count = labelled.count(name)
        if count:
            yield Check(f"pool {name}", "ok", f"{count} nodes of its node group run")
        elif is_scaled:
            yield Check(
                f"pool {name}", "ok", "its node group has no node; Cluster Autoscaler scales it up when pods wait"
            )
        else:
            yield Check(
                f"pool {name}",
                "warn",
                "its node group has no node, and nothing scales it up when pods wait",
                f"set min: of pool {name} in cluster.yaml and windlass cluster up, before a run",
            )


def _pool_check(name: str, pool: Json | None, count: int) -> Check:
    if pool is None:
        return Check(f"pool {name}", "fail", "there is no NodePool of this name", "windlass cluster up creates it")
    if not is_true(pool, "Ready"):
        why = next(
            (
                str(one.get("message", ""))
                for one in pool.get("status", {}).get("conditions", ())
                if one.get("type") != "Ready" and one.get("status") != "True"
            ),
            "",
        )
        text = f"its NodePool is not ready{': ' + why if why else ''}"
        return Check(f"pool {name}", "fail", text, f"kubectl describe nodepool {name}")
    limits = pool.get("spec", {}).get("limits") or {}
    used = pool.get("status", {}).get("resources") or {}
    if GPU in limits and str(used.get(GPU, "0")) == str(limits[GPU]):
        return Check(
            f"pool {name}", "warn", f"all {limits[GPU]} GPUs of its limit are in use", "raise max: of the pool"
        )
    return Check(f"pool {name}", "ok", f"{count} nodes run, and Karpenter starts more when pods wait")


def _claims(client: Client, target: KubernetesTarget, expected: Expected) -> tuple[str, ...]:
    """Returns the claims that the target or `expected` names, and the usual claims that exist."""
    data = target.data
    named = [*expected.claims, *([data.claim] if data is not None and data.size is None else [])]
    # a claim with a size is created by the first run, so it may be missing
    usual = (*USUAL_CLAIMS, *([data.claim] if data is not None else []))
    try:
        found = {str(one["metadata"]["name"]) for one in client.find("v1", "PersistentVolumeClaim")["items"]}
    except Refused:
        found = set()
    return tuple(dict.fromkeys([*named, *(name for name in usual if name in found)]))
