"""Injects faults into a run supervised in its cluster: into its processes, pods and nodes, and the user's machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.harness import TRAIN
from tests.chaos.plans import Strike
from tests.cluster.bed import pod_network, users
from tests.cluster.bed.cluster import API_SERVER, Bed
from tests.cluster.bed.sharing import striking
from tests.cluster.chaos_plans import LASTING, MEANWHILE, SHARED, seconds_of
from tests.cluster.proxy import Proxy
from tests.engines.harness import Run
from tests.helpers.machine import kill
from tests.helpers.until import passed, until

from windlass.engines.kubernetes.engine import KubernetesEngine

PATIENCE_SECONDS = 600.0
CUT_PAUSE_SECONDS = 0.3


@dataclass
class Striker:
    """Injects faults into one run, and counts those that have affected its ranks."""

    bed: Bed
    namespace: str
    run: Run
    proxy: Proxy
    """Proxy between the user's machine and the API server."""
    kubeconfig: Path
    """Kubeconfig of the user's machine."""
    num_harmful: int = 0
    """Number of faults that have affected ranks or their pods."""
    has_lost_pods: bool = False
    problems: list[str] = field(default_factory=list)
    """Unexpected observations during faults."""

    # -- what is there ------------------------------------------------------------------------------------------------

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Returns the output of kubectl, once the API server answers: other tests inject faults too. A missing object
        is no error.
        """

        def told() -> tuple[str] | None:
            try:
                return (self.bed.kubectl(*words, "-n", self.namespace, stdin=stdin),)
            except subprocess.CalledProcessError as error:
                return ("",) if "(NotFound)" in error.stderr else None

        found = until(told, lambda: f"kubectl {' '.join(words)} fails", PATIENCE_SECONDS)
        return found[0] if found else ""

    def pods(self, *, is_supervisor: bool) -> list[dict[str, Any]]:
        """Returns the running pods of the supervisor, or of attempts."""
        chosen = f"windlass.dev/run={self.run.id},{'!' if is_supervisor else ''}windlass.dev/attempt"
        found = json.loads(self.kubectl("get", "pods", "-l", chosen, "-o", "json"))["items"]
        live = [
            pod for pod in found if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]
        return sorted(live, key=lambda pod: str(pod["metadata"]["name"]))

    def _processes(self, kind: str) -> list[int]:
        """Returns the host's ids of the processes of one kind."""
        pids = {state.pid for state in self.run.status.ranks}
        found = set()
        for pod in self.pods(is_supervisor=kind == "supervisor"):
            for pid in self._pids(pod):
                with contextlib.suppress(OSError):
                    # A rank's process id may be that of a node's process in another pod, so the command decides.
                    words = b"windlass.zip" if kind == "supervisor" else TRAIN.name.encode()
                    is_one = words in Path(f"/proc/{pid}/cmdline").read_bytes()
                    if is_one and (kind == "supervisor" or pod_network.number_inside(pid) in pids):
                        found.add(pid)
        return sorted(found)

    def _pids(self, pod: dict[str, Any]) -> list[int]:
        node = self.bed.node(pod["spec"]["nodeName"])
        return sorted(pod_network.processes(node, pod["metadata"]["uid"]))

    # -- strikes ------------------------------------------------------------------------------------------------------

    def strike(self, strike: Strike) -> str:
        """Injects a fault; returns a description, empty if there was no process or pod to affect."""
        shared = striking(self.bed, strike.kind) if strike.kind in SHARED else contextlib.nullcontext()
        with shared:
            if self.run.status.phase.is_terminal:
                return ""
            if strike.kind in LASTING:
                return self._last(strike)
            if strike.kind in ("supervisor killed", "rank"):
                return self._kill("supervisor" if strike.kind != "rank" else "rank", strike.which)
            return self._lose_node() if strike.kind == "node of the supervisor" else self._remove(strike)

    def _kill(self, kind: str, which: float, pids: list[int] | None = None) -> str:
        pids = self._processes(kind) if pids is None else pids
        victims = [pid for pid in pids[int(which * len(pids)) :][:1] if kill(pid)]
        self.num_harmful += len(victims) if kind == "rank" else 0
        return " ".join(f"{kind} {pid}" for pid in victims)

    def _remove(self, strike: Strike) -> str:
        """Deletes a pod, with or without a grace period, or evicts it like a drain of its node."""
        is_supervisor = strike.kind == "supervisor deleted"
        pods = self.pods(is_supervisor=is_supervisor)
        names = [pod["metadata"]["name"] for pod in pods[int(strike.which * len(pods)) :][:1]]
        how = "--grace-period=0 --force" if strike.detail < 0.6 else "--wait=false"
        for name in names:
            self.num_harmful += not is_supervisor
            self.has_lost_pods |= not is_supervisor
            if strike.kind == "pod evicted":
                eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
                path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/eviction"
                self.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
            else:
                self.kubectl("delete", "pod", name, "--ignore-not-found", *how.split())
        return " ".join([*names, how] if names else [])

    def _last(self, strike: Strike) -> str:
        """Injects a fault that lasts for some seconds, and another one in the middle of it."""
        other = MEANWHILE[int(strike.detail * len(MEANWHILE))]
        pids = self._processes(other) if other else []
        seconds = seconds_of(strike)
        with self._lasting(strike, seconds):
            passed(seconds / 2)
            did = self._kill(other, strike.which, pids) if other else ""
            passed(seconds / 2)
        return f"{seconds:.1f} s, {did or 'nothing'} meanwhile"

    @contextlib.contextmanager
    def _lasting(self, strike: Strike, seconds: float) -> Iterator[None]:
        supervisors = self.pods(is_supervisor=True)
        match strike.kind:
            case "connections cut":
                self._cut(supervisors, seconds)
                yield
            case "connections stalled":
                with self._stalled(supervisors):
                    yield
            case "supervisor suspended":
                self._suspend(is_suspended=True)
                yield
                self._suspend(is_suspended=False)
            case "user's login":
                with self._expired_login():
                    yield
            case "user's connections":
                with self._bad_connections(is_cutting=strike.which < 0.5):
                    yield
            case _:
                with self._without_service(strike.kind, {pod["spec"]["nodeName"] for pod in supervisors}):
                    yield

    def _cut(self, pods: list[dict[str, Any]], seconds: float) -> None:
        """Cuts all connections of the supervisor's pod, to the API server and to the run's pods, repeatedly."""
        pids = [pid for pod in pods for pid in self._pids(pod)[:1]]
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            for pid in pids:
                pod_network.cut(pid)
            passed(CUT_PAUSE_SECONDS)

    @contextlib.contextmanager
    def _stalled(self, pods: list[dict[str, Any]]) -> Iterator[None]:
        links = [pod_network.link(self.bed.layout, pid) for pod in pods for pid in self._pids(pod)[:1]]
        for link in links:
            pod_network.set_link(self.bed.layout, link, "down")
        try:
            yield
        finally:
            for link in links:
                pod_network.set_link(self.bed.layout, link, "up")

    def _suspend(self, *, is_suspended: bool) -> None:
        patch = json.dumps({"spec": {"suspend": is_suspended}})
        self.kubectl("patch", "job", f"{self.run.id}-supervisor", "-p", patch)

    @contextlib.contextmanager
    def _without_service(self, kind: str, nodes: set[str]) -> Iterator[None]:
        """Interrupts a service that all runs of the test cluster use."""
        bed = self.bed
        match kind:
            case "api down":
                begin, end = bed.kill_api_server, bed.start_api_server
            case "api frozen":
                begin, end = partial(bed.freeze, API_SERVER), partial(bed.thaw, API_SERVER)
            case "logins refused":
                begin, end = bed.refuse_accounts, bed.accept_accounts
            case _:
                [node] = nodes or {"node1"}
                begin, end = partial(bed.cut_network, node), partial(bed.mend_network, node)
        begin()
        try:
            yield
        finally:
            end()

    def _lose_node(self) -> str:
        """Powers off the node of the supervisor until another supervisor runs."""
        before = self.pods(is_supervisor=True)
        if not before:
            return ""
        [name] = {pod["spec"]["nodeName"] for pod in before}
        lost = [pod for pod in self.pods(is_supervisor=False) if pod["spec"]["nodeName"] == name]
        self.num_harmful += bool(lost)
        self.has_lost_pods |= bool(lost)
        self.bed.kill_node(name)
        try:
            until(
                lambda: [pod for pod in self.pods(is_supervisor=True) if pod["spec"]["nodeName"] != name],
                "no supervisor on the other node",
                PATIENCE_SECONDS,
            )
        finally:
            self.bed.start_node(name)
        return f"{name}, with {len(lost)} pods of the attempt"

    # -- the user's machine -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _expired_login(self) -> Iterator[None]:
        """Lets the login expire; a command must report that, with the last known status."""
        before = self.kubeconfig.read_text()
        view = json.loads(before)
        view["users"][0]["user"] = {"token": users.token(users.EXPIRED)}
        self.kubeconfig.write_text(json.dumps(view))
        try:
            self._require_true_view()
            yield
        finally:
            self.kubeconfig.write_text(before)

    @contextlib.contextmanager
    def _bad_connections(self, *, is_cutting: bool) -> Iterator[None]:
        self.proxy.is_cutting, self.proxy.is_stalling = is_cutting, not is_cutting
        try:
            yield
            if is_cutting:
                self.run.bring_logs()
        finally:
            self.proxy.is_cutting = self.proxy.is_stalling = False

    def _require_true_view(self) -> None:
        """Checks the output of a command on a machine that has the record and cannot log in."""
        known = self.run.harness.store.status(self.run.id)
        shown = KubernetesEngine(self.run.harness.store).status(self.run.id)
        if shown.phase is not known.phase or not shown.supervision.condition:
            self.problems.append(f"without a login a command shows {shown.phase}, {shown.supervision.condition}")
