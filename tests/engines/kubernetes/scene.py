"""A run with its record on this machine and its objects on the API server of the tests, in three states."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.engines.kubernetes.objectserver import ObjectServer

from windlass.engines.kubernetes.access.control import Request
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.engines.kubernetes.objects import layout, ttl
from windlass.engines.kubernetes.objects.summary import summary_of
from windlass.engines.kubernetes.objects.workloads import WORKLOADS
from windlass.engines.kubernetes.planning.facts import Cluster, Facts, boot_program
from windlass.engines.kubernetes.planning.plan import plan
from windlass.engines.kubernetes.reading.preflight.rights import Rights
from windlass.engines.kubernetes.running.attempt import PodAttempt
from windlass.engines.kubernetes.running.backend import KubernetesBackend
from windlass.engines.kubernetes.supervisor.record import ClusterRecord, Head, head_manifest
from windlass.engines.travel import CodeFacts
from windlass.errors import EngineError
from windlass.plan.plan import NO_PLAN, Plan
from windlass.plan.steps import ClusterStep
from windlass.runs.clock import Clock
from windlass.runs.events import (
    AttemptEnded,
    AttemptStarted,
    Entry,
    Event,
    entry_of,
)
from windlass.runs.phase import Phase
from windlass.runs.record import fold
from windlass.runs.store import RunWriter, Store
from windlass.spec.job import Job
from windlass.spec.targets import KubernetesTarget
from windlass.supervise.recorder import Recorder
from windlass.worker import pod_reuse
from windlass.worker.protocol import NodeSpec, unpack

RUN = "r-1"
SUPERVISED_RUN = "digits-7f3k2"
HOLDER = f"{SUPERVISED_RUN}-supervisor-x_home_7-boot"
NUM_NODES = 3
WAYS = frozenset(("batch/v1", "jobset.x-k8s.io/v1alpha2"))
CLUSTER = Cluster("v1.34.0", frozenset(way.api for way in WORKLOADS.values()))
TARGET = KubernetesTarget(name="lab", context="lab", namespace="team", image="image")


class Control:
    """Fake pod control, in which each pod accepts its order unless it is in `refuses`."""

    max_bytes = 1 << 20
    events = None

    def __init__(self) -> None:
        self.refuses: set[str] = set()
        self.late: set[str] = set()
        """Pods that refuse their first order."""
        self.orders: dict[str, list[dict[int, NodeSpec]]] = {}
        """By pod, the specs that it was given."""
        self.released: set[str] = set()

    def call_all(
        self, requests: Sequence[tuple[Mapping[str, Any], Request]], seconds: float
    ) -> Iterator[tuple[int, int | EngineError]]:
        for number, (pod, request) in enumerate(requests):
            yield number, self._answer(pod["metadata"]["name"], request)

    def _answer(self, name: str, request: Request) -> int:
        if request.words[0] == "leave":
            self.released.add(name)
            return pod_reuse.NOT_TAKEN
        if name in self.refuses or name in self.late:
            self.late.discard(name)
            return pod_reuse.NOT_TAKEN
        self.orders.setdefault(name, []).append(unpack(base64.b64decode(request.words[1]))[1])
        return pod_reuse.TAKEN


class RunScene:
    """Record of a planned run on this server, with methods that act for its supervisor."""

    def __init__(
        self,
        server: ObjectServer,
        folder: Path,
        cluster: Cluster = CLUSTER,
        **fields: Any,
    ) -> None:
        job = Job.model_validate({"name": "case", "command": ["true"], **fields})
        facts = Facts(CodeFacts(str(folder), True, True, None), cluster, server.kubeconfig(folder))
        self.plan: Plan = plan(job, TARGET, facts, RUN, boot_program())
        self.server = server
        self.store = Store(folder / "home")
        self.dir = self.store.run_dir(RUN)
        self.engine = KubernetesEngine(self.store)

    def close(self) -> None:
        self.store.close()

    def create(self, at: float = 1000.0, labels: Mapping[str, str] | None = None) -> RunWriter:
        return self.store.create(
            RUN,
            name="case",
            target="lab",
            output_dir="out",
            plan=self.plan.to_text(),
            time=at,
            restarts=0,
            labels=labels,
        )

    def end(self, phase: Phase = Phase.LOST) -> None:
        writer = self.create()
        writer.append(
            entry_of("attempt", {"number": 1, "world_size": 1, "nodes": [[0]], "members": [0], "reason": "first"})
        )
        writer.append(entry_of("end", {"phase": phase.value}))
        writer.close()

    def pod(self, name: str, phase: str = "Running") -> None:
        labels = {layout.RUN_LABEL: RUN, layout.MANAGED_LABEL: "windlass", layout.ATTEMPT_LABEL: "1"}
        place = {"batch.kubernetes.io/job-completion-index": name.rpartition("-")[2]}
        self.server.put(
            "Pod",
            name,
            labels,
            spec={"containers": [{"name": "node"}]},
            status={"phase": phase},
            metadata={"annotations": place},
        )


class AttemptScene(RunScene):
    """A run of three nodes whose first attempt has ended, with the remaining pods."""

    def __init__(self, server: ObjectServer, folder: Path, version: str = "v1.34.0", **fields: Any) -> None:
        cluster = Cluster(version, WAYS, rights=Rights(has_account=True))
        super().__init__(server, folder, cluster, **{"nodes": NUM_NODES, "kubernetes": {"via": "job"}, **fields})
        self.control = Control()
        server.served.add("jobsets")
        self.writer: RunWriter = self.create()
        self.backend = KubernetesBackend(self.plan, self.dir, self.control)
        server.owner_config_map(RUN)
        server.job(RUN, "Running")

    def end_attempt(self, reason: str = "node-loss") -> None:
        """Records an attempt and its end."""
        self.begin_attempt()
        self.writer.note(AttemptEnded(Phase.FAILED, reason, restarts_left=1))

    def begin_attempt(self) -> None:
        number = len(self.writer.status.attempts) + 1
        nodes = tuple((node,) for node in range(NUM_NODES))
        self.writer.note(AttemptStarted(number, NUM_NODES, nodes, tuple(range(NUM_NODES)), "first"))

    def next_attempt(self, reason: str = "node-loss") -> None:
        """Records the end of an attempt and the start of the next one."""
        self.end_attempt(reason)
        self.begin_attempt()

    def start(self) -> PodAttempt:
        """Returns the newest attempt, as a possibly restarted supervisor sees it."""
        number = len(self.writer.status.attempts)
        folder = self.dir / f"attempt-{number}"
        return self.backend.start(Recorder(self.writer), folder, number, range(NUM_NODES), Clock())

    def requested(self, attempt: int) -> dict[int, int]:
        """Returns the nodes of the pods that are created for an attempt, by pod number; empty if none are."""
        if f"{RUN}-{attempt}" not in self.server.names("Job"):
            return {}
        data = self.server.objects["configmaps", f"{RUN}-{attempt}"]["binaryData"][layout.NODES_FILE]
        specs = unpack(base64.b64decode(data))[1]
        assert self.server.objects["jobs", f"{RUN}-{attempt}"]["spec"]["completions"] == len(specs)
        return {index: spec.node for index, spec in specs.items()}

    def close(self) -> None:
        self.backend.close()
        self.writer.close()
        super().close()


class SupervisedScene:
    """A run of this machine in a cluster, with the record that its supervisor writes there."""

    def __init__(self, server: ObjectServer, folder: Path, *, ago: float = 0.0) -> None:
        self.server = server
        self.began = time.time() - ago
        self.events: list[Event] = []
        server.owner_config_map(SUPERVISED_RUN)
        server.put("ServiceAccount", layout.SUPERVISOR_ACCOUNT)
        self.client = server.client(folder)
        config = server.kubeconfig(folder)
        cluster = ClusterStep("", "team", "job", context="lab", kubeconfig=config, expires_seconds=ttl.WEEK_SECONDS)
        steps = (cluster,)  # Without further steps, no supervisor can be started from the plan.
        plan = replace(NO_PLAN, run_id=SUPERVISED_RUN, engine="kubernetes", num_nodes=1, procs_per_node=1, steps=steps)
        self.store = Store(folder / "home")
        self.store.create(
            SUPERVISED_RUN,
            name="digits",
            target="lab",
            output_dir="in the pods",
            plan=plan.to_text(),
            time=self.began,
            user="ann",
            supervisor="cluster",
        ).close()
        self.events = self.store.events(SUPERVISED_RUN)
        head = Head(tuple(self.events), summary_of(fold(self.events), {}), 0, "submitter")
        self.client.create(head_manifest(self.client.get("v1", "ConfigMap", SUPERVISED_RUN), head))
        self._record = ClusterRecord(self.client, SUPERVISED_RUN, HOLDER)
        self.engine = KubernetesEngine(self.store)

    def write(self, *entries: Entry, step: int = 0) -> None:
        for entry in entries:
            self.events.append(entry.event(len(self.events) + 1, self.began + len(self.events)))
        self._record.write(self.events, fold(self.events), {"step": step})

    def lease(self, ago: float) -> None:
        """Adds the Lease of the run, renewed `ago` seconds before now."""
        stamp = datetime.fromtimestamp(time.time() - ago, UTC).isoformat()
        self.server.put(
            "Lease",
            SUPERVISED_RUN,
            {layout.RUN_LABEL: SUPERVISED_RUN},
            api="coordination.k8s.io/v1",
            spec={"holderIdentity": HOLDER, "renewTime": stamp},
        )

    def close(self) -> None:
        self.client.close()
        self.store.close()
