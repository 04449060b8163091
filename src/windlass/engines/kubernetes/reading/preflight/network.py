"""Tests the network of a cluster with two pods, and derives checks and one verdict from the results.

Like the pods of a run, the two pods belong to an Indexed Job with a headless Service; they run on two nodes if
possible. In the pods, `worker/netprobe.py` runs the steps.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from windlass.engines.checks import Check
from windlass.engines.kubernetes.access import exec_stream, probe_pods
from windlass.engines.kubernetes.access.client import Client
from windlass.engines.kubernetes.access.files import last_line, parsed
from windlass.engines.kubernetes.objects import labels, layout, manifests, pod_template
from windlass.engines.kubernetes.objects.helper_manifests import helper_job, helper_pod, mounted
from windlass.engines.kubernetes.objects.pod_template import IMAGE, PYTHON
from windlass.errors import EngineError
from windlass.worker import netprobe

if TYPE_CHECKING:
    from windlass.spec.targets import KubernetesTarget

Json = Mapping[str, Any]
OnLine = Callable[[str], None]

PROBE_SECONDS: Final = 600
"""Seconds after which the cluster ends the pods of the test."""
START_SECONDS: Final = 240.0
"""Seconds within which both pods must run, which includes pulling a large image."""
STEP_SECONDS: Final = 90.0
REDUCE_SECONDS: Final = 150.0
"""Time limit of the reduce step in seconds, which includes importing torch from a cold disk."""
PROGRAM: Final = "netprobe.py"
SLOW_SECONDS: Final = 0.005
SLOW_BYTES: Final = 100e6
"""Bandwidth below which a network counts as slow, in bytes per second: about a tenth of 10 Gbit/s."""


@dataclass(slots=True)
class Findings:
    """Results of the network test; each step has one entry per pod."""

    nodes: list[str] = field(default_factory=list)
    names: list[Json] = field(default_factory=list)
    reach: list[Json] = field(default_factory=list)
    by_address: list[Json] = field(default_factory=list)
    """Connections by address, which are tested only if names do not resolve."""
    speed: list[Json] = field(default_factory=list)
    reduce: list[Json] = field(default_factory=list)
    failed: str = ""
    """Why the test was not completed; empty if it was."""
    fix: str = ""

    def figures(self) -> dict[str, Any]:
        """Returns the measurements as JSON data."""
        found: dict[str, Any] = {"nodes": self.nodes}
        if self.speed and not any("error" in one for one in self.speed):
            found["latency_seconds"] = self.speed[0]["latency_seconds"]
            found["bytes_per_second"] = [one["bytes_per_second"] for one in self.speed]
        if self.reduce and "bytes_per_second" in self.reduce[0]:
            found["all_reduce_bytes_per_second"] = self.reduce[0]["bytes_per_second"]
        return found


def objects(target: KubernetesTarget, name: str) -> list[probe_pods.Manifest]:
    """Returns the objects of the test: the ConfigMap with the program, the Service and the Job. The ConfigMap owns the
    others. Pure.
    """
    command = [target.python or PYTHON, "-I", "-S", f"{layout.BOOT}/{PROGRAM}", "serve", str(PROBE_SECONDS)]
    pods = {labels.HELPER: name}
    pod = mounted(helper_pod(target.image or IMAGE, command), {"configMap": {"name": name}}, layout.BOOT, readOnly=True)
    pod |= {"subdomain": name, "topologySpreadConstraints": pod_template.spread(pods)}
    job = helper_job(pod_template.target_shape(target, target.namespace, name), "network-check", pod, PROBE_SECONDS, 2)
    its = job["spec"]["template"]["metadata"]["labels"]
    program = manifests.core(
        "ConfigMap", name, target.namespace, its, data={PROGRAM: Path(netprobe.__file__).read_text(encoding="utf-8")}
    )
    return [
        program,
        manifests.naming_service(name, target.namespace, its, pods, "master", layout.MASTER_PORT),
        job,
    ]


def probe(client: Client, target: KubernetesTarget, on_line: OnLine) -> Findings:
    """Creates two pods, runs all steps, and deletes the pods. Errors are part of the findings."""
    name = f"windlass-net-{secrets.token_hex(3)}"
    found = Findings()
    try:
        on_line("making two pods")
        with probe_pods.made(client, PROBE_SECONDS, *objects(target, name)):
            pods = probe_pods.running(client, name, 2, START_SECONDS, on_line)
            found.nodes = [str(pod["spec"].get("nodeName")) for pod in pods]
            _try(_Pair(client, target, pods), name, found, on_line)
    except EngineError as error:
        found.failed, found.fix = error.message, error.hint
    return found


class _Pair:
    """The two running pods of the test."""

    def __init__(self, client: Client, target: KubernetesTarget, pods: Sequence[Json]) -> None:
        self._client = client
        self.namespace = client.namespace
        self._python = target.python or PYTHON
        self.pods = pods
        self.addresses = [str(pod.get("status", {}).get("podIP", "")) for pod in pods]

    def both(self, words: Sequence[Sequence[str]], seconds: float = STEP_SECONDS) -> list[Json]:
        """Runs one command in each pod, in parallel; returns both results."""
        pool = ThreadPoolExecutor(2)
        try:
            return list(pool.map(lambda at: self.one(at, words[at], seconds), (0, 1)))
        finally:
            pool.shutdown(wait=False)  # after an interrupt, the pods are deleted without waiting for the commands

    def one(self, at: int, words: Sequence[str], seconds: float = STEP_SECONDS) -> Json:
        """Runs a command in one of the pods; returns its result."""
        isolated = ["-I", "-S"] if words[0] != "reduce" else []  # reduce imports torch from the image's packages
        command = [self._python, *isolated, f"{layout.BOOT}/{PROGRAM}", *words]
        _, out, complaint = exec_stream.call(self._client, self.pods[at], command, seconds)
        return parsed(out) or {"error": last_line(complaint, "it had no output")}


def _try(pair: _Pair, name: str, found: Findings, on_line: OnLine) -> None:
    hosts = [f"{name}-{at}.{name}" for at in (0, 1)]
    full = [f"{host}.{pair.namespace}.svc.{{domain}}" for host in hosts]
    on_line("looking up names")
    found.names = pair.both([["names", hosts[1 - at], full[1 - at]] for at in (0, 1)])
    on_line("connecting to the rendezvous ports")
    if all(_address(one) for one in found.names):
        found.reach = pair.both([["reach", hosts[1 - at]] for at in (0, 1)])
    else:
        found.by_address = pair.both([["reach", pair.addresses[1 - at]] for at in (0, 1)])
    if not found.reach or any(any(one.values()) for one in found.reach):
        return
    on_line("measuring latency and bandwidth")
    found.speed = [pair.one(at, ["speed", hosts[1 - at]]) for at in (0, 1)]
    on_line("summing a tensor over both pods with torch")
    found.reduce = pair.both([["reduce", str(at), hosts[0]] for at in (0, 1)], REDUCE_SECONDS)


def _address(names: Json) -> str:
    """Returns the address of the first, short name; empty if the name does not resolve."""
    first: Any = next(iter(names.values()), {})
    return str(first.get("address", "")) if isinstance(first, Mapping) else ""


# -- checks -----------------------------------------------------------------------------------------------------------


def checks(found: Findings) -> list[Check]:
    """Returns a check for each step, and the verdict on the network. Pure."""
    steps = list(_steps(found))
    failed = [check for check in steps if check.level == "fail"]
    failed.sort(key=lambda check: check.name != "ports")  # if no connection succeeds at all, DNS is not the cause
    warned = [check for check in steps if check.level == "warn"]
    if failed:
        verdict = Check("network", "fail", f"ranks cannot meet: {failed[0].name}: {failed[0].found}", failed[0].fix)
    elif warned:
        verdict = Check("network", "warn", f"ranks can meet, but: {warned[0].name}: {warned[0].found}", warned[0].fix)
    else:
        verdict = Check("network", "ok", "ranks can meet by name, at every port, and sum what they have")
    return [*steps, verdict]


def _steps(found: Findings) -> Iterator[Check]:
    if found.failed:
        yield Check("pods", "fail", found.failed, found.fix)
        return
    if len(set(found.nodes)) == 1:
        yield Check(
            "pods",
            "warn",
            f"both are on {found.nodes[0]}: the network between nodes was not tried",
            "is there a second node with capacity?",
        )
    else:
        yield Check("pods", "ok", f"on {' and '.join(found.nodes)}")
    yield _names(found)
    if found.reach or found.by_address:
        yield _ports(found)
    if found.speed:
        yield from _speed(found.speed)
    if found.reduce:
        yield _reduce(found.reduce)


def _names(found: Findings) -> Check:
    errors = [
        (host, entry["error"] if isinstance(entry, Mapping) else str(entry))
        for one in found.names
        for host, entry in one.items()
        if not isinstance(entry, Mapping) or "error" in entry
    ]
    if not errors:
        slowest = max(entry["seconds"] for one in found.names for entry in one.values())
        return Check("names", "ok", f"short and full ones are known, the slowest after {slowest:.2f} s")
    host, why = errors[0]
    if found.by_address and not any(any(one.values()) for one in found.by_address):
        fix = "the addresses answer, so it is DNS: kubectl -n kube-system get pods -l k8s-app=kube-dns"
    else:
        fix = "does DNS work? kubectl -n kube-system get pods -l k8s-app=kube-dns; may pods reach it at port 53?"
    return Check("names", "fail", f"{len(errors)} of 4 are not known: {host}: {why}", fix)


def _ports(found: Findings) -> Check:
    way = "by name" if found.reach else "by address"
    broken = [
        f"from {found.nodes[at]} to {found.nodes[1 - at]}, port {port}: {why}"
        for at, one in enumerate(found.reach or found.by_address)
        for port, why in one.items()
        if why
    ]
    if not broken:
        return Check("ports", "ok", f"29500, 29400 and one that the kernel chose, both ways, {way}")
    fix = "is there a NetworkPolicy, or a security group between the nodes? Ranks need all ports among themselves"
    return Check("ports", "fail", broken[0], fix)


def _speed(speed: Sequence[Json]) -> Iterator[Check]:
    if errors := [str(one["error"]) for one in speed if "error" in one]:
        yield Check(
            "bandwidth",
            "fail",
            f"data does not arrive: {errors[0]}",
            "small packets pass and large ones do not: is the MTU right?",
        )
        return
    latency = speed[0]["latency_seconds"]
    fix = "are the nodes healthy and in one zone?" if latency > SLOW_SECONDS else ""
    yield Check("latency", "warn" if fix else "ok", f"{1e3 * latency:.2f} ms there and back", fix)
    there, back = (one["bytes_per_second"] for one in speed)
    fix = "exchanging gradients of a large model takes long" if min(there, back) < SLOW_BYTES else ""
    text = f"{there / 1e6:,.0f} MB/s there, {back / 1e6:,.0f} MB/s back, over one connection"
    yield Check("bandwidth", "warn" if fix else "ok", text, fix)


def _reduce(reduce: Sequence[Json]) -> Check:
    if any("missing" in one for one in reduce):
        return Check("all-reduce", "ok", "not tried: the image has no torch")
    if errors := [str(one["error"]) for one in reduce if "error" in one]:
        fix = "does the pod's host name resolve to its address? GLOO_SOCKET_IFNAME names the interface"
        return Check("all-reduce", "fail", f"torch's gloo: {errors[0]}", fix)
    if not all(one["right"] for one in reduce):
        return Check("all-reduce", "fail", "the sum is wrong: data is corrupted in transit", "check the nodes")
    rate = min(one["bytes_per_second"] for one in reduce)
    return Check("all-reduce", "ok", f"16 MiB over both pods by torch's gloo, {rate / 1e6:,.0f} MB/s")
